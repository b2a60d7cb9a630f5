/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

/* The backend "gpu" of tests/unit/plugins. Include cmocka.h first. */

#include <dlfcn.h>
#include <stdlib.h>

#include <pier/buffer.h>

#include "plugins.h"
#include "../unit/plugins/gpu.h"

/*
 * Loads it from its own folder, whose name ends with XXXXXX. The canary is off, so that
 * tests can count calls.
 */
static inline struct gpu_control *test_load_gpu(char *folder)
{
	struct pier_backend_info *list = NULL;
	struct gpu_control *control;
	char path[64];
	uint32_t count;
	void *object;

	assert_non_null(mkdtemp(folder));
	test_link_plugin(folder, "gpu");
	assert_int_equal(setenv("PIER_BACKEND_PATH", folder, 1), 0);
	assert_int_equal(setenv("PIER_CANARY", "off", 1), 0);
	assert_int_equal(pier_backend_list(&list, &count, sizeof(*list)), 0);
	free(list);
	snprintf(path, sizeof(path), "%s/gpu.so", folder);
	object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(object);
	control = dlsym(object, GPU_CONTROL_SYMBOL);
	assert_non_null(control);
	dlclose(object);
	return control;
}

/* Returns nonzero if another file was left in the folder. */
static inline int test_remove_gpu(const char *folder)
{
	char link[64];

	snprintf(link, sizeof(link), "%s/gpu.so", folder);
	return unlink(link) || rmdir(folder);
}

#endif
