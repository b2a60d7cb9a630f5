/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_ATTR_H
#define PIER_REGION_ATTR_H

#include <pier/mr.h>

/*
 * Copy the attributes of a caller, of whatever size, and check each of them.
 *
 * Errors: -EINVAL NULL, or a value that is not possible.
 */
int pier_read_mr_attr(const struct pier_mr_attr *attr, struct pier_mr_attr *ret_attr);

/* Errors: -EINVAL not one of enum pier_policy. */
int pier_check_policy(enum pier_policy policy);

#endif
