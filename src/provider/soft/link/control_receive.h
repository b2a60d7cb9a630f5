/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CONTROL_RECEIVE_H
#define PIER_SOFT_CONTROL_RECEIVE_H

#include <stdbool.h>

struct soft_link;

/*
 * Handles the control messages that have arrived. With the engine locked. False: they
 * violate the protocol.
 */
bool pier_soft_receive_control(struct soft_link *link);

#endif
