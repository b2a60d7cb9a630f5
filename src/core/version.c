/* SPDX-License-Identifier: BSD-3-Clause */
#include <pier/version.h>

const char *pier_version(void)
{
	return PIER_VERSION;
}
