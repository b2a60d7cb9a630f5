/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <string.h>

#include "gid.h"
#include "peers.h"
#include "provider/soft/link/auth.h"

/*
 * fd00::/8 is for addresses that are random and thereby unique (RFC 4193). Bytes 6 and 7
 * are 0 and the rest is random, or they are random and not 0: then the IPv4 address and
 * the port follow, in network byte order, and 2 more random bytes.
 */
static const uint8_t gid_prefix[6] = { 0xfd, 0, 'p', 'i', 'e', 'r' };

bool pier_soft_make_gid(union ibv_gid *ret_gid)
{
	memcpy(ret_gid->raw, gid_prefix, sizeof(gid_prefix));
	memset(ret_gid->raw + 6, 0, 2);
	return pier_soft_random(ret_gid->raw + 8, 8);
}

bool pier_soft_make_callable_gid(const struct in6_addr *address, uint16_t port,
				 union ibv_gid *ret_gid)
{
	uint16_t wire = htons(port);

	if (!pier_soft_make_gid(ret_gid) || !pier_soft_random(ret_gid->raw + 6, 2))
		return false;
	ret_gid->raw[7] |= 1;
	memcpy(ret_gid->raw + 8, address->s6_addr + 12, 4);
	memcpy(ret_gid->raw + 12, &wire, 2);
	return true;
}

bool pier_soft_find_address(const union ibv_gid *gid, struct in6_addr *ret_address,
			    uint16_t *ret_port)
{
	struct in_addr v4;
	uint16_t port;

	if (!pier_soft_is_gid(gid) || !(gid->raw[7] & 1))
		return false;
	memcpy(&v4, gid->raw + 8, sizeof(v4));
	memcpy(&port, gid->raw + 12, sizeof(port));
	pier_soft_map_v4(v4, ret_address);
	*ret_port = ntohs(port);
	return true;
}

bool pier_soft_is_gid(const union ibv_gid *gid)
{
	return memcmp(gid->raw, gid_prefix, sizeof(gid_prefix)) == 0;
}
