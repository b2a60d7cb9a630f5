/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "pair.h"
#include "registry.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/object.h"

static struct pier_fork_mutex devices_mutex = PIER_FORK_MUTEX;
static struct pier_list devices = { &devices, &devices };

static void describe_device(const struct pier_object *object, char *ret_text, size_t size)
{
	snprintf(ret_text, size, "device %s", ((const struct pier_device *)object)->name);
}

struct pier_device *pier_new_device(const char *prefix, const char *name)
{
	struct pier_device *device = calloc(1, sizeof(*device));
	int room;

	if (!device)
		return NULL;
	device->object.describe = describe_device;
	atomic_init(&device->pds, 0);
	pthread_mutex_init(&device->events_lock, NULL);
	pthread_mutex_init(&device->gids_lock, NULL);
	atomic_init(&device->queues, 0);
	pthread_mutex_init(&device->pairs_lock, NULL);
	pier_list_init(&device->pairs);
	/* libibverbs' longest names would lose their end behind a prefix. */
	room = (int)(sizeof(device->name) - strlen(prefix) - 1);
	snprintf(device->name, sizeof(device->name), "%s%.*s", prefix, room, name);
	return device;
}

void pier_free_device(struct pier_device *device)
{
	pier_free_pairs(device);
	for (int i = 0; i < PIER_GID_PORTS; i++)
		pier_drop_gids(device->gids[i].gids);
	pthread_mutex_destroy(&device->gids_lock);
	pthread_mutex_destroy(&device->events_lock);
	free(device);
}

void pier_add_device(struct pier_device *device)
{
	pier_fork_lock(&devices_mutex);
	pier_list_append(&devices, &device->link);
	pier_fork_unlock(&devices_mutex);
}

void pier_remove_device(struct pier_device *device)
{
	pier_fork_lock(&devices_mutex);
	pier_list_remove(&device->link);
	pier_fork_unlock(&devices_mutex);
}

static struct pier_device *find_device(const struct ibv_context *context)
{
	for (struct pier_list *link = devices.next; link != &devices; link = link->next) {
		struct pier_device *device = pier_container_of(link, struct pier_device,
							       link);

		if (device->context == context)
			return device;
	}
	return NULL;
}

struct pier_device *pier_hold_device(const struct ibv_context *context,
				     struct pier_device *device)
{
	struct pier_device *found;

	pier_fork_lock(&devices_mutex);
	found = find_device(context);
	if (!found && device) {
		pier_list_append(&devices, &device->link);
		found = device;
	}
	if (found)
		atomic_fetch_add(&found->pds, 1);
	pier_fork_unlock(&devices_mutex);
	return found;
}

void pier_release_device(struct pier_device *device)
{
	bool last;

	pier_fork_lock(&devices_mutex);
	last = atomic_fetch_sub(&device->pds, 1) == 1 && device->borrowed;
	if (last)
		pier_list_remove(&device->link);
	pier_fork_unlock(&devices_mutex);
	if (!last)
		return;
	pier_object_untrack(&device->object);
	pier_free_device(device);
}
