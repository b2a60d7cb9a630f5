/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "gid_table.h"
#include "topology.h"

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

/*
 * Whether the network interface of a GID exists in this network namespace.
 *
 * sysfs      its root
 * nic        the name of the NIC in libibverbs
 * addresses  of this namespace, from getifaddrs(3); NULL: unknown
 */
static bool gid_is_local(const char *sysfs, const char *nic,
			 const struct ifaddrs *addresses,
			 const struct ibv_gid_entry *entry)
{
	char name[IF_NAMESIZE];

	if (!read_interface(sysfs, nic, entry, name) ||
	    !has_interface(sysfs, name, entry->ndev_ifindex))
		return false;
	return !addresses || has_address(addresses, name, entry->gid.raw);
}

bool pier_gid_is_ipv4(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid, prefix, sizeof(prefix)) == 0;
}

enum pier_gid_rank pier_rank_gid(const struct ibv_gid_entry *entry)
{
	const uint8_t *gid = entry->gid.raw;

	if (IN6_IS_ADDR_UNSPECIFIED((const struct in6_addr *)gid))
		return PIER_GID_UNUSABLE;
	if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
		return PIER_GID_V1;
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
		return PIER_GID_OTHER;
	/* fe80::/10 (RFC 4291) or 169.254.0.0/16 (RFC 3927). */
	if (IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)gid) ||
	    (pier_gid_is_ipv4(gid) && gid[12] == 169 && gid[13] == 254))
		return PIER_GID_V2_LINK_LOCAL;
	return pier_gid_is_ipv4(gid) ? PIER_GID_V2_IPV4 : PIER_GID_V2_IPV6;
}

void pier_rank_gids(const struct ibv_gid_entry *entries, uint32_t count,
		    struct pier_gid_list *ret_list)
{
	ret_list->count = 0;
	for (int rank = PIER_GID_V2_IPV4; rank > PIER_GID_UNUSABLE; rank--) {
		for (uint32_t i = 0; i < count; i++) {
			if ((int)pier_rank_gid(&entries[i]) == rank &&
			    ret_list->count < PIER_GID_OFFERS)
				ret_list->entries[ret_list->count++] = entries[i];
		}
	}
}

/* The entries of a port that are not empty. */
struct table {
	struct ibv_gid_entry entries[PIER_GID_INDEXES];
	uint32_t count;
	int error; /* of the first entry that could not be read, or 0 */
	uint32_t error_index;
};

/* One call for the tables of all ports. Kernels before 5.10 lack it. */
static bool read_at_once(const struct pier_device *device, uint8_t port, int length,
			 struct table *ret_table)
{
	size_t capacity = (size_t)length * device->limits.phys_port_cnt;
	struct ibv_gid_entry *all;
	ssize_t count;

	if (!device->provider->query_gid_table)
		return false;
	all = calloc(capacity, sizeof(*all));
	count = all ? device->provider->query_gid_table(device->context, all, capacity)
		    : -ENOMEM;
	for (ssize_t i = 0; i < count; i++) {
		if (all[i].port_num == port && all[i].gid_index < PIER_GID_INDEXES &&
		    ret_table->count < PIER_GID_INDEXES)
			ret_table->entries[ret_table->count++] = all[i];
	}
	free(all);
	return count >= 0;
}

/*
 * An entry whose interface is in another network namespace fails with ENODEV where
 * libibverbs reads sysfs (query_sysfs_gid_ndev_ifindex() in libibverbs/cmd_device.c).
 */
static void read_each(const struct pier_device *device, uint8_t port, int length,
		      struct table *ret_table)
{
	for (uint32_t i = 0; i < (uint32_t)length && i < PIER_GID_INDEXES; i++) {
		int error = device->provider->query_gid(
			device->context, port, i, &ret_table->entries[ret_table->count]);

		if (error == 0)
			ret_table->count++;
		if (error == 0 || error == ENODATA || ret_table->error)
			continue;
		ret_table->error = error;
		ret_table->error_index = i;
	}
}

/*
 * Keep the entries of this network namespace, or all if none is. The kernel resolves
 * addresses in the namespace of the GID (set_addr_netns_by_gid_rcu() in
 * drivers/infiniband/core/addr.c), so a container without an interface of the NIC can use
 * the host's GIDs.
 */
static void drop_foreign_entries(const char *sysfs, const struct pier_device *device,
				 struct table *table)
{
	const char *nic = device->context->device->name;
	struct ibv_gid_entry local[PIER_GID_INDEXES];
	struct ifaddrs *addresses = NULL;
	uint32_t count = 0;

	if (getifaddrs(&addresses))
		addresses = NULL;
	for (uint32_t i = 0; i < table->count; i++) {
		if (pier_rank_gid(&table->entries[i]) != PIER_GID_UNUSABLE &&
		    gid_is_local(sysfs, nic, addresses, &table->entries[i]))
			local[count++] = table->entries[i];
	}
	freeifaddrs(addresses);
	if (count == 0)
		return;
	if (count < table->count)
		pier_debug("%s: %u of %u GIDs are of this network namespace", nic, count,
			   table->count);
	memcpy(table->entries, local, count * sizeof(local[0]));
	table->count = count;
}

static int fail_without_gid(const struct table *table, uint8_t port)
{
	const char *reason = table->error ? strerror(table->error) : "";

	if (table->error && table->count == 0)
		return pier_fail_because(table->error, "read GID %u of port %u",
					 table->error_index, port);
	return pier_fail(EADDRNOTAVAIL,
			 "port %u has no GID to send from (%u in its table%s%s): give "
			 "its network interface an IP address",
			 port, table->count, table->error ? "; another one: " : "",
			 reason);
}

int pier_read_gids(const char *sysfs, const struct pier_device *device, uint8_t port,
		   int length, struct pier_gid_list *ret_list)
{
	struct table *table = calloc(1, sizeof(*table));
	int error = 0;

	if (!table)
		return pier_fail(ENOMEM, "no memory for the GIDs of port %u", port);
	pier_clear_error();
	if (length > 0 && !read_at_once(device, port, length, table))
		read_each(device, port, length, table);
	drop_foreign_entries(sysfs, device, table);
	pier_rank_gids(table->entries, table->count, ret_list);
	if (ret_list->count == 0)
		error = fail_without_gid(table, port);
	free(table);
	return error;
}

/* Returns the list that is kept if it is still true. */
static struct pier_shared_gids *find_known_gids(struct pier_device *device, uint8_t port,
						uint32_t changes)
{
	const struct pier_known_gids *known = &device->gids[port - 1];
	struct pier_shared_gids *gids = NULL;

	pthread_mutex_lock(&device->gids_lock);
	if (known->valid && known->changes == changes) {
		gids = known->gids;
		atomic_fetch_add(&gids->users, 1);
	}
	pthread_mutex_unlock(&device->gids_lock);
	return gids;
}

static struct pier_shared_gids *new_gids(const struct pier_gid_list *list)
{
	struct pier_shared_gids *gids = malloc(sizeof(*gids));

	if (!gids)
		return NULL;
	atomic_init(&gids->users, 1);
	gids->list = *list;
	return gids;
}

/* Keep a list that was read. Channels that have an equal one share it. */
static struct pier_shared_gids *keep_gids(struct pier_device *device, uint8_t port,
					  uint32_t changes, bool valid,
					  const struct pier_gid_list *list)
{
	struct pier_known_gids *known = &device->gids[port - 1];
	struct pier_shared_gids *gids;

	pthread_mutex_lock(&device->gids_lock);
	if (!known->gids || known->gids->list.count != list->count ||
	    memcmp(known->gids->list.entries, list->entries,
		   list->count * sizeof(list->entries[0])) != 0) {
		pier_drop_gids(known->gids);
		known->gids = new_gids(list);
	}
	gids = known->gids;
	if (gids)
		atomic_fetch_add(&gids->users, 1);
	known->valid = gids && valid;
	known->changes = changes;
	pthread_mutex_unlock(&device->gids_lock);
	return gids;
}

int pier_list_gids(struct pier_device *device, uint8_t port, int length,
		   struct pier_shared_gids **ret_gids)
{
	bool keeps = port <= PIER_GID_PORTS;
	bool takes_events = pier_take_device_events(device);
	uint32_t changes = atomic_load(&device->gid_changes);
	struct pier_gid_list list;
	int error;

	*ret_gids = keeps && takes_events ? find_known_gids(device, port, changes) : NULL;
	if (*ret_gids)
		return 0;
	error = pier_read_gids(PIER_SYSFS, device, port, length, &list);
	if (error)
		return error;
	*ret_gids = keeps ? keep_gids(device, port, changes, takes_events, &list)
			  : new_gids(&list);
	return *ret_gids ? 0 : pier_fail(ENOMEM, "no memory for GIDs");
}
