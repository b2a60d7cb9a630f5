/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backends/loaded.h"
#include "core/log.h"
#include "preload.h"

/* Whether there is anything to do: by the environment, and by the libraries loaded. */

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

static bool is_driver_loaded(void)
{
	static const char *const drivers[] = { "libcuda.so", "libamdhip64.so",
					       "libze_loader.so" };
	char path[PATH_MAX];

	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		if (pier_find_loaded(drivers[i], NULL, path, sizeof(path)))
			return true;
	return false;
}

bool preload_search_driver(unsigned long long count, atomic_ullong *ret_searched)
{
	if (preload_mode() == PRELOAD_OFF)
		return false;
	/* Drivers stay loaded: their threads do not end. */
	if (settings.more_backends || is_driver_loaded())
		count = PRELOAD_FOUND;
	atomic_store(ret_searched, count);
	return count == PRELOAD_FOUND;
}
