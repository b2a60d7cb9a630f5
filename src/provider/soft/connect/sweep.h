/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SWEEP_H
#define PIER_SOFT_SWEEP_H

struct soft_meeting;

/*
 * Removes what processes that were killed left in the folder: sockets that nobody has
 * open, and half-written keys. Best effort.
 */
void pier_soft_sweep_folder(const struct soft_meeting *meeting);

#endif
