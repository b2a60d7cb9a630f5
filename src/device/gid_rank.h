/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_GID_RANK_H
#define PIER_DEVICE_GID_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

enum {
	/* The GIDs of a port that are worth offering to a peer. */
	PIER_GID_OFFERS = 10,
};

/* The usable GIDs of a port, the best first. */
struct pier_gid_list {
	uint32_t count;
	struct ibv_gid_entry entries[PIER_GID_OFFERS];
};

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

#endif
