/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DEVICE_H
#define PIER_SOFT_DEVICE_H

#include <infiniband/verbs.h>

/* For tests: a context without a thread, which only pier_soft_step() drives. */
struct ibv_context *pier_soft_open_stepped(void);

#endif
