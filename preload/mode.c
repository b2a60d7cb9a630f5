/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "preload.h"

/* What the environment and the loader say: whether there is anything to do at all. */

_Thread_local unsigned int preload_depth
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

static struct {
	pthread_once_t once;
	enum preload_mode mode;
	bool more_backends; /* PIER_BACKEND_PATH */
} settings = { .once = PTHREAD_ONCE_INIT };

static void read_settings(void)
{
	const char *text = secure_getenv("PIER_PRELOAD");
	const char *folders = secure_getenv("PIER_BACKEND_PATH");

	settings.more_backends = folders && folders[0];
	if (!text || !text[0] || strcmp(text, "on") == 0)
		return;
	if (strcmp(text, "off") == 0)
		settings.mode = PRELOAD_OFF;
	else if (strcmp(text, "peermem") == 0)
		settings.mode = PRELOAD_PEERMEM;
	else
		pier_warning("PIER_PRELOAD=%s: not on, off or peermem, so it counts as "
			     "on",
			     text);
}

enum preload_mode preload_mode(void)
{
	pthread_once(&settings.once, read_settings);
	return settings.mode;
}

/* Of the first object alone: how many libraries the process has loaded in its life. */
static int read_count(struct dl_phdr_info *info, size_t size, void *ret_count)
{
	(void)size;
	*(unsigned long long *)ret_count = info->dlpi_adds;
	return 1;
}

static int is_driver(struct dl_phdr_info *info, size_t size, void *unused)
{
	static const char *const drivers[] = { "libcuda.so", "libamdhip64.so",
					       "libze_loader.so" };
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *file = slash ? slash + 1 : info->dlpi_name;

	(void)size;
	(void)unused;
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		if (strncmp(file, drivers[i], strlen(drivers[i])) == 0)
			return 1;
	return 0;
}

/* The count at the last search that found no driver, or ALWAYS. */
static atomic_ullong searched;
#define ALWAYS ULLONG_MAX

static __attribute__((noinline)) bool search(unsigned long long count)
{
	preload_mode();
	/* Drivers stay loaded: their threads do not end. */
	if (settings.more_backends || dl_iterate_phdr(is_driver, NULL))
		count = ALWAYS;
	atomic_store(&searched, count);
	return count == ALWAYS;
}

bool preload_may_be_device(void)
{
	unsigned long long last = atomic_load_explicit(&searched, memory_order_relaxed);
	unsigned long long count;

	if (last == ALWAYS)
		return true;
	dl_iterate_phdr(read_count, &count);
	return count != last && search(count);
}
