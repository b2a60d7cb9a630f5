/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_DEREG_H
#define PIER_REGION_DEREG_H

#include "mr.h"

/* Deregister the verbs regions beneath, the last first. 0 or a positive errno. */
int pier_dereg_parts(struct pier_mr *region);

/* Free a region of which nothing is registered, and release its ranges; NULL is fine. */
void pier_free_region(struct pier_mr *region);

#endif
