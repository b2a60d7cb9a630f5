/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DEVICE_H
#define PIER_SOFT_DEVICE_H

#include <infiniband/verbs.h>

/*
 * For programs of plain verbs, which pass no endpoints: the peer of a queue pair is found
 * by its GID and QPN alone. NULL and errno, with pier_fail(), as from open_device().
 */
struct ibv_context *pier_soft_open_verbs(void);

/* For tests: a context without a thread, which only pier_soft_step() drives. */
struct ibv_context *pier_soft_open_stepped(void);

#endif
