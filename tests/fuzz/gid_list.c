/* SPDX-License-Identifier: BSD-3-Clause */
/* The GIDs that a peer offers: packing reproduces accepted inputs, and both ends agree.
 */
#include "channel/setup/gid.h"
#include "fuzz.h"

static const struct pier_gid_list own = {
	.count = 3,
	.entries = {
		{ .gid.raw = { [10] = 0xff, [11] = 0xff, [12] = 192, [15] = 1 },
		  .gid_type = IBV_GID_TYPE_ROCE_V2 },
		{ .gid.raw = { 0x20, 1, [15] = 1 }, .gid_type = IBV_GID_TYPE_ROCE_V2 },
		{ .gid.raw = { 0x20, 1, [15] = 1 }, .gid_type = IBV_GID_TYPE_ROCE_V1 },
	},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ibv_gid_entry own_here, peer_here, own_there, peer_there;
	uint8_t wire[PIER_GIDS_WIRE_MAX];
	struct pier_gid_list list;
	int error;

	if (pier_unpack_gids(data, size, &list))
		return 0;
	FUZZ_CHECK(list.count >= 1 && list.count <= PIER_GID_OFFERS);
	FUZZ_CHECK(pier_pack_gids(&list, wire) == size && !memcmp(wire, data, size));
	error = pier_agree_on_gids(&own, &list, &own_here, &peer_here);
	FUZZ_CHECK(pier_agree_on_gids(&list, &own, &peer_there, &own_there) == error);
	FUZZ_CHECK(error || !memcmp(&own_here, &own_there, sizeof(own_here)));
	FUZZ_CHECK(error || !memcmp(&peer_here, &peer_there, sizeof(peer_here)));
	return 0;
}
