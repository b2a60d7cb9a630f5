/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "device/topology.h"
#include "endpoint.h"
#include "gid.h"

enum {
	/* 0 and 1 are the management queue pairs of each port. */
	FIRST_QPN = 2,
	/* How many queue pairs share what a device has for reads of its peers. */
	SHARING_QUEUE_PAIRS = 16,
	LONGEST_PAUSE_MS = 100,
};

_Static_assert(PIER_ENDPOINT_ADDRESS_MAX == (int)PIER_PROVIDER_ADDRESS_MAX,
	       "an endpoint holds what a provider says");

static uint8_t clamp_reads(uint8_t value, int limit)
{
	if (limit < 0)
		limit = 0;
	return value < limit ? value : (uint8_t)limit;
}

/*
 * max_res_rd_atom is for all queue pairs of the device. ionic has 16 in all, so that one
 * queue pair that serves 16 leaves none for the next (Mooncake pull request 3977). Other
 * devices have some for each queue pair, and 0 is unknown (bnxt_re, irdma).
 */
static int fair_share(const struct ibv_device_attr *limits)
{
	int share = limits->max_res_rd_atom / SHARING_QUEUE_PAIRS;

	if (limits->max_res_rd_atom <= 0)
		return UINT8_MAX;
	return share > 0 ? share : 1;
}

uint8_t pier_served_reads(const struct pier_channel *channel)
{
	const struct ibv_device_attr *limits = &channel->pd->device->limits;
	uint32_t served = channel->attr.max_dest_rd_atomic;

	if (served == PIER_UNSET)
		served = clamp_reads((uint8_t)channel->attr.max_rd_atomic,
				     fair_share(limits));
	return clamp_reads((uint8_t)served, limits->max_qp_rd_atom);
}

/* A provider with addresses of its own makes no use of GIDs. */
static int add_address(struct pier_channel *channel, struct pier_endpoint *endpoint)
{
	int length;

	pier_offer_gids(channel, endpoint);
	if (!channel->provider->get_qp_address)
		return 0;
	pier_clear_error();
	length = channel->provider->get_qp_address(channel->qp, endpoint->address,
						   sizeof(endpoint->address));
	if (length < 0)
		return pier_fail_because(-length, "ask the device for its address");
	endpoint->address_length = (uint16_t)length;
	return 0;
}

int pier_channel_endpoint(struct pier_channel *channel,
			  struct pier_endpoint *ret_endpoint)
{
	PIER_REFUSE_NULL(channel, ret_endpoint);
	struct pier_endpoint endpoint = {
		.qpn = channel->qp->qp_num,
		.psn = channel->psn,
		.lid = channel->lid,
		.link_layer = channel->link_layer,
		.mtu = channel->port_mtu,
		.max_rd_atomic = pier_served_reads(channel),
		.generation = channel->generation,
	};
	int error = pier_check_process(&channel->object);

	if (error)
		return error;
	error = add_address(channel, &endpoint);
	if (!error)
		*ret_endpoint = endpoint;
	return error;
}

static bool has_gid(const struct pier_endpoint *peer)
{
	static const uint8_t none[sizeof(peer->gid)];

	return memcmp(peer->gid, none, sizeof(none)) != 0;
}

/* Check the rules that depend on this end too. */
static int check_peer(const struct pier_channel *channel,
		      const struct pier_endpoint *peer)
{
	bool has_address = peer->address_length > 0 && !pier_offers_gids(peer);
	int error = pier_check_endpoint(peer, EINVAL);

	if (error)
		return error;
	if (peer->qpn < FIRST_QPN)
		return pier_fail(EINVAL,
				 "peer's endpoint: qpn %u cannot belong to a channel",
				 peer->qpn);
	if (peer->link_layer != PIER_LINK_UNSPECIFIED &&
	    peer->link_layer != channel->link_layer)
		return pier_fail(
			EINVAL, "peer's endpoint: link_layer is %s, this port's is %s",
			peer->link_layer == PIER_LINK_ETHERNET ? "Ethernet"
							       : "InfiniBand",
			channel->link_layer == PIER_LINK_ETHERNET ? "Ethernet"
								  : "InfiniBand");
	if (channel->use_grh && !has_gid(peer))
		return pier_fail(EINVAL,
				 "peer's endpoint: gid is zero, and this port needs one");
	if (!channel->use_grh && peer->lid == 0)
		return pier_fail(EINVAL,
				 "peer's endpoint: lid is 0, and this port needs one");
	if (!channel->provider->set_qp_address == has_address)
		return pier_fail(EINVAL,
				 "peer's endpoint: address has %u bytes: one end is a "
				 "software NIC and the other is not",
				 peer->address_length);
	return 0;
}

static int give_provider_address(struct pier_channel *channel,
				 const struct pier_endpoint *peer)
{
	int error;

	if (!channel->provider->set_qp_address)
		return 0;
	pier_clear_error();
	error = channel->provider->set_qp_address(channel->qp, peer->address,
						  peer->address_length);
	if (error)
		return pier_fail_because(-error, "peer's endpoint: address of %u bytes",
					 peer->address_length);
	return 0;
}

static struct ibv_ah_attr route_to(const struct pier_channel *channel,
				   const struct pier_endpoint *peer)
{
	struct ibv_ah_attr route = {
		.dlid = peer->lid,
		.sl = (uint8_t)channel->attr.service_level,
		.src_path_bits = (uint8_t)channel->attr.src_path_bits,
		.static_rate = (uint8_t)channel->attr.static_rate,
		.port_num = (uint8_t)channel->attr.port,
	};

	bool other_subnet = channel->link_layer == PIER_LINK_INFINIBAND &&
			    has_gid(peer) &&
			    pier_is_other_subnet(channel->gid.gid.raw, peer->gid);

	/* The peer's LID is unknown in this subnet. */
	if (other_subnet && pier_flid_of(peer->gid))
		route.dlid = pier_flid_of(peer->gid);
	if (channel->use_grh || other_subnet) {
		route.is_global = 1;
		memcpy(route.grh.dgid.raw, peer->gid, sizeof(peer->gid));
		route.grh.flow_label = channel->attr.flow_label;
		route.grh.sgid_index = (uint8_t)channel->gid.gid_index;
		route.grh.hop_limit = (uint8_t)channel->attr.hop_limit;
		route.grh.traffic_class = pier_traffic_class(channel);
	}
	return route;
}

/*
 * Whether the device refuses to serve that many reads and accepts fewer. The peer relies
 * on the number in this end's endpoint, so it is the next endpoint that has the lower
 * one.
 */
static bool serves_fewer_reads(struct pier_channel *channel, struct ibv_qp_attr *attr,
			       int mask)
{
	while (attr->max_dest_rd_atomic > 0) {
		attr->max_dest_rd_atomic /= 2;
		if (channel->provider->modify_qp(channel->qp, attr, mask) != 0)
			continue;
		channel->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
		return true;
	}
	return false;
}

/* The device has refused RTR. Returns 0 if it accepts it now. */
static int explain_rtr(struct pier_channel *channel, struct ibv_qp_attr *attr, int mask,
		       int error)
{
	uint8_t promised = attr->max_dest_rd_atomic;
	bool for_number = abs(error) == EINVAL || abs(error) == ENOMEM;

	/* Another queue pair may have given back what this one lacked. */
	if (for_number && channel->provider->modify_qp(channel->qp, attr, mask) == 0)
		return 0;
	if (for_number && serves_fewer_reads(channel, attr, mask))
		return pier_fail_because(
			error,
			"bring queue pair %#x to RTR: it can serve %u reads and atomics, "
			"not %u (the device's max_res_rd_atom, %d, is for all queue "
			"pairs): reset both ends, which now use %u, or lower "
			"max_dest_rd_atomic",
			channel->qp->qp_num, attr->max_dest_rd_atomic, promised,
			channel->pd->device->limits.max_res_rd_atom,
			attr->max_dest_rd_atomic);
	return pier_fail_because(
		error,
		"bring queue pair %#x to RTR, towards queue pair %#x, lid %u, gid index "
		"%u, mtu %u",
		channel->qp->qp_num, attr->dest_qp_num, attr->ah_attr.dlid,
		channel->gid.gid_index, pier_mtu_from_verbs(attr->path_mtu));
}

/*
 * ETIMEDOUT: the kernel asked for the peer's MAC address for a second and got no answer
 * (ib_resolve_eth_dmac()), as when the switch has just learned of the port. The queue
 * pair is still in INIT. NCCL retries 34 times (wrap_ibv_modify_qp()). Returns 1 then, if
 * there is time left.
 */
static int modify_to_rtr(struct pier_channel *channel, const struct pier_endpoint *peer,
			 int64_t deadline)
{
	uint32_t mtu = pier_clamp_mtu(channel->port_mtu, peer->mtu);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.ah_attr = route_to(channel, peer),
		.path_mtu = pier_mtu_to_verbs(mtu),
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = pier_served_reads(channel),
		.min_rnr_timer = (uint8_t)channel->attr.min_rnr_timer,
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int error;

	pier_clear_error();
	error = channel->provider->modify_qp(channel->qp, &attr, mask);
	if (abs(error) == ETIMEDOUT && pier_poll_timeout(deadline) > 0) {
		pier_info("queue pair %#x: the peer's address is not resolved yet",
			  channel->qp->qp_num);
		return 1;
	}
	if (error)
		error = explain_rtr(channel, &attr, mask, error);
	if (!error)
		channel->path_mtu = mtu;
	return error;
}

static int modify_to_rts(struct pier_channel *channel)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = channel->psn,
		.max_rd_atomic = channel->read_depth,
		.timeout = (uint8_t)channel->attr.timeout,
		.retry_cnt = (uint8_t)channel->attr.retry_count,
		.rnr_retry = (uint8_t)channel->attr.rnr_retry_count,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
		   IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
	int error;

	pier_clear_error();
	error = channel->provider->modify_qp(channel->qp, &attr, mask);
	if (error)
		return pier_fail_because(error, "bring queue pair %#x to RTS",
					 channel->qp->qp_num);
	return 0;
}

/* Returns 1 as modify_to_rtr(). */
static int connect_to(struct pier_channel *channel, struct pier_endpoint *peer,
		      int64_t deadline)
{
	int error = check_peer(channel, peer);

	if (!error)
		error = pier_choose_gids(channel, peer);
	if (!error)
		error = give_provider_address(channel, peer);
	if (error)
		return error;
	/* A read beyond what the responder can serve is a fatal error there. */
	channel->read_depth = clamp_reads(
		clamp_reads((uint8_t)channel->attr.max_rd_atomic, peer->max_rd_atomic),
		channel->pd->device->limits.max_qp_init_rd_atom);
	pier_forget_qp_events(channel->pd->device, channel->qp->qp_num);
	error = modify_to_rtr(channel, peer, deadline);
	return error ? error : modify_to_rts(channel);
}

/*
 * Each endpoint is good for one connection. Generations begin at random, so one that is
 * neither the same nor slightly older belongs to another channel with the same queue
 * pair number.
 */
static bool is_stale(const struct pier_known_peer *last, const struct pier_endpoint *peer)
{
	return last->generation && peer->generation && last->qpn == peer->qpn &&
	       memcmp(last->gid, peer->gid, sizeof(last->gid)) == 0 &&
	       last->generation - peer->generation <= UINT16_MAX;
}

static int next_pause(int pause, int64_t deadline)
{
	int left = pier_poll_timeout(deadline);

	pause = pause == 0		       ? 1
		: 2 * pause < LONGEST_PAUSE_MS ? 2 * pause
					       : LONGEST_PAUSE_MS;
	return pause < left ? pause : left;
}

int pier_connect_step(struct pier_channel *channel, const struct pier_endpoint *peer,
		      int64_t deadline, int *pause_ms)
{
	struct pier_endpoint chosen = *peer;
	int error;

	if (channel->state != PIER_CHANNEL_PREPARED)
		return pier_fail(EISCONN,
				 channel->state == PIER_CHANNEL_CONNECTED
					 ? "the channel is connected already"
					 : "the channel failed to connect before, "
					   "and can only be reset or destroyed");
	if (channel->broken)
		return pier_fail_broken(channel);
	if (is_stale(&channel->last_peer, peer))
		return pier_fail(ESTALE,
				 "peer's endpoint: it belongs to the previous connection "
				 "(queue pair %#x, generation %u): reset the peer too, "
				 "and use its new endpoint",
				 peer->qpn, peer->generation);
	error = connect_to(channel, &chosen, deadline);
	if (error == 1) {
		*pause_ms = next_pause(*pause_ms, deadline);
		return 1;
	}
	if (!error) {
		channel->last_peer.qpn = peer->qpn;
		channel->last_peer.generation = peer->generation;
		memcpy(channel->last_peer.gid, peer->gid, sizeof(peer->gid));
	}
	channel->state = error ? PIER_CHANNEL_FAILED : PIER_CHANNEL_CONNECTED;
	pier_update_ready(channel);
	return error;
}

int pier_connect_until(struct pier_channel *channel, const struct pier_endpoint *peer,
		       int64_t deadline)
{
	int pause_ms = 0, result;

	do {
		result = pier_connect_step(channel, peer, deadline, &pause_ms);
		if (result == 1)
			pier_clock_poll(NULL, 0, pause_ms);
	} while (result == 1);
	return result;
}

int pier_channel_connect(struct pier_channel *channel, const struct pier_endpoint *peer)
{
	PIER_REFUSE_NULL(channel, peer);
	int error = pier_check_process(&channel->object);

	if (!error)
		error = pier_check_owner(&channel->object, &channel->pd->object,
					 "connecting a channel");
	if (!error && channel->handshake)
		error = pier_fail(EBUSY, "a handshake of the channel is in progress");
	return error ? error
		     : pier_connect_until(channel, peer,
					  pier_deadline(channel->attr.timeout_ms));
}

enum {
	/*
	 * DSCP 26, ECN-capable: the class that fabrics for RoCE v2 commonly keep free of
	 * loss, and UCX's choice (UCT_IB_DEFAULT_ROCEV2_DSCP).
	 */
	ROCE_V2_CLASS = 106,
};

/*
 * The administrator's setting for all RoCE v2 packets of the port. Only NVIDIA's drivers
 * have the file. UCX reads it, too (uct_ib_device_query_roce_tclass()).
 */
static uint8_t port_traffic_class(const char *sysfs, const char *device, uint32_t port)
{
	char path[PATH_MAX];
	unsigned int value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/tc/%u/traffic_class", sysfs,
		 device, port);
	file = fopen(path, "re");
	if (!file)
		return ROCE_V2_CLASS;
	if (fscanf(file, "Global tclass=%3u", &value) != 1 || value > UINT8_MAX)
		value = ROCE_V2_CLASS;
	fclose(file);
	return (uint8_t)value;
}

uint8_t pier_traffic_class_in(const char *sysfs, const struct pier_channel *channel)
{
	if (channel->attr.traffic_class != PIER_TRAFFIC_CLASS_PORT)
		return (uint8_t)channel->attr.traffic_class;
	if (channel->link_layer != PIER_LINK_ETHERNET ||
	    channel->gid.gid_type != IBV_GID_TYPE_ROCE_V2)
		return 0;
	return port_traffic_class(sysfs, channel->pd->device->context->device->name,
				  channel->attr.port);
}

uint8_t pier_traffic_class(const struct pier_channel *channel)
{
	return pier_traffic_class_in(PIER_SYSFS, channel);
}
