/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <pier/version.h>

#include "backend.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"

enum {
	NAME_SIZE = 32, /* of pier_backend_info */
	/* A table must reach to here; see <pier/backend.h>. */
	REQUIRED_SIZE = offsetof(struct pier_backend, find),
};

/* Write why a table is refused. Returns `error`. */
static const char *find_missing_member(const struct pier_backend *backend)
{
	if (!backend->name)
		return "name";
	if (!backend->description)
		return "description";
	if (!backend->probe)
		return "probe";
	if (!backend->alloc)
		return "alloc";
	if (!backend->free)
		return "free";
	if ((backend->dmabuf || backend->memfd) && !backend->export_range)
		return "export_range";
	if (backend->export_range && !backend->close_export)
		return "close_export";
	if (!backend->begin_cpu != !backend->end_cpu)
		return backend->begin_cpu ? "end_cpu" : "begin_cpu";
	if (!backend->copy_start != !backend->copy_query)
		return backend->copy_start ? "copy_query" : "copy_start";
	if (backend->ipc_open && !backend->release)
		return "release";
	return NULL;
}

static int check_members(const struct pier_backend *backend)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
				      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	const char *missing = find_missing_member(backend);
	size_t length;

	if (missing)
		return pier_fail(EINVAL, "its table has no %s", missing);
	length = strnlen(backend->name, NAME_SIZE);
	if (length == 0 || length == NAME_SIZE ||
	    backend->name[strspn(backend->name, allowed)])
		return pier_fail(EINVAL, "its name is not 1 to %d letters, digits and _",
				 NAME_SIZE - 1);
	return 0;
}

/*
 * Copy the part of a table that both sides know; the rest of the copy is zero. Of a table
 * of another ABI only the first two members are read.
 *
 * Errors: -EPROTO another ABI; -EINVAL it is too short, a required member is missing, or
 * the name is malformed.
 */
static int read_table(const struct pier_backend *table, struct pier_backend *ret_backend)
{
	size_t known;

	if (table->abi != PIER_BACKEND_ABI)
		return pier_fail(
			EPROTO,
			"it has backend ABI %u, and this library, pier " PIER_VERSION
			", has %d: build it with the <pier/backend.h> of this library",
			table->abi, PIER_BACKEND_ABI);
	if (table->size < REQUIRED_SIZE)
		return pier_fail(EINVAL,
				 "its table has %u bytes, and the required members %d",
				 table->size, REQUIRED_SIZE);
	/* After the required members there are only pointers: copy no half of one. */
	known = table->size < sizeof(*table) ? table->size : sizeof(*table);
	known -= known % sizeof(void *);
	memset(ret_backend, 0, sizeof(*ret_backend));
	memcpy(ret_backend, table, known);
	return check_members(ret_backend);
}

/* The symbol of ABI 1: the table itself. */
#define OLD_SYMBOL "pier_backend"

static const struct pier_backend_host library = {
	.size = sizeof(library),
	.abi = PIER_BACKEND_ABI,
	.version = PIER_VERSION_NUMBER,
	.fail = pier_fail,
	.log = pier_log,
	.revoke = pier_backend_revoke,
};

static void *open_object(const char *path)
{
	struct stat status;
	const char *reason;
	void *object;

	/* dlopen(3) of a FIFO would wait for its writer. */
	if (stat(path, &status) != 0) {
		pier_fail(errno, "%m");
		return NULL;
	}
	if (!S_ISREG(status.st_mode)) {
		pier_fail(EINVAL, "not a regular file");
		return NULL;
	}
	object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!object) {
		reason = dlerror();
		pier_fail(EINVAL, "%s", reason ? reason : "dlopen failed");
	}
	return object;
}

static int refuse_without_symbol(void *object)
{
	const uint32_t *abi = dlsym(object, OLD_SYMBOL);

	if (!abi)
		return pier_fail(EINVAL, "it has no symbol %s", PIER_BACKEND_SYMBOL);
	return pier_fail(
		EPROTO,
		"it has backend ABI %u (symbol " OLD_SYMBOL
		"), and this library, pier " PIER_VERSION
		", has %d (symbol %s): port it to the <pier/backend.h> of this library",
		*abi, PIER_BACKEND_ABI, PIER_BACKEND_SYMBOL);
}

static int read_object(void *object, struct pier_backend *ret_backend)
{
	pier_backend_get_function *get;
	const struct pier_backend *table;
	void *symbol = dlsym(object, PIER_BACKEND_SYMBOL);

	if (!symbol)
		return refuse_without_symbol(object);
	memcpy(&get, &symbol, sizeof(get));
	pier_clear_error();
	table = get(&library);
	if (table)
		return read_table(table, ret_backend);
	return pier_fail_because(EINVAL, "its %s() returned NULL", PIER_BACKEND_SYMBOL);
}

/* The object stays loaded on success. */
static bool load_object(const char *path, struct pier_backend *ret_backend)
{
	void *object = open_object(path);

	if (!object)
		return false;
	if (read_object(object, ret_backend) == 0)
		return true;
	dlclose(object);
	return false;
}

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

/* Takes ownership of the arguments. Out of memory, the object is left out. */
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

static int check_duplicate(const struct pier_backend *backend)
{
	const struct pier_backend_entry *taken = find_entry(
		registry.entries, atomic_load(&registry.count), backend->name,
		strlen(backend->name));

	if (!taken)
		return 0;
	return pier_fail(EEXIST, "a backend named %s is already registered (%s)",
			 backend->name,
			 taken->origin[0] ? taken->origin : "a built-in backend");
}

/* Consumes the path. */
static void add_object(char *path)
{
	struct pier_backend *backend = calloc(1, sizeof(*backend));
	char *problem;

	if (backend && load_object(path, backend) && check_duplicate(backend) == 0) {
		pier_debug("backend %s comes from %s", backend->name, path);
		add_loaded(backend, path, NULL);
		return;
	}
	problem = strdup(backend ? pier_error_message() : "no memory");
	free(backend);
	add_loaded(NULL, path, problem);
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
static int add_registered(struct pier_backend *backend)
{
	size_t count = atomic_load(&registry.count);
	int error = check_duplicate(backend);

	if (error)
		return error;
	if (registry.capacity == 0)
		return pier_fail(ENOMEM, "no memory for the list");
	if (count == registry.capacity)
		return pier_fail(ENOSPC, "%d are registered, which is the limit",
				 REGISTERED_MAX);
	registry.entries[count] = (struct pier_backend_entry){
		.backend = backend,
		.origin = "pier_backend_register()",
	};
	atomic_store(&registry.count, count + 1);
	return 0;
}

int pier_backend_register(const struct pier_backend *backend)
{
	PIER_REFUSE_NULL(backend);
	const struct pier_backend_entry *entries;
	struct pier_backend *own;
	int error;

	pier_backend_entries(&entries);
	own = calloc(1, sizeof(*own));
	if (!own)
		return pier_fail(ENOMEM,
				 "registering a backend: no memory for its table");
	error = read_table(backend, own);
	if (error == 0) {
		pier_fork_lock(&registry.lock);
		error = add_registered(own);
		pier_fork_unlock(&registry.lock);
	}
	if (error == 0)
		return 0;
	free(own);
	return pier_fail_because(-error, "registering a backend");
}

const struct pier_backend *pier_find_backend(const char *name, size_t name_length)
{
	const struct pier_backend_entry *entries, *found;
	size_t count = pier_backend_entries(&entries);

	found = find_entry(entries, count, name, name_length);
	return found ? found->backend : NULL;
}

static _Atomic(pier_revoke_hook) on_revoke;

void pier_backend_set_revoke_hook(pier_revoke_hook hook)
{
	atomic_store(&on_revoke, hook);
}

void pier_backend_revoke(uint64_t address, uint64_t length)
{
	pier_revoke_hook hook = atomic_load(&on_revoke);
	uint64_t end;

	if (!pier_add_u64(address, length, &end))
		end = UINT64_MAX;
	if (hook && length > 0)
		hook(address, end);
}
