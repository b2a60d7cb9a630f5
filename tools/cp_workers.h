/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_WORKERS_H
#define PIER_TOOLS_CP_WORKERS_H

#include <stdbool.h>
#include <stdint.h>

#include "failure.h"

/* Threads that take jobs in order and hand them back when they are done. */

struct job {
	void (*run)(struct job *job);
	struct job *next; /* the workers' */
};

struct workers;

int start_workers(unsigned int count, struct workers **ret_workers,
		  struct failure *failure);
/* Wait for the jobs that run, forget those that do not, and end. NULL is fine. */
void stop_workers(struct workers *workers);

/* The job is the workers' until take_done() hands it back. */
void give_job(struct workers *workers, struct job *job);
/* A job that is done, or NULL. */
struct job *take_done(struct workers *workers);
/* How many jobs were given and not yet taken. */
unsigned int workers_busy(const struct workers *workers);
/* Readable when a job was done; take_done() until NULL, then sleep. */
int workers_fd(const struct workers *workers);

#endif
