/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "attr.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/page.h"

static_assert(sizeof(struct pier_mr_attr) ==
		      offsetof(struct pier_mr_attr, ordering) + sizeof(uint32_t),
	      "no padding at the end, where a new field would not change the size");

int pier_check_policy(enum pier_policy policy)
{
	if (policy >= PIER_POLICY_DIRECT && policy <= PIER_POLICY_BOUNCE)
		return 0;
	return pier_fail(EINVAL, "policy %d: not one of enum pier_policy", (int)policy);
}

static int check_choices(const struct pier_mr_attr *attr)
{
	if (attr->addressing < PIER_ADDRESSING_VIRTUAL ||
	    attr->addressing > PIER_ADDRESSING_IOVA)
		return pier_fail(EINVAL, "addressing %d: not one of enum pier_addressing",
				 (int)attr->addressing);
	if (attr->split < PIER_SPLIT_SEAMS || attr->split > PIER_SPLIT_NEVER)
		return pier_fail(EINVAL, "split %d: not one of enum pier_split",
				 (int)attr->split);
	if (attr->mapping < PIER_MAPPING_AUTO || attr->mapping > PIER_MAPPING_PCIE)
		return pier_fail(EINVAL, "mapping %d: not one of enum pier_mapping",
				 (int)attr->mapping);
	if (attr->ordering < PIER_ORDERING_AUTO ||
	    attr->ordering > PIER_ORDERING_COMPLETIONS)
		return pier_fail(EINVAL, "ordering %d: not one of enum pier_ordering",
				 (int)attr->ordering);
	if (attr->ordering == PIER_ORDERING_STRICT &&
	    (attr->access & PIER_ACCESS_RELAXED_ORDERING))
		return pier_fail(EINVAL, "ordering is strict, and access has "
					 "PIER_ACCESS_RELAXED_ORDERING");
	return pier_check_policy(attr->policy);
}

static int check_attr(const struct pier_mr_attr *attr)
{
	uint64_t page = pier_host_page();

	if (!attr->ranges || attr->range_count == 0 ||
	    attr->range_count > PIER_MR_PARTS_MAX)
		return pier_fail(EINVAL, "%u ranges at %p: a region has 1 to %d",
				 attr->range_count, (const void *)attr->ranges,
				 PIER_MR_PARTS_MAX);
	if (attr->page_size &&
	    (attr->page_size < page || (attr->page_size & (attr->page_size - 1))))
		return pier_fail(EINVAL,
				 "page_size %" PRIu64 " is not a power of two from the "
				 "host's page of %" PRIu64 " on",
				 attr->page_size, page);
	return check_choices(attr);
}

int pier_read_mr_attr(const struct pier_mr_attr *attr, struct pier_mr_attr *ret_attr)
{
	struct pier_mr_attr known;
	int error;

	pier_mr_attr_init(&known);
	if (!attr)
		return pier_fail(EINVAL, "region attributes: attr is NULL");
	error = pier_read_extensible("region attributes", "pier_mr_attr_init()", attr,
				     offsetof(struct pier_mr_attr, mapping),
				     sizeof(known), &known);
	if (!error)
		error = check_attr(&known);
	if (!error)
		*ret_attr = known;
	return error;
}
