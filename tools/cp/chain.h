/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_CHAIN_H
#define PIER_TOOLS_CP_CHAIN_H

#include <pthread.h>

#include "nodes.h"
#include "options.h"
#include "remote/start.h"

/* The servers of a copy to several destinations, and the hub between them. */
struct chain {
	const struct cp_options *options;
	const struct shell *shell;
	struct hub hub;		  /* its node i + 1 is destination i */
	struct failure *failures; /* of destination i; status 0: it has been copied to */
	pthread_t thread;
	bool running;
};

/* Functions that return int return 0, or -1 with the failure set. */

/* Look up the destinations' addresses, which may take seconds. */
int open_chain(struct chain *chain, const struct cp_options *options,
	       const struct shell *shell, const char *device, struct failure *failure);
/*
 * Start the servers of all destinations that are left, send them the request, and
 * connect `control` to the hub. One that cannot be started is left out; fails if none is
 * left, or on a signal. `ret_peers`: those that this host may have to connect to.
 */
int start_chain(struct chain *chain, const struct request *request,
		struct notices *notices, struct control *control,
		struct peers *ret_peers);
/* Wait for the hub and the servers. */
void end_chain(struct chain *chain, struct control *control);
/*
 * Plan the next attempt, if there is to be one: without those that failed before anything
 * was copied; or, when all others are done, with one whose connection failed.
 */
bool plan_attempt(struct chain *chain);
/* Of the attempt: why the last destination was left out; NULL: some are left. */
const struct failure *find_last_loss(const struct chain *chain);
/*
 * Sets the failure if a destination was left out, and there is no other failure. Returns
 * whether a destination has the copy.
 */
bool report_chain(const struct chain *chain, struct failure *failure);
void close_chain(struct chain *chain);

#endif
