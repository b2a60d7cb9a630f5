/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_FAKE_H
#define TESTS_FAKES_HIP_FAKE_H

#include <pthread.h>

#include "control.h"
#include "device_memory.h"

/*
 * Shared by both libraries. It is part of the HSA library, because the real HIP's memory
 * is managed there. All functions need the lock unless stated otherwise.
 */

#define FAKE_API __attribute__((visibility("default")))

enum fake_kind {
	FAKE_DEVICE,
	FAKE_FINE,
	FAKE_HOST,
	FAKE_REGISTERED,
	FAKE_MANAGED,
};

/* hsa_amd_pointer_type_t */
enum {
	FAKE_POINTER_UNKNOWN = 0,
	FAKE_POINTER_HSA = 1,
	FAKE_POINTER_LOCKED = 2,
	FAKE_POINTER_IPC = 4,
	FAKE_POINTER_RESERVED = 5,
	FAKE_POINTER_VIRTUAL = 6,
};

enum {
	FAKE_BLOCK = 2 << 20, /* size of a block shared by smaller allocations */
	FAKE_PAGE = 4096,
};

/* The driver's own allocation, which is divided among smaller ones of a device. */
struct fake_block {
	struct fake_block *next;
	struct device_memory memory;
	int device;
	bool shared;
	unsigned char used[FAKE_BLOCK / FAKE_PAGE];
	size_t users;
	char *seen; /* what the device's kernels see of it; NULL: none ran yet */
};

struct fake_allocation {
	struct fake_allocation *next;
	enum fake_kind kind;
	int device;
	uint32_t number;   /* unique */
	unsigned int type; /* hsa_amd_pointer_type_t; 0: according to its kind */
	char *address;
	size_t size;		  /* requested size */
	size_t whole;		  /* size in whole pages */
	char *driver;		  /* the driver's address */
	struct fake_block *block; /* NULL: host memory */
};

FAKE_API void fake_lock(void);
FAKE_API void fake_unlock(void);
FAKE_API struct fake_hip *fake_settings(void);

/* The error with which this call must fail, or 0. */
FAKE_API unsigned int fake_failure(const char *function);

/* Returns NULL if there is no memory. */
FAKE_API struct fake_allocation *fake_allocate(enum fake_kind kind, int device,
					       size_t size);
/* Allocates in reserved address space. */
FAKE_API struct fake_allocation *fake_map(int device, void *space, size_t size,
					  unsigned int type);
/* Registers existing pages. */
FAKE_API struct fake_allocation *fake_adopt(void *pointer, size_t size, int device);
FAKE_API void fake_free(struct fake_allocation *allocation);

/* The allocation that contains an address, or NULL. */
FAKE_API struct fake_allocation *fake_find(const void *pointer);

/* By its number, or NULL. */
struct fake_allocation *fake_find_number(uint32_t number);

/* Whether HSA is initialised; takes the lock. */
bool fake_hsa_is_open(void);
/* As if HSA knew memory of hipMemMap(). */
unsigned int fake_pointer_type(const struct fake_allocation *allocation);

FAKE_API bool fake_on_host(enum fake_kind kind);

#endif
