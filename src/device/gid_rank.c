/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "gid_rank.h"

static bool is_zero(const uint8_t *gid)
{
	static const uint8_t zero[16];

	return memcmp(gid, zero, sizeof(zero)) == 0;
}

bool pier_gid_is_ipv4(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid, prefix, sizeof(prefix)) == 0;
}

/* fe80::/10 (RFC 4291) or 169.254.0.0/16 (RFC 3927). */
static bool is_link_local(const uint8_t *gid)
{
	if (pier_gid_is_ipv4(gid))
		return gid[12] == 169 && gid[13] == 254;
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

enum pier_gid_rank pier_rank_gid(const struct ibv_gid_entry *entry)
{
	const uint8_t *gid = entry->gid.raw;

	if (is_zero(gid))
		return PIER_GID_UNUSABLE;
	if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
		return PIER_GID_V1;
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
		return PIER_GID_OTHER;
	if (is_link_local(gid))
		return PIER_GID_V2_LINK_LOCAL;
	return pier_gid_is_ipv4(gid) ? PIER_GID_V2_IPV4 : PIER_GID_V2_IPV6;
}

void pier_rank_gids(const struct ibv_gid_entry *entries, uint32_t count,
		    struct pier_gid_list *ret_list)
{
	ret_list->count = 0;
	for (int rank = PIER_GID_V2_IPV4; rank > PIER_GID_UNUSABLE; rank--) {
		for (uint32_t i = 0; i < count; i++) {
			if ((int)pier_rank_gid(&entries[i]) == rank &&
			    ret_list->count < PIER_GID_OFFERS)
				ret_list->entries[ret_list->count++] = entries[i];
		}
	}
}
