/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <netinet/in.h>
#include <string.h>

#include "datagram.h"

static const uint8_t magic[4] = { 'p', 'u', 'd', 1 }; /* with the version */

/* Magic (4 bytes), flags (1), zeros (3), then four words; all but immediate are LE. */
void pier_soft_pack_envelope(const struct soft_envelope *envelope, uint8_t *ret_bytes)
{
	const uint32_t words[4] = {
		htole32(envelope->from_qpn),
		htole32(envelope->to_qpn),
		htole32(envelope->qkey),
		envelope->immediate,
	};

	_Static_assert(SOFT_ENVELOPE_SIZE == 8 + sizeof(words), "the whole envelope");
	memset(ret_bytes, 0, 8);
	memcpy(ret_bytes, magic, sizeof(magic));
	ret_bytes[4] = envelope->flags;
	memcpy(ret_bytes + 8, words, sizeof(words));
}

bool pier_soft_unpack_envelope(const uint8_t *bytes, struct soft_envelope *ret_envelope)
{
	static const uint8_t zeros[3];
	uint32_t words[4];

	if (memcmp(bytes, magic, sizeof(magic)) != 0 ||
	    memcmp(bytes + 5, zeros, sizeof(zeros)) != 0 ||
	    (bytes[4] & ~(SOFT_DATAGRAM_SOLICITED | SOFT_DATAGRAM_IMMEDIATE)))
		return false;
	memcpy(words, bytes + 8, sizeof(words));
	*ret_envelope = (struct soft_envelope){
		.flags = bytes[4],
		.from_qpn = le32toh(words[0]),
		.to_qpn = le32toh(words[1]),
		.qkey = le32toh(words[2]),
		.immediate = words[3],
	};
	return ret_envelope->from_qpn <= 0xffffff;
}

struct ibv_grh pier_soft_make_grh(const struct ibv_global_route *route,
				  const union ibv_gid *from, size_t payload,
				  bool immediate)
{
	/* UDP, BTH, DETH and ICRC, the immediate data, and the payload in whole words. */
	size_t length = 8 + 12 + 8 + 4 + (immediate ? 4 : 0) + ((payload + 3) & ~3ul);

	_Static_assert(sizeof(struct ibv_grh) == SOFT_GRH_SIZE, "as on the wire");
	return (struct ibv_grh){
		.version_tclass_flow = htobe32(6u << 28 |
					       (uint32_t)route->traffic_class << 20 |
					       (route->flow_label & 0xfffff)),
		.paylen = htobe16((uint16_t)length),
		.next_hdr = IPPROTO_UDP,
		.hop_limit = route->hop_limit,
		.sgid = *from,
		.dgid = route->dgid,
	};
}
