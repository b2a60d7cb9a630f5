/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_LOAD_H
#define PIER_BACKENDS_HIP_LOAD_H

#include <stdbool.h>
#include <stddef.h>

#include "api.h"

/*
 * Open the runtimes, or use those that the process has loaded. Any thread.
 *
 * Errors: -EOPNOTSUPP they are not installed, lack a function, or the process is a child
 * of one that used them; -ENOMEM.
 */
int pier_hip_open(const struct pier_hip **ret_hip);

/* The runtimes if this process has loaded them, for pier or for others; or NULL. */
const struct pier_hip *pier_hip_opened(void);

/*
 * Whether fork(2) made this process after the runtime was opened: the driver refuses the
 * parent's descriptors here, and HIP's threads do not exist here.
 */
bool pier_hip_inherited(const struct pier_hip *hip);

/* Errors: -EOPNOTSUPP it did; the sentence says why that matters. */
int pier_hip_check_owner(const struct pier_hip *hip);

/* "6.2", from hipRuntimeGetVersion(). */
void pier_hip_version(const struct pier_hip *hip, char *ret_text, size_t size);

#endif
