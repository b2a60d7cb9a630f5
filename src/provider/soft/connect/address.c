/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>

#include "address.h"
#include "core/error.h"
#include "core/wire.h"
#include "provider/provider.h"
#include "provider/soft/link/auth.h"

enum {
	V4_PREFIX = 96, /* of ::ffff:0:0/96 (RFC 4291, section 2.5.5.2) */
	V6_BITS = 128
};

static void map_v4(struct in_addr v4, struct in6_addr *ret_v6)
{
	memset(ret_v6, 0, sizeof(*ret_v6));
	ret_v6->s6_addr[10] = ret_v6->s6_addr[11] = 0xff;
	memcpy(ret_v6->s6_addr + 12, &v4, sizeof(v4));
}

bool pier_soft_parse_ip(const char *text, struct in6_addr *ret_address)
{
	struct in_addr v4;

	if (inet_pton(AF_INET6, text, ret_address) == 1)
		return true;
	if (inet_pton(AF_INET, text, &v4) != 1)
		return false;
	map_v4(v4, ret_address);
	return true;
}

bool pier_soft_is_loopback(const struct in6_addr *address)
{
	return IN6_IS_ADDR_LOOPBACK(address) ||
	       (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr[12] == 127);
}

/* Decimal digits only, at most `max`. */
static bool parse_bits(const char *text, unsigned int max, unsigned int *ret_bits)
{
	size_t length = strspn(text, "0123456789");
	unsigned int bits = 0;

	if (length == 0 || length > 3 || text[length])
		return false;
	for (size_t i = 0; i < length; i++)
		bits = bits * 10 + (unsigned int)(text[i] - '0');
	*ret_bits = bits;
	return bits <= max;
}

static bool parse_network(char *text, struct soft_network *ret_network)
{
	char *slash = strchr(text, '/');
	unsigned int first, bits;

	if (slash)
		*slash = '\0';
	if (!pier_soft_parse_ip(text, &ret_network->address))
		return false;
	/* In the IPv6 form of a mapped address the prefix counts from the front. */
	first = strchr(text, ':') ? 0 : V4_PREFIX;
	bits = V6_BITS - first;
	if (slash && !parse_bits(slash + 1, bits, &bits))
		return false;
	ret_network->bits = (uint8_t)(first + bits);
	/* ::ffff:10.0.0.0/8 would be all of ::/8. */
	return !IN6_IS_ADDR_V4MAPPED(&ret_network->address) ||
	       ret_network->bits >= V4_PREFIX;
}

static bool parse_peer(char *text, struct soft_peers *peers)
{
	if (strcmp(text, "attached") == 0) {
		peers->attached = true;
		return true;
	}
	return peers->count < SOFT_MAX_NETWORKS &&
	       parse_network(text, &peers->networks[peers->count++]);
}

int pier_soft_parse_peers(const char *text, struct soft_peers *ret_peers)
{
	struct soft_peers peers = { 0 };
	const char *rest = text;
	char one[64];

	if (strcmp(text, "none") == 0) {
		*ret_peers = peers;
		return 0;
	}
	for (;;) {
		size_t length = strcspn(rest, ",");

		if (length >= sizeof(one))
			break;
		memcpy(one, rest, length);
		one[length] = '\0';
		if (!parse_peer(one, &peers))
			break;
		if (!rest[length]) {
			*ret_peers = peers;
			return 0;
		}
		rest += length + 1;
	}
	return pier_fail(EINVAL,
			 "soft0: PIER_SOFT_PEERS=%s is neither \"none\" nor a list of up "
			 "to %d IP addresses, networks (ADDRESS/BITS) and \"attached\", "
			 "separated by commas",
			 text, SOFT_MAX_NETWORKS);
}

static bool is_in_network(const struct soft_network *network,
			  const struct in6_addr *address)
{
	unsigned int whole = network->bits / 8, rest = network->bits % 8;
	uint8_t mask = (uint8_t)(0xff00 >> rest);

	if (memcmp(&network->address, address, whole) != 0)
		return false;
	return rest == 0 ||
	       ((network->address.s6_addr[whole] ^ address->s6_addr[whole]) & mask) == 0;
}

static unsigned int count_ones(const void *bytes, size_t length)
{
	const uint8_t *byte = bytes;
	unsigned int ones = 0;

	for (size_t i = 0; i < length; i++)
		ones += (unsigned int)__builtin_popcount(byte[i]);
	return ones;
}

bool pier_soft_find_interface_address(const struct ifaddrs *interface,
				      struct in6_addr *ret_address)
{
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (!interface->ifa_addr || (interface->ifa_flags & IFF_LOOPBACK) ||
	    !(interface->ifa_flags & IFF_UP))
		return false;
	if (interface->ifa_addr->sa_family == AF_INET) {
		memcpy(&v4, interface->ifa_addr, sizeof(v4));
		map_v4(v4.sin_addr, ret_address);
		return true;
	}
	if (interface->ifa_addr->sa_family != AF_INET6)
		return false;
	memcpy(&v6, interface->ifa_addr, sizeof(v6));
	*ret_address = v6.sin6_addr;
	return true;
}

static bool network_of(const struct ifaddrs *interface, struct soft_network *ret_network)
{
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;

	if (!interface->ifa_netmask ||
	    !pier_soft_find_interface_address(interface, &ret_network->address))
		return false;
	if (interface->ifa_addr->sa_family == AF_INET) {
		memcpy(&v4, interface->ifa_netmask, sizeof(v4));
		ret_network->bits = (uint8_t)(V4_PREFIX + count_ones(&v4.sin_addr, 4));
	} else {
		memcpy(&v6, interface->ifa_netmask, sizeof(v6));
		ret_network->bits = (uint8_t)count_ones(&v6.sin6_addr, 16);
	}
	return true;
}

static bool is_attached(const struct in6_addr *address)
{
	struct soft_network network;
	struct ifaddrs *interfaces;
	bool found = false;

	if (getifaddrs(&interfaces) < 0)
		return false;
	for (const struct ifaddrs *one = interfaces; one && !found; one = one->ifa_next)
		found = network_of(one, &network) && is_in_network(&network, address);
	freeifaddrs(interfaces);
	return found;
}

bool pier_soft_calls_anybody(const struct soft_peers *peers)
{
	return peers->attached || peers->count > 0;
}

bool pier_soft_may_call(const struct soft_peers *peers, const struct in6_addr *address,
			uint16_t port)
{
	if (port < SOFT_MIN_PORT)
		return false;
	for (uint32_t i = 0; i < peers->count; i++) {
		if (is_in_network(&peers->networks[i], address))
			return true;
	}
	if (!peers->attached)
		return false;
	return pier_soft_is_loopback(address) ? peers->loopback : is_attached(address);
}

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
	map_v4(v4, ret_address);
	*ret_port = ntohs(port);
	return true;
}

bool pier_soft_is_gid(const union ibv_gid *gid)
{
	return memcmp(gid->raw, gid_prefix, sizeof(gid_prefix)) == 0;
}

/*
 * The address on the wire: version (1 byte), count (1), port (2, little-endian), secret
 * (16), then `count` addresses of 16 bytes each, IPv4 ones as ::ffff:a.b.c.d.
 */
enum {
	/*
	 * The version of the handshake and of everything after it; the form of the
	 * address is that of version 1.
	 */
	ADDRESS_VERSION = 4,
	FIXED_SIZE = 20,
	ONE_SIZE = 16
};

_Static_assert(FIXED_SIZE + SOFT_MAX_ADDRESSES * ONE_SIZE <= PIER_PROVIDER_ADDRESS_MAX,
	       "must fit an endpoint");

int pier_soft_pack_address(const struct soft_address *address, uint8_t *ret_bytes,
			   size_t size)
{
	size_t length = FIXED_SIZE + (size_t)address->count * ONE_SIZE;

	if (size < length)
		return pier_fail(ENOSPC,
				 "soft0: the address has %zu bytes, the buffer %zu",
				 length, size);
	ret_bytes[0] = ADDRESS_VERSION;
	ret_bytes[1] = (uint8_t)address->count;
	pier_put_le16(ret_bytes + 2, address->port);
	memcpy(ret_bytes + 4, address->secret, SOFT_SECRET_SIZE);
	memcpy(ret_bytes + FIXED_SIZE, address->addresses,
	       (size_t)address->count * ONE_SIZE);
	return (int)length;
}

/* A connection to 0.0.0.0 goes to this host (ip(7): INADDR_ANY). */
bool pier_soft_is_callable(const struct in6_addr *one)
{
	const uint8_t *v4 = one->s6_addr + 12;

	if (IN6_IS_ADDR_V4MAPPED(one))
		return v4[0] != 0 && v4[0] < 224;
	return !IN6_IS_ADDR_UNSPECIFIED(one) && !IN6_IS_ADDR_MULTICAST(one) &&
	       !IN6_IS_ADDR_LINKLOCAL(one);
}

int pier_soft_unpack_address(const uint8_t *bytes, size_t length,
			     struct soft_address *ret_address)
{
	struct soft_address address = { 0 };

	if (length < 1)
		return pier_fail(EINVAL, "soft0: the peer's address is empty");
	if (bytes[0] != ADDRESS_VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "soft0: the peer's address has version %u, this is %d: "
				 "both ends need the same version of pier",
				 bytes[0], ADDRESS_VERSION);
	if (length < FIXED_SIZE || bytes[1] > SOFT_MAX_ADDRESSES ||
	    length != FIXED_SIZE + (size_t)bytes[1] * ONE_SIZE)
		return pier_fail(EINVAL,
				 "soft0: the peer's address of %zu bytes is "
				 "malformed",
				 length);
	address.count = bytes[1];
	address.port = pier_get_le16(bytes + 2);
	memcpy(address.secret, bytes + 4, SOFT_SECRET_SIZE);
	memcpy(address.addresses, bytes + FIXED_SIZE, (size_t)address.count * ONE_SIZE);
	for (uint32_t i = 0; i < address.count; i++) {
		if (address.port == 0 || !pier_soft_is_callable(&address.addresses[i]))
			return pier_fail(EINVAL, "soft0: the peer's address names a port "
						 "or host that nobody can have");
	}
	*ret_address = address;
	return 0;
}
