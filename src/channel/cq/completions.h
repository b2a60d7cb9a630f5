/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_CQ_COMPLETIONS_H
#define PIER_CHANNEL_CQ_COMPLETIONS_H

#include "device/device.h"

/*
 * A completion queue and the completion channel of its events: of one channel, or
 * shared.
 */
struct pier_completions {
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	uint32_t comp_vector; /* PIER_UNSET until one was chosen */
};

/*
 * what  for the sentence of a wrong vector: "channel attributes"
 *
 * After an error pier_close_completions() destroys those that exist. Errors: -EINVAL
 * comp_vector; others of verbs.
 */
int pier_open_completions(const char *what, struct pier_device *device, uint32_t entries,
			  void *cq_context, struct pier_completions *completions);

/* Destroy those that exist. After an error it can be called again and continues. */
int pier_close_completions(const struct pier_provider *provider,
			   struct pier_completions *completions);

/*
 * Ask for an event at the next completion, and clear earlier events. There is no event
 * for completions that are present already.
 */
int pier_request_event(const struct pier_provider *provider,
		       const struct pier_completions *completions);

#endif
