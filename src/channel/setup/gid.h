/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_GID_H
#define PIER_CHANNEL_SETUP_GID_H

#include <stddef.h>

#include <infiniband/verbs.h>

#include "provider/provider.h"

/* The range of sgid_index of struct ibv_global_route, which has 8 bits. */
enum {
	PIER_GID_INDEXES = 256
};

/*
 * Choose the GID that a RoCE channel sends from. A GID stands for a source address and
 * a packet format. Both ends must use the same format. In this order:
 *
 *	RoCE v2 of an IPv4 address, RoCE v2 of a global or unique local IPv6
 *	address, RoCE v2 link-local, RoCE v1, anything else.
 *
 * The first of equals. Returns an index into `entries`, or -1 if none is usable.
 */
int pier_choose_gid(const struct ibv_gid_entry *entries, size_t count);

/*
 * Read a port's table as far as a route can name its entries (rxe has 1024), and choose
 * a GID.
 *
 * Errors: -EADDRNOTAVAIL no usable GID; -ENOMEM; others of query_gid.
 */
int pier_find_gid(const struct pier_provider *provider, struct ibv_context *context,
		  uint8_t port, int table_length, struct ibv_gid_entry *ret_entry);

#endif
