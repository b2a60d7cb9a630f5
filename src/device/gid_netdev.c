/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gid_netdev.h"
#include "gid_rank.h"

/*
 * The kernel lists the GIDs of all network namespaces: with an RDMA device in shared mode
 * (rdma-system(8)) a container sees those of the host and of other containers. Neither
 * the name nor the index of an interface is unique across namespaces, and each container
 * may have an "eth0" of index 2. So the name must exist here, have that index, and have
 * the GID's address.
 */

/* Read a short file of sysfs without its newline. */
static bool read_word(const char *path, char *ret_word, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t length;

	if (fd < 0)
		return false;
	length = read(fd, ret_word, size - 1);
	close(fd);
	if (length <= 0)
		return false;
	ret_word[length] = '\0';
	ret_word[strcspn(ret_word, "\n")] = '\0';
	return ret_word[0] != '\0';
}

/* print_ndev() in drivers/infiniband/core/sysfs.c; EINVAL if the entry is empty. */
static bool read_interface(const char *sysfs, const char *nic,
			   const struct ibv_gid_entry *entry, char ret_name[IF_NAMESIZE])
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%u/gid_attrs/ndevs/%u",
		 sysfs, nic, entry->port_num, entry->gid_index);
	return read_word(path, ret_name, IF_NAMESIZE) && !strchr(ret_name, '/');
}

/* class/net shows the interfaces of one namespace. Index 0: the entry does not say. */
static bool has_interface(const char *sysfs, const char *name, uint32_t index)
{
	char path[PATH_MAX], word[16];

	snprintf(path, sizeof(path), "%s/class/net/%s/ifindex", sysfs, name);
	return read_word(path, word, sizeof(word)) &&
	       (index == 0 || strtoul(word, NULL, 10) == index);
}

static bool is_address(const struct sockaddr *address, const uint8_t *gid)
{
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

/*
 * A link-local GID is made of the interface's MAC address, and there also without an
 * address: make_default_gid() in drivers/infiniband/core/cache.c.
 */
bool pier_gid_is_local(const char *sysfs, const char *nic,
		       const struct ifaddrs *addresses, const struct ibv_gid_entry *entry)
{
	const uint8_t *gid = entry->gid.raw;
	char name[IF_NAMESIZE];

	if (!read_interface(sysfs, nic, entry, name) ||
	    !has_interface(sysfs, name, entry->ndev_ifindex))
		return false;
	return !addresses || IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)gid) ||
	       has_address(addresses, name, gid);
}
