/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef CONFORMANCE_OTHER_H
#define CONFORMANCE_OTHER_H

#include <sys/types.h>

/*
 * The other process of a case: this program started anew, since the drivers of devices
 * do not survive fork(2). It says what goes wrong by its exit status: cmocka's assertions
 * belong to the first one.
 */

/*
 * Start one that runs a body, which gets one end of a stream.
 *
 * body  its name: "target", "victim" or "idle victim"
 */
pid_t other_start(const char *body, int *ret_stream);

/* In the new one: run it; the exit status. */
int other_run(const char *body, int stream);

/* The bodies, which stand beside the cases. */
int process_target(int stream);
int process_victim(int stream);
int recovery_victim(int stream);

#endif
