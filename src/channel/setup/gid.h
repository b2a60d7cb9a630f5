/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_GID_H
#define PIER_CHANNEL_SETUP_GID_H

#include <stddef.h>

#include <infiniband/verbs.h>

#include "provider/provider.h"

/* As many as struct ibv_global_route can name: its sgid_index has 8 bits. */
enum {
	PIER_GID_INDEXES = 256
};

/*
 * Which GID a RoCE channel sends from. A GID names a source address and a
 * packet format; both ends must use the same format and routable ones first:
 *
 *	RoCE v2 of an IPv4 address, RoCE v2 of a global or unique local IPv6
 *	address, RoCE v2 link-local, RoCE v1, anything else.
 *
 * Among equals the first. Returns an index into `entries`, or -1 if none is
 * usable.
 */
int pier_choose_gid(const struct ibv_gid_entry *entries, size_t count);

/*
 * Reads a port's table, as far as a route can name its entries (rxe has 1024),
 * and chooses from it.
 *
 * Errors: -EADDRNOTAVAIL no usable GID; -ENOMEM; others of query_gid.
 */
int pier_find_gid(const struct pier_provider *provider, struct ibv_context *context,
		  uint8_t port, int table_length, struct ibv_gid_entry *ret_entry);

#endif
