/* SPDX-License-Identifier: BSD-3-Clause */
#include <pier/version.h>

const char *pier_version(void)
{
	return PIER_VERSION;
}

uint32_t pier_version_number(void)
{
	return PIER_VERSION_NUMBER;
}
