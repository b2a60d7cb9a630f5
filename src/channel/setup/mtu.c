/* SPDX-License-Identifier: BSD-3-Clause */
#include "mtu.h"

bool pier_mtu_valid(uint32_t bytes)
{
	return bytes >= 256 && bytes <= 4096 && (bytes & (bytes - 1)) == 0;
}

/* enum ibv_mtu counts doublings: IBV_MTU_256 is 1, IBV_MTU_4096 is 5. */
_Static_assert(IBV_MTU_256 == 1 && IBV_MTU_4096 == 5, "128 << mtu is its size");

enum ibv_mtu pier_mtu_to_verbs(uint32_t bytes)
{
	return (enum ibv_mtu)(__builtin_ctz(bytes) - 7);
}

uint32_t pier_mtu_from_verbs(enum ibv_mtu mtu)
{
	if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096)
		return 0;
	return UINT32_C(128) << mtu;
}

uint32_t pier_clamp_mtu(uint32_t wanted, uint32_t limit)
{
	if (wanted == 0 || (limit != 0 && limit < wanted))
		return limit;
	return wanted;
}
