/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "gid.h"
#include "provider/soft/link/auth.h"

/* fd00::/8 is for addresses that are random and thereby unique (RFC 4193). */
static const uint8_t gid_prefix[8] = { 0xfd, 0, 'p', 'i', 'e', 'r', 0, 0 };

bool pier_soft_make_gid(union ibv_gid *ret_gid)
{
	memcpy(ret_gid->raw, gid_prefix, sizeof(gid_prefix));
	return pier_soft_random(ret_gid->raw + 8, 8);
}

bool pier_soft_is_gid(const union ibv_gid *gid)
{
	return memcmp(gid->raw, gid_prefix, sizeof(gid_prefix)) == 0;
}
