/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_INDIRECT_H
#define TESTS_SUPPORT_INDIRECT_H

/*
 * soft0 with indirect keys, as mlx5 has them: join_mrs() and its company on top of
 * soft0's reg_parts(), which the device itself then lacks. It is as strict as the NIC: a
 * queue pair in RTS, parts of the same protection domain by their own addresses and keys,
 * a limit of parts, and no part that leaves before the key.
 */
#include "tests/support/cmocka.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "provider/provider.h"

enum {
	INDIRECT_REGIONS = 64,
};

struct indirect_region {
	struct ibv_mr *mr; /* NULL: unused */
	struct pier_provider_part part;
	uint64_t iova;
	bool joined;
};

static struct {
	const struct pier_provider *real;
	struct pier_provider provider;
	struct indirect_region regions[INDIRECT_REGIONS];
	int alive; /* regions */
	int keys;  /* indirect ones that are alive */
	int joins;
	uint32_t most; /* parts of a request */
	uint32_t last_count;
	bool unavailable;
	/* Of the next call, or 0. */
	int qp_error, join_error, unjoin_error;
	bool bad_completion;
	int failing_reg, failing_dereg; /* the nth fails, from 1 */
} indirect;

static struct ibv_mr *indirect_note(struct ibv_mr *mr, struct pier_provider_part part,
				    uint64_t iova)
{
	size_t i = 0;

	if (!mr)
		return NULL;
	while (i < INDIRECT_REGIONS && indirect.regions[i].mr)
		i++;
	assert_true(i < INDIRECT_REGIONS);
	indirect.regions[i] = (struct indirect_region){ mr, part, iova, false };
	indirect.alive++;
	return mr;
}

static struct ibv_mr *indirect_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				      uint64_t iova, int access)
{
	struct pier_provider_part part = { .fd = -1, .addr = addr, .length = length };

	if (--indirect.failing_reg == 0) {
		errno = EIO;
		return NULL;
	}
	return indirect_note(indirect.real->reg_mr(pd, addr, length, iova, access), part,
			     iova);
}

static struct ibv_mr *indirect_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
					     size_t length, uint64_t iova, int fd,
					     int access)
{
	struct pier_provider_part part = { .offset = offset, .length = length };
	struct ibv_mr *mr;

	if (--indirect.failing_reg == 0) {
		errno = EIO;
		return NULL;
	}
	mr = indirect.real->reg_dmabuf_mr(pd, offset, length, iova, fd, access);
	if (mr)
		part.fd = dup(fd);
	return indirect_note(mr, part, iova);
}

static int indirect_dereg_mr(struct ibv_mr *mr)
{
	int error;

	if (--indirect.failing_dereg == 0)
		return EBUSY;
	for (size_t i = 0; i < INDIRECT_REGIONS; i++) {
		struct indirect_region *region = &indirect.regions[i];

		if (region->mr != mr)
			continue;
		assert_false(region->joined && indirect.keys > 0);
		error = indirect.real->dereg_mr(mr);
		assert_int_equal(error, 0);
		if (region->part.fd >= 0)
			close(region->part.fd);
		region->mr = NULL;
		indirect.alive--;
		return 0;
	}
	fail_msg("no such region");
	return EINVAL;
}

static bool indirect_can_join(struct ibv_context *context)
{
	(void)context;
	return !indirect.unavailable;
}

static struct ibv_qp *indirect_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
					 uint32_t count)
{
	errno = indirect.qp_error ? indirect.qp_error : EINVAL;
	if (indirect.qp_error || count > indirect.most)
		return NULL;
	return indirect.real->create_qp(pd, attr);
}

static struct pier_provider_part indirect_part_of(const struct ibv_pd *pd,
						  const struct ibv_sge *entry)
{
	struct pier_provider_part part = { .fd = -1 };

	for (size_t i = 0; i < INDIRECT_REGIONS; i++) {
		struct indirect_region *region = &indirect.regions[i];
		uint64_t skipped = entry->addr - region->iova;

		if (!region->mr || region->mr->lkey != entry->lkey)
			continue;
		assert_ptr_equal(region->mr->pd, pd);
		assert_true(skipped + entry->length <= region->part.length);
		region->joined = true;
		part = region->part;
		part.length = entry->length;
		part.offset += skipped;
		if (part.fd < 0)
			part.addr = (char *)part.addr + skipped;
		return part;
	}
	fail_msg("no region has the key %u", entry->lkey);
	return part;
}

/* The request: it writes no byte, or fails. */
static int indirect_post(struct ibv_qp *qp, const struct ibv_mr *mr)
{
	struct ibv_sge byte = { .length = 1, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &byte,
		.num_sge = indirect.bad_completion,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma.rkey = indirect.bad_completion ? ~mr->rkey : mr->rkey,
	};

	return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_mr *indirect_join(struct ibv_qp *qp, const struct ibv_sge *entries,
				    uint32_t count, int access)
{
	struct pier_provider_part parts[INDIRECT_REGIONS];
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_mr *mr;

	assert_int_equal(indirect.real->query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	assert_int_equal(attr.qp_state, IBV_QPS_RTS);
	assert_in_range(count, 2, indirect.most);
	errno = indirect.join_error;
	if (indirect.join_error)
		return NULL;
	for (uint32_t i = 0; i < count; i++)
		parts[i] = indirect_part_of(qp->pd, &entries[i]);
	mr = indirect.real->reg_parts(qp->pd, parts, count, 0, access, NULL);
	assert_non_null(mr);
	indirect.last_count = count;
	indirect.joins++;
	indirect.keys++;
	assert_int_equal(indirect_post(qp, mr), 0);
	return mr;
}

static int indirect_unjoin(struct ibv_mr *mr)
{
	if (indirect.unjoin_error)
		return indirect.unjoin_error;
	indirect.keys--;
	return indirect.real->dereg_mr(mr);
}

static inline void indirect_start(struct pier_device *device)
{
	memset(&indirect, 0, sizeof(indirect));
	indirect.real = device->provider;
	indirect.most = INDIRECT_REGIONS;
	indirect.provider = *indirect.real;
	indirect.provider.reg_parts = NULL;
	indirect.provider.max_parts = indirect.provider.max_key = 0;
	indirect.provider.reg_mr = indirect_reg_mr;
	indirect.provider.reg_dmabuf_mr = indirect_reg_dmabuf_mr;
	indirect.provider.dereg_mr = indirect_dereg_mr;
	indirect.provider.can_join = indirect_can_join;
	indirect.provider.create_join_qp = indirect_create_qp;
	indirect.provider.join_mrs = indirect_join;
	indirect.provider.unjoin_mrs = indirect_unjoin;
	device->provider = &indirect.provider;
}

/* After the last region. */
static inline void indirect_stop(struct pier_device *device)
{
	device->provider = indirect.real;
	assert_int_equal(indirect.alive, 0);
	assert_int_equal(indirect.keys, 0);
}

#endif
