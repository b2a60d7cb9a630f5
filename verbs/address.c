/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "provider/soft/device.h"

/* Address handles, and where a datagram came from. */

/*
 * As in libibverbs, for the GRHs of soft0: a GRH is before the payload of each datagram
 * and has the form of IPv6.
 */
int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc,
			struct ibv_grh *grh, struct ibv_ah_attr *ret_attr)
{
	uint32_t word = be32toh(grh->version_tclass_flow);
	union ibv_gid own;

	*ret_attr = (struct ibv_ah_attr){
		.sl = wc->sl,
		.dlid = wc->slid,
		.src_path_bits = wc->dlid_path_bits,
		.port_num = port,
	};
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	if (ibv_query_gid(context, port, 0, &own))
		return -1;
	if (memcmp(&own, &grh->dgid, sizeof(own)) != 0) {
		errno = EINVAL;
		return -1;
	}
	ret_attr->is_global = 1;
	ret_attr->grh = (struct ibv_global_route){
		.dgid = grh->sgid,
		.flow_label = word & 0xfffff,
		.hop_limit = grh->hop_limit,
		.traffic_class = word >> 20 & 0xff,
	};
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	return pier_soft_verbs.create_ah(pd, attr);
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
				     struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	return pier_soft_verbs.destroy_ah(ah);
}
