/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CANARY_RUN_H
#define PIER_REGION_CANARY_RUN_H

#include "canary.h"
#include "device/pair.h"

enum {
	PIER_CANARY_SENTENCE = 768,
};

/*
 * Send the canary once over one path, whatever is known about it. The time that it waits
 * for the NIC is limited.
 *
 * ret_reason  why the path does not lead to the device's memory; "": it does. After an
 *             error: why the canary could not be sent. It has PIER_CANARY_SENTENCE bytes.
 *
 * Errors: those of pier_buffer_alloc(), pier_buffer_copy_to(), pier_loop_create() and of
 * the registration; -EAGAIN the NIC fails at host memory, too.
 */
int pier_run_canary(struct pier_pd *pd, struct pier_pair *pair, enum pier_mapping mapping,
		    pier_path_function *take, char *ret_reason);

#endif
