/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_PEERS_H
#define PIER_SOFT_PEERS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Which addresses this end may call by TCP. An endpoint may come from a stranger, who
 * could otherwise make this process connect to any port of any reachable host.
 */

enum {
	SOFT_MAX_NETWORKS = 64,
	/* Lower ports are those of system services; no listener of soft0 has one. */
	SOFT_MIN_PORT = 1024
};

/* IPv4 as ::ffff:a.b.c.d, whose prefix is 96 bits longer. */
struct soft_network {
	struct in6_addr address;
	uint8_t bits;
};

struct soft_peers {
	bool attached; /* the networks of this host's interfaces */
	bool loopback; /* `attached` includes the loopback addresses */
	uint32_t count;
	struct soft_network networks[SOFT_MAX_NETWORKS];
};

void pier_soft_map_v4(struct in_addr v4, struct in6_addr *ret_v6);
/* IPv4 as ::ffff:a.b.c.d. */
bool pier_soft_parse_ip(const char *text, struct in6_addr *ret_address);
bool pier_soft_is_loopback(const struct in6_addr *address);
/*
 * Addresses and networks (ADDRESS/BITS) separated by commas, and the word "attached";
 * "none" is the empty list. 0; -EINVAL with a sentence.
 */
int pier_soft_parse_peers(const char *text, struct soft_peers *ret_peers);
bool pier_soft_calls_anybody(const struct soft_peers *peers);
/* Reads the present interfaces from the kernel. */
bool pier_soft_may_call(const struct soft_peers *peers, const struct in6_addr *address,
			uint16_t port);

#endif
