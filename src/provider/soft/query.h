/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_QUERY_H
#define PIER_SOFT_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * What the device is and can do. Each function is that of libibverbs with its name: 0 or
 * a positive errno. Any thread.
 */

int pier_soft_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr);
/*
 * `size`: of the caller's struct, which may be that of an older or a newer libibverbs.
 * Members that soft0 does not have are 0.
 */
int pier_soft_query_device_ex(struct ibv_context *context,
			      const struct ibv_query_device_ex_input *input,
			      struct ibv_device_attr_ex *ret_attr, size_t size);
/* EINVAL: not port 1. */
int pier_soft_query_port(struct ibv_context *context, uint8_t port,
			 struct ibv_port_attr *ret_attr);
/* `size` as above. */
int pier_soft_query_sized_port(struct ibv_context *context, uint8_t port,
			       struct ibv_port_attr *ret_attr, size_t size);
/* EINVAL: not port 1; ENODATA: not index 0. */
int pier_soft_query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
			struct ibv_gid_entry *ret_entry);
/*
 * The GUID of the device of plain verbs, in network byte order: the same in all processes
 * of a user on this kernel, until it boots again.
 */
__be64 pier_soft_host_guid(void);
/* The clock of completion timestamps, in tv_nsec alone as mlx5 does. */
int pier_soft_query_values(struct ibv_context *context, struct ibv_values_ex *values);

#endif
