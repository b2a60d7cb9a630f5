/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_ENDPOINT_H
#define PIER_CHANNEL_SETUP_ENDPOINT_H

#include <pier/endpoint.h>

/*
 * What is wrong with an endpoint, wherever it came from: writes a sentence
 * for pier_error_message() that names the field. 0 or -error, which is the
 * caller's choice.
 */
int pier_check_endpoint(const struct pier_endpoint *endpoint, int error);

#endif
