/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_GID_TABLE_H
#define PIER_DEVICE_GID_TABLE_H

#include "device.h"

/*
 * By preference; the last is best. A GID stands for a source address and a packet
 * format. Both ends must use the same format.
 */
enum pier_gid_rank {
	PIER_GID_UNUSABLE,
	PIER_GID_OTHER,
	PIER_GID_V1,
	PIER_GID_V2_LINK_LOCAL,
	PIER_GID_V2_IPV6,
	PIER_GID_V2_IPV4,
};

enum pier_gid_rank pier_rank_gid(const struct ibv_gid_entry *entry);

/* ::ffff:a.b.c.d, as the kernel writes the GID of an IPv4 address. */
bool pier_gid_is_ipv4(const uint8_t gid[16]);

/* List entries by rank; those of one rank keep their order. */
void pier_rank_gids(const struct ibv_gid_entry *entries, uint32_t count,
		    struct pier_gid_list *ret_list);

enum {
	/* The range of sgid_index of struct ibv_global_route, which has 8 bits. */
	PIER_GID_INDEXES = 256,
};

/*
 * Find the GIDs that a RoCE channel can send from, in a port's table as far as a route
 * can name its entries (rxe has 1024). An entry that cannot be read is skipped. Entries
 * of interfaces that this network namespace lacks count only if there are no others.
 *
 * The list is read once, and again after the device has reported a change. If pier does
 * not read the device's events, it is read each time.
 *
 * length    of the port's table
 * ret_gids  at least one GID; pass it to pier_drop_gids(). Threads: any
 *
 * Errors: -EADDRNOTAVAIL no usable GID; -ENOMEM; others of query_gid if no entry could be
 * read.
 */
int pier_list_gids(struct pier_device *device, uint8_t port, int length,
		   struct pier_shared_gids **ret_gids);

/* pier_list_gids() with another root of sysfs, and without the list that is kept. */
int pier_read_gids(const char *sysfs, const struct pier_device *device, uint8_t port,
		   int length, struct pier_gid_list *ret_list);

#endif
