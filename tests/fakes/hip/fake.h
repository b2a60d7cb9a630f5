/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_FAKE_H
#define TESTS_FAKES_HIP_FAKE_H

#include <pthread.h>

#include "control.h"
#include "device_memory.h"

/*
 * What both libraries are built on; it lies in that of HSA, as the real HIP's memory
 * does. All functions want the lock, except those that say otherwise.
 */

#define FAKE_API __attribute__((visibility("default")))

enum fake_kind {
	FAKE_DEVICE,
	FAKE_FINE,
	FAKE_POOL,
	FAKE_HOST,
	FAKE_REGISTERED,
	FAKE_MANAGED,
};

enum {
	FAKE_BLOCK = 2 << 20, /* that smaller allocations share */
	FAKE_PAGE = 4096,
};

/* The driver's own allocation, of which smaller ones of a device get pieces. */
struct fake_block {
	struct fake_block *next;
	struct device_memory memory;
	int device;
	bool shared;
	unsigned char used[FAKE_BLOCK / FAKE_PAGE];
	size_t users;
};

struct fake_allocation {
	struct fake_allocation *next;
	enum fake_kind kind;
	int device;
	uint32_t number;   /* no other ever had it */
	unsigned int type; /* hsa_amd_pointer_type_t, or 0: by its kind */
	char *address;
	size_t size;		  /* that was asked for */
	size_t whole;		  /* in pages */
	char *driver;		  /* where the driver reaches it */
	struct fake_block *block; /* NULL: host memory */
};

FAKE_API void fake_lock(void);
FAKE_API void fake_unlock(void);
FAKE_API struct fake_hip *fake_settings(void);

/* How this call of a function is to fail: 0, or the error. */
FAKE_API unsigned int fake_failure(const char *function);

/* NULL: no memory. */
FAKE_API struct fake_allocation *fake_allocate(enum fake_kind kind, int device,
					       size_t size);
/* In address space that is reserved. */
FAKE_API struct fake_allocation *fake_map(int device, void *space, size_t size,
					  unsigned int type);
/* Somebody else's pages. */
FAKE_API struct fake_allocation *fake_adopt(void *pointer, size_t size, int device);
FAKE_API void fake_free(struct fake_allocation *allocation);

/* The one around an address, or NULL. */
FAKE_API struct fake_allocation *fake_find(const void *pointer);

FAKE_API bool fake_on_host(enum fake_kind kind);

#endif
