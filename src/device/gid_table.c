/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "device_events.h"
#include "gid_netdev.h"
#include "gid_table.h"
#include "topology.h"
#include "core/error.h"
#include "core/log.h"

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
		    pier_gid_is_local(sysfs, nic, addresses, &table->entries[i]))
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

static bool lists_equal(const struct pier_gid_list *a, const struct pier_gid_list *b)
{
	return a->count == b->count &&
	       memcmp(a->entries, b->entries, a->count * sizeof(a->entries[0])) == 0;
}

/* Keep a list that was read. Channels that have an equal one share it. */
static struct pier_shared_gids *keep_gids(struct pier_device *device, uint8_t port,
					  uint32_t changes, bool valid,
					  const struct pier_gid_list *list)
{
	struct pier_known_gids *known = &device->gids[port - 1];
	struct pier_shared_gids *gids;

	pthread_mutex_lock(&device->gids_lock);
	if (!known->gids || !lists_equal(&known->gids->list, list)) {
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

void pier_drop_gids(struct pier_shared_gids *gids)
{
	if (gids && atomic_fetch_sub(&gids->users, 1) == 1)
		free(gids);
}
