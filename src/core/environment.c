/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "environment.h"
#include "core/error.h"
#include "core/log.h"

int pier_read_switch(const char *name, enum pier_switch *ret_value)
{
	const char *text = secure_getenv(name);

	if (!text || !text[0] || strcmp(text, "auto") == 0)
		*ret_value = PIER_SWITCH_AUTO;
	else if (strcmp(text, "on") == 0)
		*ret_value = PIER_SWITCH_ON;
	else if (strcmp(text, "off") == 0)
		*ret_value = PIER_SWITCH_OFF;
	else
		return pier_fail(EINVAL, "%s=%s: not \"on\", \"off\" or \"auto\"", name,
				 text);
	return 0;
}

static enum pier_switch read_or_warn(const char *name)
{
	enum pier_switch value = PIER_SWITCH_AUTO;

	if (pier_read_switch(name, &value))
		pier_warning("%s", pier_error_message());
	return value;
}

bool pier_switched_off(const char *name)
{
	return read_or_warn(name) == PIER_SWITCH_OFF;
}

bool pier_switched_on(const char *name)
{
	return read_or_warn(name) == PIER_SWITCH_ON;
}
