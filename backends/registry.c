/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "object.h"
#include "table.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"

static const struct pier_backend_entry built_in[] = {
	{ .backend = &pier_host_backend, .origin = "" },
	{ .backend = &pier_memfd_backend, .origin = "" },
	{ .backend = &pier_udmabuf_backend, .origin = "" },
	{ .backend = &pier_dma_heap_backend, .origin = "" },
#ifdef PIER_HAVE_CUDA
	{ .backend = &pier_cuda_backend, .origin = "" },
#endif
#ifdef PIER_HAVE_HIP
	{ .backend = &pier_hip_backend, .origin = "" },
#endif
#ifdef PIER_HAVE_LEVEL_ZERO
	{ .backend = &pier_level_zero_backend, .origin = "" },
#endif
};

enum {
	BUILT_IN = sizeof(built_in) / sizeof(built_in[0]),
	REGISTERED_MAX = 32, /* by pier_backend_register() */
};

/*
 * `entries` is allocated once, with room for those that programs register. A reader sees
 * the entries below `count`, which never change.
 */
static struct {
	pthread_once_t once;
	struct pier_fork_mutex lock; /* of pier_backend_register() */
	struct pier_backend_entry *entries;
	atomic_size_t count;
	size_t capacity; /* 0: no memory */
} registry = { .once = PTHREAD_ONCE_INIT, .lock = PIER_FORK_MUTEX };

static const struct pier_backend_entry *find_entry(
	const struct pier_backend_entry *entries, size_t count, const char *name,
	size_t length)
{
	for (size_t i = 0; i < count; i++) {
		const struct pier_backend *backend = entries[i].backend;

		if (backend && strlen(backend->name) == length &&
		    memcmp(backend->name, name, length) == 0)
			return &entries[i];
	}
	return NULL;
}

static const char *describe_origin(const struct pier_backend_entry *entry)
{
	return entry->origin[0] ? entry->origin : "a built-in backend";
}

/* Takes ownership of all three. Without memory the object is not listed. */
static void add_loaded(struct pier_backend *backend, char *origin, char *problem)
{
	size_t count = atomic_load(&registry.count);
	struct pier_backend_entry *grown = NULL;

	if (origin && (backend || problem))
		grown = reallocarray(registry.entries, count + 1, sizeof(*grown));
	if (!grown) {
		free(backend);
		free(origin);
		free(problem);
		return;
	}
	if (problem)
		pier_warning("backend %s: %s", origin, problem);
	registry.entries = grown;
	registry.entries[count] = (struct pier_backend_entry){
		.backend = backend,
		.origin = origin,
		.problem = problem,
	};
	atomic_store(&registry.count, count + 1);
}

/* Returns a positive errno, or 0. */
static int check_duplicate(const struct pier_backend *backend, char *ret_problem)
{
	const struct pier_backend_entry *taken = find_entry(
		registry.entries, atomic_load(&registry.count), backend->name,
		strlen(backend->name));

	if (!taken)
		return 0;
	return pier_refuse_backend(ret_problem, EEXIST,
				   "a backend named %s is already registered (%s)",
				   backend->name, describe_origin(taken));
}

/* Consumes the path. */
static void add_object(char *path)
{
	struct pier_backend *backend = calloc(1, sizeof(*backend));
	char problem[PIER_BACKEND_PROBLEM_SIZE] = "no memory";

	if (backend && pier_load_backend(path, backend, problem) &&
	    check_duplicate(backend, problem) == 0) {
		pier_debug("backend %s comes from %s", backend->name, path);
		add_loaded(backend, path, NULL);
		return;
	}
	free(backend);
	add_loaded(NULL, path, strdup(problem));
}

static int is_object(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);

	return length > 3 && strcmp(entry->d_name + length - 3, ".so") == 0;
}

/* Not alphasort(3): the order must not depend on the locale. */
static int compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_folder(const char *folder)
{
	struct dirent **entries;
	int count = scandir(folder, &entries, is_object, compare_names);
	char *text;

	if (count < 0) {
		if (asprintf(&text, "PIER_BACKEND_PATH names this folder: %m") < 0)
			return;
		add_loaded(NULL, strdup(folder), text);
		return;
	}
	for (int i = 0; i < count; i++) {
		/* With a slash, so that dlopen(3) does not search for it. */
		if (asprintf(&text, "%s/%s", folder, entries[i]->d_name) >= 0)
			add_object(text);
		free(entries[i]);
	}
	free(entries);
}

static void load_folders(void)
{
	/* The user of a set-uid program must not choose its code: secure_getenv(3). */
	const char *wanted = secure_getenv("PIER_BACKEND_PATH");
	char *folders = wanted ? strdup(wanted) : NULL, *rest = folders, *folder;

	while ((folder = strsep(&rest, ":"))) {
		if (folder[0])
			load_folder(folder);
	}
	free(folders);
}

static void load_all(void)
{
	struct pier_backend_entry *grown;
	size_t count;

	registry.entries = malloc(sizeof(built_in));
	if (!registry.entries)
		return;
	memcpy(registry.entries, built_in, sizeof(built_in));
	atomic_store(&registry.count, BUILT_IN);
	load_folders();
	count = atomic_load(&registry.count);
	grown = reallocarray(registry.entries, count + REGISTERED_MAX, sizeof(*grown));
	if (!grown)
		return;
	registry.entries = grown;
	registry.capacity = count + REGISTERED_MAX;
}

size_t pier_backend_entries(const struct pier_backend_entry **ret_entries)
{
	pthread_once(&registry.once, load_all);
	if (!registry.entries) {
		*ret_entries = built_in;
		return BUILT_IN;
	}
	*ret_entries = registry.entries;
	return atomic_load(&registry.count);
}

/* Takes ownership of the table on success. With the lock held. */
static int add_registered(struct pier_backend *backend, char *ret_problem)
{
	size_t count = atomic_load(&registry.count);
	int error = check_duplicate(backend, ret_problem);

	if (error)
		return error;
	if (registry.capacity == 0)
		return pier_refuse_backend(ret_problem, ENOMEM, "no memory for the list");
	if (count == registry.capacity)
		return pier_refuse_backend(ret_problem, ENOSPC,
					   "%d are registered, which is the limit",
					   REGISTERED_MAX);
	registry.entries[count] = (struct pier_backend_entry){
		.backend = backend,
		.origin = "pier_backend_register()",
	};
	atomic_store(&registry.count, count + 1);
	return 0;
}

int pier_backend_register(const struct pier_backend *table)
{
	char problem[PIER_BACKEND_PROBLEM_SIZE] = "no memory for its table";
	const struct pier_backend_entry *entries;
	struct pier_backend *backend;
	int error = ENOMEM;

	if (!table)
		return pier_fail(EINVAL, "registering a backend: its table is NULL");
	backend = calloc(1, sizeof(*backend));
	pier_backend_entries(&entries);
	if (backend)
		error = pier_read_backend_table(table, backend, problem);
	if (error == 0) {
		pier_fork_lock(&registry.lock);
		error = add_registered(backend, problem);
		pier_fork_unlock(&registry.lock);
	}
	if (error == 0)
		return 0;
	free(backend);
	return pier_fail(error, "registering a backend: %s", problem);
}

const struct pier_backend *pier_find_backend(const char *name, size_t name_length)
{
	const struct pier_backend_entry *entries, *found;
	size_t count = pier_backend_entries(&entries);

	found = find_entry(entries, count, name, name_length);
	return found ? found->backend : NULL;
}
