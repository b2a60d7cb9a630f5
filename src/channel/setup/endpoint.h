/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_ENDPOINT_H
#define PIER_CHANNEL_SETUP_ENDPOINT_H

#include <infiniband/verbs.h>
#include <pier/endpoint.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Check an endpoint, wherever it came from. The sentence names the wrong field.
 *
 * error  the errno to fail with
 *
 * Returns 0 or -error.
 */
int pier_check_endpoint(const struct pier_endpoint *endpoint, int error);

/*
 * MTUs in bytes. The link drops the packets of a queue pair whose MTU exceeds that of
 * its port: connecting succeeds, and the first transfer times out.
 */

/* 256, 512, 1024, 2048 or 4096. */
bool pier_mtu_valid(uint32_t bytes);

/* Convert a valid MTU to the verbs value, and back; an unknown value gives 0. */
enum ibv_mtu pier_mtu_to_verbs(uint32_t bytes);

uint32_t pier_mtu_from_verbs(enum ibv_mtu mtu);

/* The smaller of the two; 0 stands for unknown. */
uint32_t pier_clamp_mtu(uint32_t wanted, uint32_t limit);

#endif
