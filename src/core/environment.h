/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_ENVIRONMENT_H
#define PIER_CORE_ENVIRONMENT_H

#include <stdbool.h>

/* The value of an environment variable that switches something. */
enum pier_switch {
	PIER_SWITCH_AUTO, /* "auto", empty or not set */
	PIER_SWITCH_ON,	  /* "on" */
	PIER_SWITCH_OFF,  /* "off" */
};

/*
 * Read a variable, with secure_getenv(3).
 *
 * Errors: -EINVAL it has another value.
 */
int pier_read_switch(const char *name, enum pier_switch *ret_value);

/* Whether a variable is "off" or "on". Another value is logged and counts as unset. */
bool pier_switched_off(const char *name);
bool pier_switched_on(const char *name);

#endif
