/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ADDRESS_H
#define PIER_SOFT_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/*
 * Which addresses this end may call by TCP. An endpoint may come from a stranger, who
 * could otherwise make this process connect to any port of any reachable host.
 */

enum {
	SOFT_MAX_NETWORKS = 64,
	/* Lower ports are those of system services; no listener of soft0 has one. */
	SOFT_MIN_PORT = 1024
};

struct in6_addr;

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

/* IPv4 as ::ffff:a.b.c.d. */
bool pier_soft_parse_ip(const char *text, struct in6_addr *ret_address);

bool pier_soft_is_loopback(const struct in6_addr *address);

struct ifaddrs;

/* Of an interface that is up. False: it has none, or is the loopback. */
bool pier_soft_find_interface_address(const struct ifaddrs *interface,
				      struct in6_addr *ret_address);

/*
 * Addresses and networks (ADDRESS/BITS) separated by commas, and the word "attached";
 * "none" is the empty list. 0; -EINVAL with a sentence.
 */
int pier_soft_parse_peers(const char *text, struct soft_peers *ret_peers);

bool pier_soft_calls_anybody(const struct soft_peers *peers);

/* Reads the present interfaces from the kernel. */
bool pier_soft_may_call(const struct soft_peers *peers, const struct in6_addr *address,
			uint16_t port);

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

/* The rest of an endpoint, after GID and QPN: a queue pair's secret, and where to call.
 */

struct soft_address {
	uint8_t secret[SOFT_SECRET_SIZE];
	uint16_t port;
	uint32_t count;
	struct in6_addr addresses[SOFT_MAX_ADDRESSES]; /* IPv4 as v4-mapped */
};

/* Whether an address can be that of one host, and not this one by another name. */
bool pier_soft_is_callable(const struct in6_addr *address);

int pier_soft_pack_address(const struct soft_address *address, uint8_t *ret_bytes,
			   size_t size);
int pier_soft_unpack_address(const uint8_t *bytes, size_t length,
			     struct soft_address *ret_address);

#endif
