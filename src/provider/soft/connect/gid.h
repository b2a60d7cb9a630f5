/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_GID_H
#define PIER_SOFT_GID_H

#include <stdbool.h>

#include <infiniband/verbs.h>

struct in6_addr;

/* False: no random numbers. */
bool pier_soft_make_gid(union ibv_gid *ret_gid);
/*
 * A GID that tells a peer where to call: the address, which is IPv4 as ::ffff:a.b.c.d,
 * and the port in host byte order. False: no random numbers.
 */
bool pier_soft_make_callable_gid(const struct in6_addr *address, uint16_t port,
				 union ibv_gid *ret_gid);
/* The address in a GID. False: it has none. */
bool pier_soft_find_address(const union ibv_gid *gid, struct in6_addr *ret_address,
			    uint16_t *ret_port);
/* Whether the GID has the form of those that are made here. */
bool pier_soft_is_gid(const union ibv_gid *gid);

#endif
