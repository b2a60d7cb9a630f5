/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_ERROR_H
#define PIER_BACKENDS_LEVEL_ZERO_ERROR_H

#include <pier/backend.h>

/* "ZE_RESULT_ERROR_DEVICE_LOST", or "an unknown ze_result_t". */
const char *pier_ze_error_name(unsigned int error);

/*
 * pier_fail() with a ze_result_t: its name, its number and the remedy follow the
 * sentence. Returns the negative errno that suits it.
 */
int pier_ze_fail(unsigned int error, const char *format, ...) PIER_PRINTF(2, 3);

#endif
