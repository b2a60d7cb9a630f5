/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "soft.h"

static void map_v4(struct in_addr v4, struct in6_addr *ret_v6)
{
	memset(ret_v6, 0, sizeof(*ret_v6));
	ret_v6->s6_addr[10] = ret_v6->s6_addr[11] = 0xff;
	memcpy(ret_v6->s6_addr + 12, &v4, sizeof(v4));
}

static bool parse(const char *text, struct in6_addr *ret_address)
{
	struct in_addr v4;

	if (inet_pton(AF_INET6, text, ret_address) == 1)
		return true;
	if (inet_pton(AF_INET, text, &v4) != 1)
		return false;
	map_v4(v4, ret_address);
	return true;
}

/* "::" or "0.0.0.0": where to listen, but nowhere to call. */
static bool is_any(const struct in6_addr *address)
{
	return IN6_IS_ADDR_UNSPECIFIED(address) ||
	       (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr32[3] == 0);
}

/* Link-local addresses mean nothing on another host. */
static bool address_of(const struct ifaddrs *interface, struct in6_addr *ret_address)
{
	if (!interface->ifa_addr || (interface->ifa_flags & IFF_LOOPBACK) ||
	    !(interface->ifa_flags & IFF_UP))
		return false;
	if (interface->ifa_addr->sa_family == AF_INET) {
		struct sockaddr_in v4;

		memcpy(&v4, interface->ifa_addr, sizeof(v4));
		map_v4(v4.sin_addr, ret_address);
		return true;
	}
	if (interface->ifa_addr->sa_family == AF_INET6) {
		struct sockaddr_in6 v6;

		memcpy(&v6, interface->ifa_addr, sizeof(v6));
		*ret_address = v6.sin6_addr;
		return !IN6_IS_ADDR_LINKLOCAL(ret_address);
	}
	return false;
}

static int list_interfaces(struct soft_listeners *listeners)
{
	struct ifaddrs *interfaces;

	if (getifaddrs(&interfaces) < 0)
		return pier_fail(errno, "soft0: cannot list the network interfaces");
	for (const struct ifaddrs *one = interfaces; one; one = one->ifa_next) {
		if (listeners->count == SOFT_MAX_ADDRESSES)
			break;
		if (address_of(one, &listeners->addresses[listeners->count]))
			listeners->count++;
	}
	freeifaddrs(interfaces);
	return 0;
}

int pier_soft_choose_addresses(struct soft_listeners *listeners,
			       struct in6_addr *ret_bind, bool *ret_tcp)
{
	const char *wanted = secure_getenv("PIER_SOFT_ADDRESS");

	*ret_tcp = true;
	*ret_bind = in6addr_any;
	listeners->count = 0;
	if (wanted && strcmp(wanted, "none") == 0) {
		*ret_tcp = false;
		return 0;
	}
	if (wanted && *wanted && !parse(wanted, ret_bind))
		return pier_fail(EINVAL,
				 "soft0: PIER_SOFT_ADDRESS=%s is no IPv4 or IPv6 "
				 "address, nor \"none\"",
				 wanted);
	if (is_any(ret_bind))
		return list_interfaces(listeners);
	listeners->addresses[listeners->count++] = *ret_bind;
	return 0;
}
