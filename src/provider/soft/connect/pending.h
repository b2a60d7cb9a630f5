/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_PENDING_H
#define PIER_SOFT_PENDING_H

#include <stdint.h>

/* Connections that are not authenticated yet. With the engine locked. */

struct soft_node;

void pier_soft_accept(struct soft_node *node);
void pier_soft_continue_pending(struct soft_node *node, uint64_t id);
void pier_soft_check_pending(struct soft_node *node);

#endif
