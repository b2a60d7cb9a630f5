/* SPDX-License-Identifier: BSD-3-Clause */
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "gid_netdev.h"
#include "gid_rank.h"
#include "sysfs.h"

/*
 * The kernel lists the GIDs of all network namespaces: with an RDMA device in shared mode
 * (rdma-system(8)) a container sees those of the host and of other containers. Neither
 * the name nor the index of an interface is unique across namespaces, and each container
 * may have an "eth0" of index 2. So the name must exist here, have that index, and have
 * the GID's address.
 */

/* print_ndev() in drivers/infiniband/core/sysfs.c; EINVAL if the entry is empty. */
static bool read_interface(const char *sysfs, const char *nic,
			   const struct ibv_gid_entry *entry, char ret_name[IF_NAMESIZE])
{
	return pier_read_sysfs(ret_name, IF_NAMESIZE,
			       "%s/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u",
			       sysfs, nic, entry->port_num, entry->gid_index) &&
	       !strchr(ret_name, '/');
}

/* class/net shows the interfaces of one namespace. Index 0: the entry does not say. */
static bool has_interface(const char *sysfs, const char *name, uint32_t index)
{
	char number[16];

	return pier_read_sysfs(number, sizeof(number), "%s/class/net/%s/ifindex", sysfs,
			       name) &&
	       (index == 0 || strtoul(number, NULL, 10) == index);
}

/*
 * A port always has a link-local GID of the interface's MAC address, also if the
 * interface has no such IP address: make_default_gid() in
 * drivers/infiniband/core/cache.c. The bytes in the middle, and one bit, depend on the
 * interface: addrconf_ifid_eui48() in include/net/addrconf.h.
 */
static bool is_of_mac(const struct sockaddr_ll *mac, const uint8_t *gid)
{
	return IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)gid) &&
	       mac->sll_halen == 6 && ((mac->sll_addr[0] ^ gid[8]) & ~2) == 0 &&
	       memcmp(mac->sll_addr + 1, gid + 9, 2) == 0 &&
	       memcmp(mac->sll_addr + 3, gid + 13, 3) == 0;
}

static bool is_address(const struct sockaddr *address, const uint8_t *gid)
{
	if (address->sa_family == AF_PACKET)
		return is_of_mac((const struct sockaddr_ll *)address, gid);
	if (address->sa_family == AF_INET)
		return pier_gid_is_ipv4(gid) &&
		       memcmp(&((const struct sockaddr_in *)address)->sin_addr, gid + 12,
			      4) == 0;
	return address->sa_family == AF_INET6 &&
	       memcmp(&((const struct sockaddr_in6 *)address)->sin6_addr, gid, 16) == 0;
}

static bool has_address(const struct ifaddrs *addresses, const char *name,
			const uint8_t *gid)
{
	for (; addresses; addresses = addresses->ifa_next) {
		if (addresses->ifa_addr && strcmp(addresses->ifa_name, name) == 0 &&
		    is_address(addresses->ifa_addr, gid))
			return true;
	}
	return false;
}

bool pier_gid_is_local(const char *sysfs, const char *nic,
		       const struct ifaddrs *addresses, const struct ibv_gid_entry *entry)
{
	char name[IF_NAMESIZE];

	if (!read_interface(sysfs, nic, entry, name) ||
	    !has_interface(sysfs, name, entry->ndev_ifindex))
		return false;
	return !addresses || has_address(addresses, name, entry->gid.raw);
}
