/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_LEVEL_ZERO_CONTROL_H
#define TESTS_FAKES_LEVEL_ZERO_CONTROL_H

/*
 * Settings of the fake Level Zero, and its counters.
 *
 *	void *loader = dlopen("libze_loader.so.1", RTLD_NOW);
 *	struct fake_level_zero *(*find)(void) = dlsym(loader, "fake_level_zero_control");
 *	struct fake_level_zero *fake = find();
 *
 * Settings may be changed while no other thread is in the fake. The number of devices
 * can also come from the environment, for whole programs: FAKE_LEVEL_ZERO_DEVICES, by
 * default 2. The devices belong to the second driver; the first one is an NPU's.
 *
 * It does what Intel's compute runtime does (NEO, intel/compute-runtime); the functions
 * named are those of level_zero/core/source/context/context_imp.cpp there.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_LEVEL_ZERO_DEVICES 8

struct fake_level_zero {
	/* Settings. */
	uint32_t devices; /* 0: zeInit() fails, as in the loader */
	uint64_t memory;  /* bytes of each device */
	uint64_t max_alloc;
	bool exports; /* the devices report exports of dma-bufs */
	/*
	 * As the specification has it, memory of another context is unknown. NEO has one
	 * list for all contexts of a driver: getMemAllocProperties().
	 */
	bool strict;
	/*
	 * Small memory that is not for exports is a piece of a pool, which has the number
	 * and the fd: getUsmPoolOwningPtr(), in NEO of 2026.
	 */
	bool pools;
	bool tiles;	  /* an export has only the first half of the memory */
	bool address_ids; /* the number is the address, as in NEO of 2022 */
	bool no_copy_queues;
	/*
	 * So many copies must be under way before one of them is done; 0: any. A copy
	 * that waits for 10 seconds is a misuse.
	 */
	unsigned int meet;
	char fail_function[64]; /* "": none */
	unsigned int fail_call; /* counted down; the call at 1 fails, once */
	unsigned int fail_error;

	/* Counters. */
	size_t allocations; /* alive, of all kinds */
	uint64_t bytes[FAKE_LEVEL_ZERO_DEVICES];
	size_t contexts;       /* alive */
	size_t lists;	       /* alive */
	size_t fds;	       /* the driver's own, open */
	size_t initialised;    /* calls of zeInit() that succeeded */
	size_t compute_copies; /* copies in a queue that kernels use, too */
	/*
	 * Calls that would crash or corrupt the real one: a struct without its type, a
	 * command list in two threads, freeing unknown memory, closing the driver's fd,
	 * any call in a child of fork(2).
	 */
	size_t misuses;
};

struct fake_level_zero *fake_level_zero_control(void);

/* A CPU address of device memory, which only kernels could access; NULL: it is none. */
void *fake_level_zero_reach(void *pointer);

#endif
