/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_MTU_H
#define PIER_CHANNEL_SETUP_MTU_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * MTUs in bytes. A queue pair whose MTU is larger than its port's sends packets
 * that the link drops: it connects, and the first transfer times out.
 */

/* 256, 512, 1024, 2048 or 4096. */
bool pier_mtu_valid(uint32_t bytes);

/* The verbs value of a valid MTU, and back; 0 for one that is unknown. */
enum ibv_mtu pier_mtu_to_verbs(uint32_t bytes);
uint32_t pier_mtu_from_verbs(enum ibv_mtu mtu);

/* The smallest of those that are known; 0 stands for unknown. */
uint32_t pier_clamp_mtu(uint32_t wanted, uint32_t limit);

#endif
