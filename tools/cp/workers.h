/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_WORKERS_H
#define PIER_TOOLS_CP_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "failure.h"

/* Threads that take jobs in order and hand them back when they are done. */

struct job;

/* `scratch` is memory of the thread that runs the job. */
typedef void job_function(struct job *job, void *scratch);

struct job {
	job_function *run;
	struct job *next; /* the workers' */
};

struct workers;

/* Each thread has scratch memory of so many bytes. */
int start_workers(unsigned int count, size_t scratch_size, struct workers **ret_workers,
		  struct failure *failure);
/* Wait for the jobs that run, forget those that do not, and end. NULL is fine. */
void stop_workers(struct workers *workers);

/* The job is the workers' until take_done() hands it back. */
void submit_job(struct workers *workers, struct job *job);
/* A job that is done, or NULL. */
struct job *take_finished_job(struct workers *workers);
/* How many jobs were given and not yet taken. */
unsigned int workers_busy(const struct workers *workers);
/* Readable when a job was done; take_done() until NULL, then sleep. */
int workers_fd(const struct workers *workers);

#endif
