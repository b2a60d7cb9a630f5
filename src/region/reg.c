/* SPDX-License-Identifier: BSD-3-Clause */
#include "attr.h"
#include "core/caller.h"
#include "register.h"

/*
 * The public calls that register. Each describes what it wants by attributes, and
 * pier_register() takes it from there: register.c.
 */

static struct pier_mr_attr attr_for(const struct pier_mr_range *range, int access)
{
	return (struct pier_mr_attr){
		.ranges = range,
		.range_count = 1,
		.access = access,
	};
}

int pier_reg_mr(struct pier_pd *pd, void *addr, size_t length, int access,
		struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_host(addr, length);
	struct pier_mr_attr attr = attr_for(&range, access);

	return pier_register(pd, &attr, NULL, ret_mr);
}

int pier_reg_dmabuf_mr(struct pier_pd *pd, uint64_t offset, size_t length, uint64_t iova,
		       int fd, int access, struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_dmabuf(fd, offset, length);
	struct pier_mr_attr attr = attr_for(&range, access);

	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = iova;
	return pier_register(pd, &attr, NULL, ret_mr);
}

int pier_reg_buffer_mr(struct pier_pd *pd, struct pier_buffer *buffer, size_t offset,
		       size_t length, int access, enum pier_policy policy,
		       struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_range range = pier_mr_range_buffer(buffer, offset, length);
	struct pier_mr_attr attr = attr_for(&range, access);
	int error = pier_check_policy(policy);

	attr.policy = policy;
	return error ? error : pier_register(pd, &attr, NULL, ret_mr);
}

int pier_reg_mr_attr(struct pier_pd *pd, const struct pier_mr_attr *attr,
		     struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_attr known;
	int error = pier_read_mr_attr(attr, &known);

	return error ? error : pier_register(pd, &known, NULL, ret_mr);
}

int pier_reg_mr_vec(struct pier_pd *pd, const struct pier_mr_range *ranges,
		    uint32_t range_count, int access, struct pier_mr **ret_mr)
{
	PIER_ENTRY();
	struct pier_mr_attr attr;
	int error;

	pier_mr_attr_init(&attr);
	attr.ranges = ranges;
	attr.range_count = range_count;
	attr.access = access;
	error = pier_read_mr_attr(&attr, &attr);
	return error ? error : pier_register(pd, &attr, NULL, ret_mr);
}
