/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_ENDPOINT_H
#define PIER_CHANNEL_SETUP_ENDPOINT_H

#include <pier/endpoint.h>

/*
 * Check an endpoint, wherever it came from. The sentence names the wrong field.
 *
 * error  the errno to fail with
 *
 * Returns 0 or -error.
 */
int pier_check_endpoint(const struct pier_endpoint *endpoint, int error);

#endif
