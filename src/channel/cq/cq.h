/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_CQ_CQ_H
#define PIER_CHANNEL_CQ_CQ_H

#include "members.h"

/*
 * pier_cq_create() and pier_cq_destroy() for an owner other than the caller, for whose
 * channels alone the queue is.
 *
 * owner  the parent in the table of objects
 */
int pier_make_cq(struct pier_pd *pd, const struct pier_cq_attr *attr,
		 const struct pier_object *owner, struct pier_cq **ret_cq);
int pier_end_cq(struct pier_cq *cq);

/*
 * Check that channels of the PD and of that parent may use the queue. Errors: -ECHILD,
 * -EINVAL it is of another device; -EBUSY it belongs to a group.
 */
int pier_check_cq(const struct pier_pd *pd, const struct pier_cq *cq,
		  const struct pier_object *parent);

#endif
