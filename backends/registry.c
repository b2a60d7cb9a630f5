/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend.h"
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
};

enum {
	BUILT_IN = sizeof(built_in) / sizeof(built_in[0]),
	NAME_SIZE = 32, /* of pier_backend_info */
	PROBLEM_SIZE = 512,
	/* A table must reach to here; see <pier/backend.h>. */
	REQUIRED_SIZE = offsetof(struct pier_backend, find),
};

/* Written once, below `once`, and constant from then on. */
static struct {
	pthread_once_t once;
	struct pier_backend_entry *entries;
	size_t count;
} registry = { .once = PTHREAD_ONCE_INIT };

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

/* Takes the three over; without memory the object is not listed. */
static void add_entry(struct pier_backend *backend, char *origin, char *problem)
{
	struct pier_backend_entry *grown = NULL;

	if (origin && (backend || problem))
		grown = reallocarray(registry.entries, registry.count + 1,
				     sizeof(*grown));
	if (!grown) {
		free(backend);
		free(origin);
		free(problem);
		return;
	}
	if (problem)
		pier_warning("backend %s: %s", origin, problem);
	registry.entries = grown;
	registry.entries[registry.count++] = (struct pier_backend_entry){
		.backend = backend,
		.origin = origin,
		.problem = problem,
	};
}

static bool refuse(char *ret_problem, const char *format, ...) PIER_PRINTF(2, 3);
static bool refuse(char *ret_problem, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(ret_problem, PROBLEM_SIZE, format, args);
	va_end(args);
	return false;
}

static bool check_name(const char *name, char *ret_problem)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
				      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	const struct pier_backend_entry *taken;
	size_t length = strnlen(name, NAME_SIZE);

	if (length == 0 || length == NAME_SIZE || name[strspn(name, allowed)])
		return refuse(ret_problem,
			      "its name is not 1 to %d letters, digits and _",
			      NAME_SIZE - 1);
	taken = find_entry(registry.entries, registry.count, name, length);
	if (taken)
		return refuse(ret_problem, "its name %s is already that of %s", name,
			      taken->origin[0] ? taken->origin : "a built-in backend");
	return true;
}

static bool check_members(const struct pier_backend *backend, char *ret_problem)
{
	const char *missing = NULL;

	if (!backend->name)
		missing = "name";
	else if (!backend->description)
		missing = "description";
	else if (!backend->probe)
		missing = "probe";
	else if (!backend->alloc)
		missing = "alloc";
	else if (!backend->free)
		missing = "free";
	else if ((backend->dmabuf || backend->memfd) && !backend->export_range)
		missing = "export_range";
	else if (backend->export_range && !backend->close_export)
		missing = "close_export";
	else if (!backend->begin_cpu != !backend->end_cpu)
		missing = backend->begin_cpu ? "end_cpu" : "begin_cpu";
	if (missing)
		return refuse(ret_problem, "its table has no %s", missing);
	return check_name(backend->name, ret_problem);
}

/*
 * Copy what the object knows of the table; the rest of ours stays NULL. Of an
 * object of another abi only the first two members are read.
 */
static bool read_table(const struct pier_backend *table, struct pier_backend *ret_backend,
		       char *ret_problem)
{
	size_t known;

	if (table->abi != PIER_BACKEND_ABI)
		return refuse(ret_problem,
			      "it has backend abi %u, and this library has %d",
			      table->abi, PIER_BACKEND_ABI);
	if (table->size < REQUIRED_SIZE)
		return refuse(ret_problem,
			      "its table has %u bytes, and the required members %d",
			      table->size, REQUIRED_SIZE);
	/* Behind the required members are pointers alone: no half of one. */
	known = table->size < sizeof(*table) ? table->size : sizeof(*table);
	known -= known % sizeof(void *);
	memset(ret_backend, 0, sizeof(*ret_backend));
	memcpy(ret_backend, table, known);
	return check_members(ret_backend, ret_problem);
}

static void *open_object(const char *path, char *ret_problem)
{
	struct stat status;
	const char *reason;
	void *object;

	/* dlopen(3) would wait for ever for the writer of a FIFO. */
	if (stat(path, &status) != 0) {
		refuse(ret_problem, "%m");
		return NULL;
	}
	if (!S_ISREG(status.st_mode)) {
		refuse(ret_problem, "not a regular file");
		return NULL;
	}
	object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!object) {
		reason = dlerror();
		refuse(ret_problem, "%s", reason ? reason : "dlopen failed");
	}
	return object;
}

/* Consumes the path. */
static void load_object(char *path)
{
	struct pier_backend *backend = calloc(1, sizeof(*backend));
	const struct pier_backend *table = NULL;
	char problem[PROBLEM_SIZE] = "no memory";
	void *object = NULL;
	bool good = false;

	if (backend)
		object = open_object(path, problem);
	if (object) {
		table = dlsym(object, PIER_BACKEND_SYMBOL);
		if (!table)
			refuse(problem, "it has no symbol %s", PIER_BACKEND_SYMBOL);
	}
	if (table)
		good = read_table(table, backend, problem);
	if (good) {
		pier_debug("backend %s comes from %s", backend->name, path);
		add_entry(backend, path, NULL);
		return;
	}
	if (object)
		dlclose(object);
	free(backend);
	add_entry(NULL, path, strdup(problem));
}

static int is_object(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);

	return length > 3 && strcmp(entry->d_name + length - 3, ".so") == 0;
}

/* Not alphasort(3): the order must not depend on the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_folder(const char *folder)
{
	struct dirent **entries;
	int count = scandir(folder, &entries, is_object, by_name);
	char *text;

	if (count < 0) {
		if (asprintf(&text, "PIER_BACKEND_PATH names this folder: %m") < 0)
			return;
		add_entry(NULL, strdup(folder), text);
		return;
	}
	for (int i = 0; i < count; i++) {
		/* With a slash, so that dlopen(3) does not search for it. */
		if (asprintf(&text, "%s/%s", folder, entries[i]->d_name) >= 0)
			load_object(text);
		free(entries[i]);
	}
	free(entries);
}

static void load_all(void)
{
	/* The user of a set-uid program must not choose its code: secure_getenv(3). */
	const char *wanted = secure_getenv("PIER_BACKEND_PATH");
	char *folders, *rest, *folder;

	registry.entries = malloc(sizeof(built_in));
	if (!registry.entries)
		return;
	memcpy(registry.entries, built_in, sizeof(built_in));
	registry.count = BUILT_IN;

	folders = wanted ? strdup(wanted) : NULL;
	for (rest = folders; (folder = strsep(&rest, ":"));) {
		if (folder[0])
			load_folder(folder);
	}
	free(folders);
}

size_t pier_backend_entries(const struct pier_backend_entry **ret_entries)
{
	pthread_once(&registry.once, load_all);
	if (!registry.entries) {
		*ret_entries = built_in;
		return BUILT_IN;
	}
	*ret_entries = registry.entries;
	return registry.count;
}

const struct pier_backend *pier_find_backend(const char *name, size_t name_length)
{
	const struct pier_backend_entry *entries, *found;
	size_t count = pier_backend_entries(&entries);

	found = find_entry(entries, count, name, name_length);
	return found ? found->backend : NULL;
}
