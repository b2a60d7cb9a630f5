/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_LEVEL_ZERO_FAKE_H
#define TESTS_FAKES_LEVEL_ZERO_FAKE_H

#include <pthread.h>

#include "control.h"
#include "tests/fakes/hip/device_memory.h"

#define FAKE_API __attribute__((visibility("default")))

/* ze_result_t */
enum {
	SUCCESS = 0,
	OUT_OF_HOST_MEMORY = 0x70000002,
	OUT_OF_DEVICE_MEMORY = 0x70000003,
	DEVICE_LOST = 0x70000001,
	NOT_AVAILABLE = 0x70010001,
	UNINITIALIZED = 0x78000001,
	UNSUPPORTED_FEATURE = 0x78000003,
	INVALID_ARGUMENT = 0x78000004,
	UNSUPPORTED_SIZE = 0x78000009,
	INVALID_ENUMERATION = 0x7800000c,
	UNKNOWN = 0x7ffffffe,
};

/* ze_memory_type_t */
enum {
	TYPE_UNKNOWN = 0,
	TYPE_HOST = 1,
	TYPE_DEVICE = 2,
	TYPE_SHARED = 3,
};

/* What all descriptors and properties begin with: ze_base_desc_t. */
struct fake_base {
	unsigned int stype;
	struct fake_base *next;
};

struct fake_driver {
	bool npu;
};

struct fake_device {
	struct fake_driver *driver;
	uint32_t index;
};

struct fake_context {
	struct fake_driver *driver;
};

extern struct fake_driver fake_drivers[2];
extern struct fake_device fake_devices[FAKE_LEVEL_ZERO_DEVICES + 1];

/*
 * Each call but zeInit() begins so: takes the lock, which fake_end() gives back.
 *
 * Returns the error with which the call must fail, or 0.
 */
unsigned int fake_begin(const char *function);
unsigned int fake_end(unsigned int error);

/* Count a misuse if a struct has another type. */
void fake_check_type(const void *base, unsigned int stype);

/* The driver's address for one of the application's; host memory is its own. */
void *fake_translate(const void *pointer);

extern struct fake_level_zero fake;
extern pthread_mutex_t fake_lock;

#endif
