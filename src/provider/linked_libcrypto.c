/* SPDX-License-Identifier: BSD-3-Clause */
#include "libcrypto.h"

/* In place of libcrypto.c, for a build that links the library. */

#define ADDRESS(name) .name = name,
struct pier_libcrypto pier_crypto = { PIER_LIBCRYPTO_FUNCTIONS(ADDRESS) };

int pier_open_libcrypto(void)
{
	return 0;
}
