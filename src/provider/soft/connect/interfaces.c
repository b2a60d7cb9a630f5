/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "interfaces.h"
#include "listen.h"
#include "core/error.h"
#include "peers.h"
#include "provider/soft/limits.h"

/* "::" or "0.0.0.0": valid for listening, but not for calling. */
static bool is_any(const struct in6_addr *address)
{
	return IN6_IS_ADDR_UNSPECIFIED(address) ||
	       (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr32[3] == 0);
}

/* A link-local address is of no use on another host. */
static bool address_of(const struct ifaddrs *interface, struct in6_addr *ret_address)
{
	if (!interface->ifa_addr || (interface->ifa_flags & IFF_LOOPBACK) ||
	    !(interface->ifa_flags & IFF_UP))
		return false;
	if (interface->ifa_addr->sa_family == AF_INET) {
		struct sockaddr_in v4;

		memcpy(&v4, interface->ifa_addr, sizeof(v4));
		pier_soft_map_v4(v4.sin_addr, ret_address);
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

static int list_interfaces(struct soft_listeners *listeners, bool v4_only)
{
	struct in6_addr *ret_address;
	struct ifaddrs *interfaces;

	if (getifaddrs(&interfaces) < 0)
		return pier_fail(errno, "soft0: cannot list the network interfaces");
	for (const struct ifaddrs *one = interfaces; one; one = one->ifa_next) {
		if (listeners->count == SOFT_MAX_ADDRESSES)
			break;
		ret_address = &listeners->addresses[listeners->count];
		if (address_of(one, ret_address) &&
		    (!v4_only || IN6_IS_ADDR_V4MAPPED(ret_address)))
			listeners->count++;
	}
	freeifaddrs(interfaces);
	return 0;
}

static const char *read_setting(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value ? value : NULL;
}

/* By default a process that listens may call the networks of this host's interfaces. */
static int choose_peers(struct soft_listeners *listeners, bool loopback)
{
	const char *wanted = read_setting("PIER_SOFT_PEERS");
	int error = 0;

	listeners->peers = (struct soft_peers){ .attached = listeners->tcp };
	if (wanted)
		error = pier_soft_parse_peers(wanted, &listeners->peers);
	listeners->peers.loopback = loopback;
	return error;
}

int pier_soft_choose_addresses(struct soft_listeners *listeners,
			       struct in6_addr *ret_bind)
{
	const char *wanted = read_setting("PIER_SOFT_ADDRESS");

	listeners->tcp = wanted && strcmp(wanted, "none") != 0;
	listeners->count = 0;
	if (!listeners->tcp)
		return choose_peers(listeners, false);
	if (!pier_soft_parse_ip(wanted, ret_bind))
		return pier_fail(EINVAL,
				 "soft0: PIER_SOFT_ADDRESS=%s is no IPv4 or IPv6 "
				 "address, nor \"none\"",
				 wanted);
	if (is_any(ret_bind)) {
		int error = list_interfaces(listeners, IN6_IS_ADDR_V4MAPPED(ret_bind));

		return error ? error : choose_peers(listeners, false);
	}
	listeners->addresses[listeners->count++] = *ret_bind;
	return choose_peers(listeners, pier_soft_is_loopback(ret_bind));
}
