/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_THREAD_H
#define PIER_SOFT_THREAD_H

#include <stdbool.h>

/* The engine's thread, which makes progress while no application polls. */

struct soft_context;

/* `stepped`: without a thread. On failure pier_soft_stop_engine() follows. */
int pier_soft_start_engine(struct soft_context *context, bool stepped);
void pier_soft_stop_engine(struct soft_context *context);
/* An application that asks for an event stops polling: the thread takes over again. */
void pier_soft_end_thread_pause(struct soft_context *context);

#endif
