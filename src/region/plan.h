/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_PLAN_H
#define PIER_REGION_PLAN_H

#include "mr.h"

/*
 * Plan a registration by attributes that were read: make a region, find the owner of each
 * range and keep it, settle the region's addresses, check every range against the
 * device's limits, and choose how the keys come about. Calls no driver of the NIC.
 *
 * base        the region that this will be a sub-region of, or NULL
 * ret_region  also written on an error, once the region exists: for pier_free_region(),
 *             which accepts it in any state
 *
 * Errors: -ECHILD the PD is the parent's; -EINVAL an address, length, source or access is
 * not possible; -ERANGE a range leaves its buffer or allocation; -ENOMEM; -EBADF, -E2BIG,
 * -EOPNOTSUPP as of pier_mr_reg_attr(); those of the backends that are asked.
 */
int pier_plan_region(struct pier_pd *pd, const struct pier_mr_attr *attr,
		     struct pier_mr *base, struct pier_mr **ret_region);

/*
 * The kernel's rules for registrations. They are checked before the system call, so
 * that the sentence can name the value and the rule. Each function returns 0 or the
 * kernel's errno, negated. If several rules are broken, it is the errno of the rule that
 * the kernel checks first.
 */

int pier_check_host(const struct pier_device *device, uint64_t address, uint64_t length,
		    uint64_t iova, uint32_t access);
int pier_check_dmabuf(const struct pier_device *device, uint64_t offset, uint64_t length,
		      uint64_t iova, int fd, uint32_t access);

/*
 * pier_check_dmabuf() without system calls. It examines the fd only if something else is
 * wrong, so that the error is that of the first rule of the kernel that is broken.
 */
int pier_check_dmabuf_numbers(const struct pier_device *device, uint64_t offset,
			      uint64_t length, uint64_t iova, int fd, uint32_t access);

/* Refuse dma-bufs on a device that cannot register them: -EOPNOTSUPP. */
int pier_fail_no_dmabuf(const struct pier_device *device);

#endif
