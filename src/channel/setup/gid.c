/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "gid.h"
#include "core/error.h"

/* By preference; the last is best. */
enum rank {
	RANK_UNUSABLE,
	RANK_OTHER,
	RANK_V1,
	RANK_V2_LINK_LOCAL,
	RANK_V2_IPV6,
	RANK_V2_IPV4,
};

static bool is_zero(const uint8_t *gid)
{
	static const uint8_t zero[16];

	return memcmp(gid, zero, sizeof(zero)) == 0;
}

/* ::ffff:a.b.c.d, as the kernel writes the GID of an IPv4 address. */
static bool is_ipv4(const uint8_t *gid)
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid, prefix, sizeof(prefix)) == 0;
}

/* fe80::/10 (RFC 4291) or 169.254.0.0/16 (RFC 3927). */
static bool is_link_local(const uint8_t *gid)
{
	if (is_ipv4(gid))
		return gid[12] == 169 && gid[13] == 254;
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

static enum rank rank_of(const struct ibv_gid_entry *entry)
{
	const uint8_t *gid = entry->gid.raw;

	if (is_zero(gid))
		return RANK_UNUSABLE;
	if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
		return RANK_V1;
	if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
		return RANK_OTHER;
	if (is_link_local(gid))
		return RANK_V2_LINK_LOCAL;
	return is_ipv4(gid) ? RANK_V2_IPV4 : RANK_V2_IPV6;
}

int pier_choose_gid(const struct ibv_gid_entry *entries, size_t count)
{
	enum rank best = RANK_UNUSABLE;
	int chosen = -1;

	for (size_t i = 0; i < count; i++) {
		if (rank_of(&entries[i]) > best) {
			best = rank_of(&entries[i]);
			chosen = (int)i;
		}
	}
	return chosen;
}

/* Read the entries that are not empty. Returns their number or -errno. */
static int read_table(const struct pier_provider *provider, struct ibv_context *context,
		      uint8_t port, int table_length, struct ibv_gid_entry *ret_entries)
{
	int count = 0;

	for (int i = 0; i < table_length; i++) {
		int error = provider->query_gid(context, port, (uint32_t)i,
						&ret_entries[count]);

		if (error == 0)
			count++;
		else if (error != ENODATA)
			return pier_fail_because(error, "read GID %d of port %u", i,
						 port);
	}
	return count;
}

int pier_find_gid(const struct pier_provider *provider, struct ibv_context *context,
		  uint8_t port, int table_length, struct ibv_gid_entry *ret_entry)
{
	struct ibv_gid_entry *entries;
	int count, chosen;

	if (table_length > PIER_GID_INDEXES)
		table_length = PIER_GID_INDEXES;
	/* One more, so that the allocation is not empty. */
	entries = calloc((size_t)(table_length > 0 ? table_length : 0) + 1,
			 sizeof(*entries));
	if (!entries)
		return pier_fail(ENOMEM, "no memory for %d GIDs", table_length);
	pier_clear_error();
	count = read_table(provider, context, port, table_length, entries);
	chosen = count < 0 ? -1 : pier_choose_gid(entries, (size_t)count);
	if (chosen >= 0)
		*ret_entry = entries[chosen];
	free(entries);
	if (count < 0)
		return count;
	if (chosen < 0)
		return pier_fail(
			EADDRNOTAVAIL,
			"port %u has no GID to send from (%d in its table): give "
			"its network interface an IP address",
			port, count);
	return 0;
}
