/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_LOAD_H
#define PIER_BACKENDS_LEVEL_ZERO_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include <pier/backend.h>

#include "api.h"

enum {
	PIER_ZE_DEVICES = 64, /* GPUs or tiles: further ones are not used */
	PIER_ZE_REASON = 512,
};

struct pier_ze_device {
	struct _ze_device_handle_t *handle;
	struct _ze_driver_handle_t *driver;
	struct _ze_context_handle_t *context; /* pier's own, one for each driver */
	uint32_t ordinal; /* of the group of queues by which pier copies */
	bool exports;	  /* dma-bufs, as the driver reports */
	uint64_t max_alloc;
	/* An idle command list of pier's, or NULL. A copy takes it out. */
	_Atomic(struct _ze_command_list_handle_t *) idle;
};

/* Constant once it is opened, except `idle`, and kept until the process ends. */
struct pier_ze {
	struct pier_ze_functions call;
	pid_t owner; /* the process that initialised the driver */
	unsigned int version;
	uint32_t count;
	struct pier_ze_device devices[PIER_ZE_DEVICES];
};

/*
 * Open the loader, initialise the drivers and list their GPUs. Any thread. No failure is
 * remembered.
 *
 * ret_reason  a sentence, after a failure
 *
 * Errors: -EOPNOTSUPP there is no loader, driver or GPU; -ECHILD the process is a child
 * of the one that initialised the drivers; -ENOMEM.
 */
int pier_ze_open(struct pier_ze **ret_ze, char ret_reason[PIER_ZE_REASON]);

/*
 * The drivers if this process has initialised them, for pier or for others; or NULL, as
 * also in a child of that process. Initialises nothing.
 */
struct pier_ze *pier_ze_present(void);

/* Whether this process is a child of the one that initialised the drivers. */
bool pier_ze_inherited(const struct pier_ze *ze);

/* "ZE_RESULT_ERROR_DEVICE_LOST", or "an unknown ze_result_t". */
const char *pier_ze_error_name(unsigned int error);

/*
 * Returns 0 for PIER_ZE_SUCCESS; pier_fail() with any other ze_result_t: its name, its
 * number and the remedy follow the sentence. Returns the negative errno that suits it.
 */
int pier_ze_check(unsigned int error, const char *format, ...) PIER_PRINTF(2, 3);

#endif
