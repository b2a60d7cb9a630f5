/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_WORKERS_H
#define PIER_TOOLS_CP_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "failure.h"

/* Threads that run jobs, in the order of submission. */

struct job;

/* `scratch` is private memory of the thread that runs the job. */
typedef void job_function(struct job *job, void *scratch);

struct job {
	job_function *run;
	struct job *next; /* internal */
};

struct workers;

/* `count` may be 0. Each thread allocates scratch_size bytes, whole pages, of scratch
 * memory. */
int start_workers(unsigned int count, size_t scratch_size, struct workers **ret_workers,
		  struct failure *failure);
/* Wait for the running jobs, drop the others, and end the threads. NULL is allowed. */
void stop_workers(struct workers *workers);

/* The workers own the job until take_finished_job() returns it. */
void submit_job(struct workers *workers, struct job *job);
/* Returns a finished job, or NULL. */
struct job *take_finished_job(struct workers *workers);
/* Make workers_fd() readable for once. Any thread may call it. */
void wake_owner(struct workers *workers);
/* The number of jobs submitted and not yet taken back. */
unsigned int workers_busy(const struct workers *workers);
/* Readable when a job has finished. Take jobs until NULL before you poll it. */
int workers_fd(const struct workers *workers);

#endif
