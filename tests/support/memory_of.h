/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TEST_MEMORY_OF_H
#define TEST_MEMORY_OF_H

#include <string.h>

#include <pier/pier.h>

/* The memory of a backend, or of the device itself if the spec is "nic". */

static inline bool test_is_nic(const char *spec)
{
	return strcmp(spec, "nic") == 0;
}

static inline int test_buffer_alloc(struct pier_device *device, const char *spec,
				    uint64_t length, struct pier_buffer **ret_buffer)
{
	return test_is_nic(spec) ? pier_buffer_alloc_on_nic(device, length, ret_buffer)
				 : pier_buffer_alloc(spec, length, ret_buffer);
}

#endif
