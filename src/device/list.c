/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/device.h>

#include "core/error.h"
#include "core/fork.h"
#include "list.h"

/*
 * libibverbs lists devices under a lock of its own. If another thread forks meanwhile,
 * that lock stays locked in the child. So hold this mutex, for which fork(2) waits.
 */
static struct pier_fork_mutex list_mutex = PIER_FORK_MUTEX;

static struct ibv_device **get_device_list(const struct pier_provider *provider,
					   int *ret_count)
{
	struct ibv_device **list;

	pier_fork_lock(&list_mutex);
	errno = 0;
	list = provider->get_device_list(ret_count);
	pier_fork_unlock(&list_mutex);
	return list;
}

int pier_visit_devices(bool (*visit)(const struct pier_provider *provider,
				     struct ibv_device *device, void *argument),
		       void *argument)
{
	bool done = false;
	int error = 0;

	for (const struct pier_provider *const *provider = pier_providers;
	     *provider && !done; provider++) {
		struct ibv_device **list;
		int count = 0;

		list = get_device_list(*provider, &count);
		if (!list) {
			error = errno ? errno : EIO;
			continue;
		}
		for (int i = 0; i < count && !done; i++)
			done = visit(*provider, list[i], argument);
		(*provider)->free_device_list(list);
	}
	return error;
}

/*
 * libibverbs returns ENOSYS if /sys/class/infiniband_verbs is missing. A build that opens
 * libibverbs at run time returns ELIBACC if it cannot (src/provider/ibverbs.c).
 */
const char *pier_explain_list_error(int error)
{
	if (error == ELIBACC)
		return "libibverbs.so.1 of rdma-core 34 or later cannot be opened "
		       "(PIER_LOG=info logs the reason): install rdma-core (Debian: "
		       "libibverbs1 and ibverbs-providers)";
	if (error == ENOSYS)
		return "the kernel has no RDMA support, or /dev/infiniband is not "
		       "visible here: modprobe ib_uverbs, or pass the device into the "
		       "container";
	return strerror(error);
}

struct search {
	const char *name;
	bool found;
};

static bool find_listed(const struct pier_provider *provider, struct ibv_device *device,
			void *argument)
{
	struct search *search = argument;

	(void)provider;
	search->found = strcmp(device->name, search->name) == 0;
	return search->found;
}

static bool is_listed(const char *name)
{
	struct search search = { .name = name };

	pier_visit_devices(find_listed, &search);
	return search.found;
}

void pier_explain_unlisted(const char *sysfs, const char *name, char *ret_text,
			   size_t size)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *folder;

	ret_text[0] = '\0';
	snprintf(path, sizeof(path), "%s/class/infiniband", sysfs);
	folder = opendir(path);
	while (folder && !ret_text[0] && (entry = readdir(folder))) {
		if (entry->d_name[0] == '.' || (name && strcmp(entry->d_name, name)) ||
		    is_listed(entry->d_name))
			continue;
		snprintf(ret_text, size,
			 "the kernel has %s, but libibverbs does not list it: the "
			 "library of its driver is missing (Debian: ibverbs-providers; "
			 "in a container, inside), or its /dev/infiniband/uverbsN is not "
			 "visible here",
			 entry->d_name);
	}
	if (folder)
		closedir(folder);
}

static void copy_name(char *destination, size_t size, const char *source)
{
	snprintf(destination, size, "%s", source);
}

struct listing {
	struct pier_device_info *list;
	size_t count;
	bool failed;
};

static bool append_device(const struct pier_provider *provider, struct ibv_device *device,
			  void *argument)
{
	struct listing *listing = argument;
	struct pier_device_info *grown;

	grown = realloc(listing->list, (listing->count + 1) * sizeof(*grown));
	if (!grown) {
		listing->failed = true;
		return true;
	}
	listing->list = grown;
	copy_name(grown[listing->count].name, sizeof(grown->name), device->name);
	copy_name(grown[listing->count].provider, sizeof(grown->provider),
		  provider->name);
	listing->count++;
	return false;
}

int pier_device_list(struct pier_device_info **ret_list, size_t *ret_count)
{
	struct listing listing = { 0 };
	int error = pier_visit_devices(append_device, &listing);

	/* ENOSYS: the kernel has no RDMA, and this build no soft0. */
	if (listing.count == 0 && error && error != ENOSYS)
		return pier_fail(error, "listing devices: %s",
				 pier_explain_list_error(error));
	if (listing.failed) {
		free(listing.list);
		return pier_fail(ENOMEM, "listing devices: out of memory");
	}
	*ret_list = listing.list;
	*ret_count = listing.count;
	return 0;
}

struct names {
	char *text;
	size_t size, used;
};

static bool append_name(const struct pier_provider *provider, struct ibv_device *device,
			void *argument)
{
	struct names *names = argument;
	int printed;

	(void)provider;
	printed = snprintf(names->text + names->used, names->size - names->used, "%s%s",
			   names->used ? ", " : "", device->name);
	if (printed > 0 && (size_t)printed < names->size - names->used)
		names->used += (size_t)printed;
	return false;
}

int pier_print_device_names(char *ret_text, size_t size)
{
	struct names names = { .text = ret_text, .size = size };

	ret_text[0] = '\0';
	return pier_visit_devices(append_name, &names);
}
