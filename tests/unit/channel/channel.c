/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <pier/channel.h>
#include <pier/error.h>
#include <pier/object.h>
#include <pier/recovery.h>
#include <pier/verbs.h>
#include <pier/waiting.h>

#include "tests/support/requests.h"
#include "nic/nic.h"

static const struct pier_endpoint peer = {
	.qpn = 0x55,
	.psn = 0x66,
	.link_layer = PIER_LINK_ETHERNET,
	.gid = { 0xfd, 1 },
	.mtu = 1024,
	.max_rd_atomic = 4,
};

static const struct pier_remote remote = { 0x10000, 4096, 0x99 };

static struct pier_channel_attr small_attr(void)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = 3;
	attr.max_recv_wr = 2;
	attr.max_send_sge = 6;
	attr.max_recv_sge = 2;
	return attr;
}

static struct pier_channel *prepared(void)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	assert_int_equal(pier_channel_create(fake_reset(), &attr, &channel), 0);
	return channel;
}

static struct pier_channel *connected(void)
{
	struct pier_channel *channel = prepared();

	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	return channel;
}

static void destroy(struct pier_channel *channel)
{
	assert_int_equal(pier_channel_destroy(channel), 0);
	assert_int_equal(fake.qps, 0);
	assert_int_equal(fake.cqs, 0);
	assert_int_equal(fake.channels, 0);
	assert_int_equal(fake.events_given, fake.events_acked);
	assert_int_equal(fake.pd.children, 0);
	assert_int_equal(pier_object_count(PIER_OBJECT_CHANNEL), 0);
}

static void undoes_a_creation_that_failed_half_way(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel = NULL;
	int failures = 0;

	(void)state;
	for (int call = 1;; call++) {
		fake_reset();
		fake.fail_call = call;
		if (pier_channel_create(&fake.pd, &attr, &channel) == 0) {
			if (fake.calls < call)
				break;
			/* An empty entry of the GID table. */
			assert_int_equal(pier_channel_destroy(channel), 0);
			channel = NULL;
			continue;
		}
		failures++;
		assert_null(channel);
		assert_string_not_equal(pier_error_message(), "");
		assert_int_equal(fake.pd.children, 0);
		assert_int_equal(fake.channels + fake.cqs + fake.qps, 0);
	}
	/* The port, its GID, and four objects. */
	assert_int_equal(failures, 1 + 1 + 4);
	destroy(channel);
	assert_int_equal(pier_channel_destroy(NULL), 0);
}

static void returns_its_endpoint(void **state)
{
	struct pier_channel *channel = prepared();
	struct pier_endpoint endpoint;

	(void)state;
	assert_int_equal(pier_channel_endpoint(channel, &endpoint), 0);
	assert_int_equal(endpoint.qpn, 0x1234);
	assert_true(endpoint.psn <= 0xffffff);
	assert_int_equal(endpoint.link_layer, PIER_LINK_ETHERNET);
	assert_int_equal(endpoint.mtu, 2048);
	assert_int_equal(endpoint.gid[0], 0xfd);
	assert_int_equal(endpoint.max_rd_atomic, 8);
	assert_int_equal(endpoint.address_length, 8 + 18); /* one GID */
	destroy(channel);
}

static void clamps_attributes_to_the_peer(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(fake.rtr.path_mtu, IBV_MTU_1024);
	assert_int_equal(fake.rtr.dest_qp_num, 0x55);
	assert_int_equal(fake.rtr.rq_psn, 0x66);
	assert_int_equal(fake.rtr.max_dest_rd_atomic, 8);
	assert_int_equal(fake.rts.max_rd_atomic, 4);
	assert_int_equal(fake.rtr.ah_attr.is_global, 1);
	assert_int_equal(fake.rtr.ah_attr.grh.sgid_index, 1);
	assert_int_equal(fake.rtr.ah_attr.grh.dgid.raw[1], 1);
	assert_int_equal(pier_channel_connect(channel, &peer), -EISCONN);
	destroy(channel);
}

/* The least that a peer without pier reports; unknown fields stay zero. */
static void connects_to_a_peer_without_pier(void **state)
{
	struct pier_endpoint stranger = { .qpn = 0xffffff, .psn = 0xffffff };
	struct pier_channel *channel = prepared();
	struct pier_endpoint endpoint;

	(void)state;
	stranger.gid[15] = 1;
	assert_int_equal(pier_channel_connect(channel, &stranger), 0);
	assert_int_equal(fake.rtr.dest_qp_num, 0xffffff);
	assert_int_equal(fake.rtr.rq_psn, 0xffffff);
	assert_int_equal(fake.rtr.ah_attr.grh.dgid.raw[15], 1);
	assert_int_equal(pier_channel_endpoint(channel, &endpoint), 0);
	assert_int_equal(fake.rts.sq_psn, endpoint.psn);
	assert_int_equal(endpoint.mtu, 2048);
	assert_int_equal(fake.rtr.path_mtu, IBV_MTU_2048);
	assert_int_equal(fake.rts.max_rd_atomic, 0);
	destroy(channel);
}

static void waits_until_the_peers_address_is_resolved(void **state)
{
	struct pier_channel *channel = prepared();

	(void)state;
	fake.unresolved = 3;
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(fake.unresolved, 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), 0);
	destroy(channel);
}

static void stops_resolving_at_its_timeout(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	(void)state;
	attr.timeout_ms = 5;
	assert_int_equal(pier_channel_create(fake_reset(), &attr, &channel), 0);
	fake.unresolved = INT_MAX;
	assert_int_equal(pier_channel_connect(channel, &peer), -ETIMEDOUT);
	assert_non_null(strstr(pier_error_message(), "to RTR"));
	fake.unresolved = 0;
	assert_int_equal(pier_channel_reset(channel), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	destroy(channel);
}

/* As on ionic, whose 16 are for all queue pairs: Mooncake pull request 3977. */
static void default_leaves_reads_to_other_queue_pairs(void **state)
{
	struct pier_channel *channels[16];
	struct pier_endpoint endpoint;

	(void)state;
	fake_reset();
	fake.device.limits.max_qp_rd_atom = fake.device.limits.max_res_rd_atom = 16;
	fake.read_budget = 16;
	for (int i = 0; i < 16; i++) {
		assert_int_equal(pier_channel_create(&fake.pd, NULL, &channels[i]), 0);
		assert_int_equal(pier_channel_endpoint(channels[i], &endpoint), 0);
		assert_int_equal(endpoint.max_rd_atomic, 1);
		assert_int_equal(pier_channel_connect(channels[i], &peer), 0);
	}
	for (int i = 0; i < 16; i++)
		assert_int_equal(pier_channel_destroy(channels[i]), 0);
}

static void finds_how_many_reads_the_device_can_serve(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_endpoint endpoint;
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.device.limits.max_qp_rd_atom = fake.device.limits.max_res_rd_atom = 16;
	fake.read_budget = 5;
	attr.max_dest_rd_atomic = 16;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), -EINVAL);
	assert_non_null(
		strstr(pier_error_message(), "can serve 4 reads and atomics, not 16"));
	assert_non_null(strstr(pier_error_message(), "max_dest_rd_atomic"));
	fake.read_budget = 5;
	assert_int_equal(pier_channel_reset(channel), 0);
	assert_int_equal(pier_channel_endpoint(channel, &endpoint), 0);
	assert_int_equal(endpoint.max_rd_atomic, 4);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(fake.rtr.max_dest_rd_atomic, 4);
	destroy(channel);
}

/* Another queue pair of the device gives something back between the two calls. */
static void rtr_may_be_accepted_at_the_second_call(void **state)
{
	struct pier_channel *channel = prepared();

	(void)state;
	fake.rtr_lacks_memory = 1;
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	assert_int_equal(pier_channel_send(channel, NULL, 0, 0), -ETIMEDOUT);
	destroy(channel);
}

/* As libmlx5: each number is in its limit, and together they are not. */
static void says_which_number_to_lower(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.device.limits.max_qp_wr = 32768;
	fake.device.limits.max_sge = 30;
	fake.device.limits.max_cqe = 1 << 22;
	fake.send_blocks = 32768;
	attr.max_send_wr = 8000;
	attr.max_send_sge = 16;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(),
			       "it takes max_send_wr 4681, or max_send_sge 4"));
	assert_int_equal(fake.qps, 0);
	attr.max_send_wr = 4681;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), 0);
	destroy(channel);
	attr.max_send_wr = 8000;
	attr.max_send_sge = 4;
	fake.send_blocks = 8;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "it takes max_send_wr 2"));
	assert_null(strstr(pier_error_message(), "max_send_sge"));
}

/* 7 means unlimited retries on rxe, which has this vendor id. */
static void gives_up_on_a_dead_peer(void **state)
{
	static const uint32_t vendors[] = { 0x02c9, 0xffffff };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct pier_channel *channel;
		uint64_t silence;

		fake_reset();
		fake.device.limits.vendor_id = vendors[i];
		assert_int_equal(pier_channel_create(&fake.pd, NULL, &channel), 0);
		assert_int_equal(pier_channel_connect(channel, &peer), 0);
		assert_int_equal(fake.rts.retry_cnt, i == 0 ? 7 : 6);
		assert_int_equal(fake.rts.rnr_retry, 7);
		/* It outlasts a port that is down for 5 s, and not pier's own deadline.
		 */
		silence = ((UINT64_C(4096) << fake.rts.timeout) / 1000) *
			  (fake.rts.retry_cnt + 1u);
		assert_in_range(silence, 5000000, 30000000);
		destroy(channel);
	}
}

static void connects_over_infiniband(void **state)
{
	struct pier_endpoint lid_peer = { .qpn = 7, .lid = 9 };
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	fake.port.lid = 3;
	fake.gids[0].gid.raw[0] = 0xfe;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), 0);
	assert_int_equal(pier_channel_connect(channel, &lid_peer), 0);
	assert_int_equal(fake.rtr.ah_attr.is_global, 0);
	assert_int_equal(fake.rtr.ah_attr.dlid, 9);
	destroy(channel);
	fake_reset();
	fake.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	attr.gid_index = 1;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), 0);
	assert_int_equal(pier_channel_connect(channel, &lid_peer), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "gid"));
	destroy(channel);
}

static struct pier_channel *prepared_on_infiniband(struct pier_channel_attr *attr)
{
	struct pier_channel *channel;

	fake_reset();
	fake.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	fake.port.lid = 3;
	fake.gids[0].gid = (union ibv_gid){ .raw = { 0xfe, 0x80, [7] = 1, [15] = 3 } };
	/* GID 1 counts only if it has a FLID: ncclIbGetGidIndex() in NCCL. */
	fake.gids[1].gid = (union ibv_gid){ .raw = { 0xfe, 0x80, [7] = 1, [15] = 4 } };
	if (attr->gid_index == 1)
		fake.gids[1].gid.raw[5] = 44;
	attr->gid_index = PIER_GID_ANY;
	assert_int_equal(pier_channel_create(&fake.pd, attr, &channel), 0);
	return channel;
}

/* Routers are reached by the FLID in the peer's GID: ncclIbQpRtr() in NCCL. */
static void routes_to_other_infiniband_subnets(void **state)
{
	static const struct {
		uint8_t gid[16];
		bool global;
		uint16_t dlid;
	} peers[] = {
		{ { 0xfe, 0x80, [7] = 1, [15] = 9 }, false, 9 },
		{ { 0xfe, 0x80, [4] = 7, [5] = 8, [7] = 1, [15] = 9 }, false, 9 },
		{ { 0xfe, 0x80, [4] = 7, [5] = 8, [7] = 2, [15] = 9 }, true, 0x708 },
		{ { 0xfe, 0x80, [7] = 2, [15] = 9 }, true, 9 },
		{ { 0xfe, 0xc0, [7] = 1, [15] = 9 }, true, 9 },
		{ { 0 }, false, 9 },
	};

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(peers) / sizeof(peers[0]); i++) {
		struct pier_endpoint other = { .qpn = 7, .lid = 9 }, own;
		struct pier_channel_attr attr = small_attr();
		const size_t at = i / 2;
		struct pier_channel *channel;

		attr.gid_index = i % 2 ? 1 : PIER_GID_ANY;
		channel = prepared_on_infiniband(&attr);
		memcpy(other.gid, peers[at].gid, sizeof(other.gid));
		assert_int_equal(pier_channel_endpoint(channel, &own), 0);
		assert_int_equal(own.gid[5], i % 2 ? 44 : 0);
		assert_int_equal(own.gid[15], i % 2 ? 4 : 3);
		assert_int_equal(pier_channel_connect(channel, &other), 0);
		assert_int_equal(fake.rtr.ah_attr.is_global, peers[at].global);
		assert_int_equal(fake.rtr.ah_attr.dlid, peers[at].dlid);
		if (peers[at].global) {
			assert_memory_equal(fake.rtr.ah_attr.grh.dgid.raw, other.gid, 16);
			assert_int_equal(fake.rtr.ah_attr.grh.sgid_index, i % 2);
			assert_int_equal(fake.rtr.ah_attr.grh.hop_limit, 64);
		}
		destroy(channel);
	}
}

static void refuses_impossible_peers(void **state)
{
	static const char *const names[] = { "qpn",  "qpn", "psn",     "mtu",
					     "link", "gid", "address", "IPv4" };
	struct pier_endpoint bad[8];

	(void)state;
	for (int i = 0; i < 8; i++)
		bad[i] = peer;
	bad[0].qpn = 1;
	bad[1].qpn = 1 << 24;
	bad[2].psn = 1 << 24;
	bad[3].mtu = 1500;
	bad[4].link_layer = PIER_LINK_INFINIBAND;
	memset(bad[5].gid, 0, sizeof(bad[5].gid));
	bad[6].address_length = 8;
	memcpy(bad[7].gid, (uint8_t[16]){ [10] = 0xff, [11] = 0xff, [12] = 10 }, 16);
	for (int i = 0; i < 8; i++) {
		struct pier_channel *channel = prepared();

		assert_int_equal(pier_channel_connect(channel, &bad[i]), -EINVAL);
		if (!strstr(pier_error_message(), names[i]))
			fail_msg("no \"%s\" in: %s", names[i], pier_error_message());
		assert_int_equal(pier_channel_connect(channel, &peer), -EISCONN);
		assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL),
				 -ENOTCONN);
		assert_int_equal(pier_channel_post_recv(channel, NULL, 0, NULL),
				 -ENOTCONN);
		destroy(channel);
	}
}

static void needs_a_usable_port(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.gids[1].gid.raw[0] = 0;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -EADDRNOTAVAIL);
	attr.gid_index = 1;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -EADDRNOTAVAIL);
	fake.port.state = IBV_PORT_DOWN;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -ENETDOWN);
	/* Find out which of the machine's devices this is. */
	assert_non_null(strstr(pier_error_message(), "fake0"));
	assert_non_null(strstr(pier_error_message(), "port 1 is not active but DOWN"));
}

static void finds_completions_in_any_order(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work[3], recv;
	struct pier_result result = { 0 };

	(void)state;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work[0]), 0);
	assert_int_equal(pier_channel_post_write(channel, NULL, 0, &remote, &work[1]), 0);
	assert_int_equal(pier_channel_post_read(channel,
						&(struct pier_scatter){ 0, 77, 1 }, 1,
						&remote, &work[2]),
			 0);
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, &recv), 0);
	assert_int_equal(pier_channel_outstanding(channel), 4);
	fake_complete_imm(recv.id, IBV_WC_RECV, 12, htonl(0x01020304));
	assert_int_equal(pier_work_poll(channel, work[0], &result), 0);
	assert_int_equal(pier_channel_outstanding(channel), 3);
	fake_complete(work[0].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_work_poll(channel, work[2], &result), 0);
	assert_int_equal(pier_channel_outstanding(channel), 2);
	fake_complete(work[1].id, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, 0);
	fake_complete(work[2].id, IBV_WC_SUCCESS, IBV_WC_RDMA_READ, 0);
	assert_int_equal(pier_work_poll(channel, work[2], &result), 1);
	assert_int_equal(result.opcode, PIER_OP_READ);
	assert_int_equal(result.byte_length, 77);
	assert_int_equal(test_work_finish(channel, recv, 0, &result), 0);
	assert_int_equal(result.opcode, PIER_OP_RECV);
	assert_int_equal(result.byte_length, 12);
	assert_true(result.has_immediate);
	assert_int_equal(result.immediate, 0x01020304);
	assert_int_equal(pier_channel_poll(channel), 0);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(test_work_finish(channel, work[0], 0, &result), 0);
	assert_false(result.has_immediate);
	assert_int_equal(test_work_finish(channel, work[1], 0, NULL), 0);
	/* Even if a device does not keep the order, each completion finds its request. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work[i]), 0);
	fake_complete(work[1].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_work_poll(channel, work[0], &result), 0);
	assert_int_equal(pier_work_poll(channel, work[1], &result), 1);
	fake_complete(work[0].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_work_poll(channel, work[0], &result), 1);
	destroy(channel);
}

static void reports_a_write_with_immediate(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_result result = { 0 };
	struct pier_work work;

	(void)state;
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, &work), 0);
	fake_complete_imm(work.id, IBV_WC_RECV_RDMA_WITH_IMM, 999, htonl(5));
	assert_int_equal(pier_work_poll(channel, work, &result), 1);
	assert_int_equal(result.opcode, PIER_OP_RECV_WRITE_IMM);
	assert_int_equal(result.immediate, 5);
	destroy(channel);
}

static void refuses_stale_handles(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work, again, copy;
	struct pier_result result = { .byte_length = 42 };

	(void)state;
	assert_int_equal(pier_work_poll(channel, (struct pier_work){ 0 }, &result),
			 -ESTALE);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work), 0);
	copy = work;
	copy.id ^= UINT64_C(1) << 40;
	assert_int_equal(pier_work_poll(channel, copy, &result), -ESTALE);
	fake_complete(work.id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(test_work_finish(channel, work, 0, NULL), 0);
	assert_int_equal(test_work_finish(channel, work, 0, &result), -ESTALE);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &again), 0);
	assert_int_equal(pier_work_poll(channel, work, &result), -ESTALE);
	assert_int_equal(pier_work_poll(channel, again, &result), 0);
	assert_int_equal(result.byte_length, 42);
	destroy(channel);
}

static void reuses_free_places(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work[i]), 0);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EAGAIN);
	fake_complete(work[0].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), 0);
	assert_int_equal(test_work_finish(channel, work[0], 0, NULL), 0);
	/*
	 * The caller does not watch that request: its place is reused when it is needed.
	 */
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EAGAIN);
	for (int i = 0; i < 3; i++)
		fake_complete(fake.send_ids[0], IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work[0]), 0);
	destroy(channel);
}

static void refuses_invalid_requests(void **state)
{
	const struct pier_gather huge[] = { { 0, UINT32_MAX, 1 }, { 0, UINT32_MAX, 1 } };
	const struct pier_gather most = { 0, UINT32_C(1) << 30, 1 },
				 byte = { 0, 4097, 1 };
	const struct pier_scatter five[5] = { { 0, 1, 1 } };
	struct pier_channel *channel = prepared();

	(void)state;
	assert_int_equal(pier_channel_post_send(channel, &byte, 1, NULL), -ENOTCONN);
	assert_int_equal(pier_channel_post_recv(channel, five, 1, NULL), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(pier_channel_post_send(channel, huge, 2, NULL), -EMSGSIZE);
	assert_int_equal(pier_channel_post_send(channel, &most, 1, NULL), 0);
	assert_int_equal(pier_channel_post_send(channel, huge, -1, NULL), -EINVAL);
	assert_int_equal(pier_channel_post_send(channel, huge, 7, NULL), -EINVAL);
	assert_int_equal(pier_channel_post_recv(channel, five, 3, NULL), -EINVAL);
	assert_int_equal(pier_channel_post_read(channel, five, -1, &remote, NULL),
			 -EINVAL);
	assert_int_equal(pier_channel_post_write(channel, &byte, 1, &remote, NULL),
			 -ERANGE);
	fake.fail_call = fake.calls + 1;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -ENOSPC);
	assert_int_equal(pier_channel_outstanding(channel), 2);
	assert_int_equal(pier_channel_send(channel, NULL, 0, -2), -EINVAL);
	assert_int_equal(pier_channel_outstanding(channel), 2);
	destroy(channel);
}

static void writes_requests(void **state)
{
	struct pier_channel_attr attr = small_attr();
	const struct pier_gather piece = { 0x1000, 16, 0x44 }, longer = { 0, 17, 1 };
	struct pier_channel *channel;

	(void)state;
	attr.max_inline = 16;
	assert_int_equal(pier_channel_create(fake_reset(), &attr, &channel), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(
		test_post_write_imm(channel, &piece, 1, &remote, 0xa0b0c0d0, NULL), 0);
	assert_int_equal(fake.last_send.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
	assert_int_equal(ntohl(fake.last_send.imm_data), 0xa0b0c0d0);
	assert_int_equal(fake.last_send.wr.rdma.remote_addr, 0x10000);
	assert_int_equal(fake.last_send.wr.rdma.rkey, 0x99);
	assert_int_equal(fake.last_send.send_flags, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
	assert_int_equal(pier_channel_post_send(channel, &longer, 1, NULL), 0);
	assert_int_equal(fake.last_send.send_flags, IBV_SEND_SIGNALED);
	destroy(channel);
}

static void refuses_reads_that_the_peer_does_not_serve(void **state)
{
	struct pier_endpoint none = peer;
	struct pier_channel *channel = prepared();

	(void)state;
	none.max_rd_atomic = 0;
	assert_int_equal(pier_channel_connect(channel, &none), 0);
	assert_int_equal(pier_channel_post_read(channel, NULL, 0, &remote, NULL),
			 -EOPNOTSUPP);
	destroy(channel);
}

static void reports_the_first_cause(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work[2], recv;
	struct pier_result result;

	(void)state;
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, &recv), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			pier_channel_post_write(channel, NULL, 0, &remote, &work[i]), 0);
	/* The flush of the other queue may come first. */
	fake_complete(recv.id, IBV_WC_WR_FLUSH_ERR, IBV_WC_BIND_MW, 0xffffffff);
	fake_complete(work[0].id, IBV_WC_REM_ACCESS_ERR, IBV_WC_BIND_MW, 0);
	fake_complete(work[1].id, IBV_WC_WR_FLUSH_ERR, IBV_WC_BIND_MW, 0);
	assert_int_equal(test_work_finish(channel, recv, 0, &result), -ECANCELED);
	assert_int_equal(result.opcode, PIER_OP_RECV);
	assert_int_equal(result.byte_length, 0);
	assert_non_null(strstr(pier_error_message(), "IBV_WC_REM_ACCESS_ERR"));
	assert_int_equal(test_work_finish(channel, work[0], 0, &result), -EACCES);
	assert_int_equal(result.status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(result.vendor_error, 0x77);
	assert_non_null(strstr(pier_error_message(), "write failed"));
	assert_non_null(strstr(pier_error_message(), "0x77"));
	assert_int_equal(test_work_finish(channel, work[1], 0, &result), -ECANCELED);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	assert_non_null(strstr(pier_error_message(), "wrong rkey"));
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, NULL), -EPIPE);
	destroy(channel);
}

static void maps_statuses(void **state)
{
	static const struct {
		enum ibv_wc_status status;
		int error;
	} cases[] = {
		{ IBV_WC_LOC_LEN_ERR, -EMSGSIZE },
		{ IBV_WC_LOC_QP_OP_ERR, -EIO },
		{ IBV_WC_LOC_PROT_ERR, -EFAULT },
		{ IBV_WC_WR_FLUSH_ERR, -ECANCELED },
		{ IBV_WC_BAD_RESP_ERR, -EREMOTEIO },
		{ IBV_WC_LOC_ACCESS_ERR, -EFAULT },
		{ IBV_WC_REM_ABORT_ERR, -EREMOTEIO },
		{ IBV_WC_RESP_TIMEOUT_ERR, -EHOSTUNREACH },
		{ IBV_WC_GENERAL_ERR, -EIO },
		{ IBV_WC_TM_ERR, -EIO },
		{ IBV_WC_REM_INV_REQ_ERR, -EMSGSIZE },
		{ IBV_WC_REM_ACCESS_ERR, -EACCES },
		{ IBV_WC_REM_OP_ERR, -EREMOTEIO },
		{ IBV_WC_RETRY_EXC_ERR, -EHOSTUNREACH },
		{ IBV_WC_RNR_RETRY_EXC_ERR, -EAGAIN },
		{ IBV_WC_FATAL_ERR, -EIO },
		{ (enum ibv_wc_status)1000, -EIO },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_channel *channel = connected();
		struct pier_result result;
		struct pier_work work;

		assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work), 0);
		fake_complete(work.id, cases[i].status, IBV_WC_SEND, 0);
		assert_int_equal(test_work_finish(channel, work, 0, &result),
				 cases[i].error);
		assert_int_equal(result.status, cases[i].status);
		destroy(channel);
	}
}

/* A write cannot be too long for the peer's receive, so the access was refused. */
static void maps_a_refused_write(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work;

	(void)state;
	assert_int_equal(pier_channel_post_write(channel, NULL, 0, &remote, &work), 0);
	fake_complete(work.id, IBV_WC_REM_INV_REQ_ERR, IBV_WC_SEND, 0);
	assert_int_equal(test_work_finish(channel, work, 0, NULL), -EACCES);
	assert_non_null(strstr(pier_error_message(), "allows no such access"));
	assert_non_null(strstr(pier_error_message(), "MTU"));
	destroy(channel);
}

/* rxe completes a receive with the status that the peer gets for a refused request. */
static void reports_which_side_refused(void **state)
{
	static const struct {
		enum ibv_wc_status status;
		int error;
	} cases[] = {
		{ IBV_WC_REM_ACCESS_ERR, -EFAULT },
		{ IBV_WC_REM_INV_REQ_ERR, -EMSGSIZE },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_channel *channel = connected();
		struct pier_work work;

		assert_int_equal(pier_channel_post_recv(channel, NULL, 0, &work), 0);
		fake_complete(work.id, cases[i].status, IBV_WC_RECV, 0);
		assert_int_equal(test_work_finish(channel, work, 0, NULL),
				 cases[i].error);
		assert_non_null(strstr(pier_error_message(), "this end refused"));
		destroy(channel);
	}
}

static void leaves_the_request_when_a_wait_times_out(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_result result = { .error = 7 };
	struct pier_work work;

	(void)state;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work), 0);
	assert_int_equal(pier_work_wait(channel, work, 0, &result), 0);
	assert_int_equal(pier_work_wait(channel, work, 20, &result), -ETIMEDOUT);
	assert_non_null(strstr(pier_error_message(), "send did not complete within 20"));
	assert_int_equal(result.error, 7);
	assert_int_equal(pier_work_wait(channel, work, 0, NULL), 0);
	assert_int_equal(pier_channel_outstanding(channel), 1);
	assert_int_equal(fake.state, IBV_QPS_RTS);
	/* A request that failed has completed. */
	fake_complete(work.id, IBV_WC_RETRY_EXC_ERR, IBV_WC_SEND, 0);
	assert_int_equal(pier_work_wait(channel, work, 1000, &result), 1);
	assert_int_equal(result.error, -EHOSTUNREACH);
	assert_int_equal(pier_work_wait(channel, work, 0, &result), -ESTALE);
	destroy(channel);
}

static void stops_at_its_timeout(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_result result = { 0 };
	struct pier_work other;

	(void)state;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &other), 0);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), 0);
	assert_int_equal(pier_channel_recv(channel, NULL, 0, 20, &result), -ETIMEDOUT);
	assert_non_null(strstr(pier_error_message(), "20 ms"));
	assert_int_equal(result.error, -ECANCELED);
	assert_int_equal(fake.state, IBV_QPS_ERR);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(test_work_finish(channel, other, 0, NULL), -ECANCELED);
	assert_non_null(strstr(pier_error_message(), "20 ms"));
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, NULL), -EPIPE);
	destroy(channel);
}

/* A device that dies gives no flush, and the memory must be free all the same. */
static void does_not_wait_for_a_dead_device(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work, other;

	(void)state;
	fake.never_flushes = true;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work), 0);
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, &other), 0);
	assert_int_equal(test_work_finish(channel, work, 1, NULL), -ETIMEDOUT);
	assert_int_equal(fake.state, IBV_QPS_RESET);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(test_work_finish(channel, other, 0, NULL), -ECANCELED);
	destroy(channel);
}

static void reports_a_failing_queue(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work;

	(void)state;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work), 0);
	fake.poll_error = -1;
	assert_int_equal(pier_channel_poll(channel), -EIO);
	assert_int_equal(pier_channel_arm(channel), -EIO);
	assert_int_equal(pier_work_poll(channel, work, NULL), -EIO);
	destroy(channel);
}

/* The caller gets its memory back, so nothing may be outstanding any more. */
static void stops_when_waiting_fails(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work other;

	(void)state;
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, &other), 0);
	fake.poll_error = -1;
	fake.never_flushes = true;
	assert_int_equal(pier_channel_send(channel, NULL, 0, 1000), -EIO);
	assert_non_null(strstr(pier_error_message(), "ibv_poll_cq"));
	assert_int_equal(fake.state, IBV_QPS_RESET);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	assert_int_equal(test_work_finish(channel, other, 1000, NULL), -ECANCELED);
	assert_int_equal(pier_channel_post_recv(channel, NULL, 0, NULL), -EPIPE);
	assert_non_null(strstr(pier_error_message(), "ibv_poll_cq"));
	destroy(channel);
}

/* Some providers of rdma-core (qedr, cxgb4) return negative errno values. */
static void accepts_negative_errnos(void **state)
{
	struct pier_channel *channel = connected();
	struct pier_work work;

	(void)state;
	fake.fail_result = -ENOSPC;
	fake.fail_call = fake.calls + 1;
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work), -ENOSPC);
	assert_non_null(strstr(pier_error_message(), strerror(ENOSPC)));
	fake.fail_call = fake.calls + 1;
	assert_int_equal(pier_channel_recv(channel, NULL, 0, 10, NULL), -ENOSPC);
	assert_int_equal(pier_channel_outstanding(channel), 0);
	destroy(channel);
}

static void refuses_requests_without_a_remote_region(void **state)
{
	const struct pier_gather piece = { 0x1000, 16, 0x44 };
	const struct pier_scatter place = { 0x1000, 16, 0x44 };
	struct pier_channel *channel = connected();

	(void)state;
	assert_int_equal(pier_channel_post_write(channel, &piece, 1, NULL, NULL),
			 -EINVAL);
	assert_non_null(strstr(pier_error_message(), "remote is NULL"));
	assert_int_equal(pier_channel_post_read(channel, &place, 1, NULL, NULL), -EINVAL);
	assert_int_equal(test_post_write_imm(channel, &piece, 1, NULL, 1, NULL), -EINVAL);
	/* Immediate data alone needs no elements. */
	assert_int_equal(test_post_write_imm(channel, NULL, 0, NULL, 1, NULL), 0);
	assert_int_equal(fake.last_send.wr.rdma.rkey, 0);
	destroy(channel);
}

/* rxe has 1024 GIDs, and the index in struct ibv_global_route has 8 bits. */
static void refuses_gid_indices_beyond_8_bits(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.port.gid_tbl_len = 1024;
	fake.gid_beyond = true;
	attr.gid_index = 256;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "gid_index 256"));
	attr.gid_index = PIER_GID_ANY;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), 0);
	assert_int_equal(pier_channel_connect(channel, &peer), 0);
	assert_int_equal(fake.rtr.ah_attr.grh.sgid_index, 1);
	destroy(channel);
}

static void uses_the_requested_partition(void **state)
{
	struct pier_channel_attr attr = small_attr();
	struct pier_channel *channel;

	(void)state;
	fake_reset();
	fake.port.pkey_tbl_len = 2;
	attr.pkey_index = 2;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), -EINVAL);
	assert_non_null(strstr(pier_error_message(), "pkey_index 2"));
	attr.pkey_index = 1;
	assert_int_equal(pier_channel_create(&fake.pd, &attr, &channel), 0);
	assert_int_equal(fake.init.pkey_index, 1);
	destroy(channel);
}

static bool readable(int fd)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };

	return poll(&pollfd, 1, 0) == 1;
}

static void loses_no_completion_event(void **state)
{
	struct pier_channel *channel = connected();
	int fd = pier_channel_fd(channel);
	struct pier_work work[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(pier_channel_post_send(channel, NULL, 0, &work[i]), 0);
	fake_complete(work[0].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_false(readable(fd));
	assert_int_equal(pier_channel_arm(channel), 1);
	assert_false(readable(fd));
	fake_complete(work[1].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_true(readable(fd));
	fake_complete(work[2].id, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_arm(channel), 2);
	assert_false(readable(fd));
	assert_int_equal(fake.events_given, 1);
	assert_int_equal(fake.events_acked, 1);
	destroy(channel);
}

static void ignores_requests_of_others(void **state)
{
	struct pier_channel *channel = connected();

	(void)state;
	fake_complete(4711, IBV_WC_SUCCESS, IBV_WC_SEND, 0);
	fake_complete(0, IBV_WC_GENERAL_ERR, IBV_WC_SEND, 0);
	assert_int_equal(pier_channel_poll(channel), 2);
	assert_int_equal(pier_channel_post_send(channel, NULL, 0, NULL), 0);
	destroy(channel);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(undoes_a_creation_that_failed_half_way),
		cmocka_unit_test(returns_its_endpoint),
		cmocka_unit_test(clamps_attributes_to_the_peer),
		cmocka_unit_test(connects_to_a_peer_without_pier),
		cmocka_unit_test(waits_until_the_peers_address_is_resolved),
		cmocka_unit_test(stops_resolving_at_its_timeout),
		cmocka_unit_test(default_leaves_reads_to_other_queue_pairs),
		cmocka_unit_test(finds_how_many_reads_the_device_can_serve),
		cmocka_unit_test(rtr_may_be_accepted_at_the_second_call),
		cmocka_unit_test(says_which_number_to_lower),
		cmocka_unit_test(gives_up_on_a_dead_peer),
		cmocka_unit_test(connects_over_infiniband),
		cmocka_unit_test(routes_to_other_infiniband_subnets),
		cmocka_unit_test(refuses_impossible_peers),
		cmocka_unit_test(needs_a_usable_port),
		cmocka_unit_test(finds_completions_in_any_order),
		cmocka_unit_test(reports_a_write_with_immediate),
		cmocka_unit_test(refuses_stale_handles),
		cmocka_unit_test(reuses_free_places),
		cmocka_unit_test(refuses_invalid_requests),
		cmocka_unit_test(writes_requests),
		cmocka_unit_test(refuses_reads_that_the_peer_does_not_serve),
		cmocka_unit_test(reports_the_first_cause),
		cmocka_unit_test(maps_statuses),
		cmocka_unit_test(maps_a_refused_write),
		cmocka_unit_test(reports_which_side_refused),
		cmocka_unit_test(leaves_the_request_when_a_wait_times_out),
		cmocka_unit_test(stops_at_its_timeout),
		cmocka_unit_test(does_not_wait_for_a_dead_device),
		cmocka_unit_test(reports_a_failing_queue),
		cmocka_unit_test(stops_when_waiting_fails),
		cmocka_unit_test(accepts_negative_errnos),
		cmocka_unit_test(refuses_requests_without_a_remote_region),
		cmocka_unit_test(refuses_gid_indices_beyond_8_bits),
		cmocka_unit_test(uses_the_requested_partition),
		cmocka_unit_test(loses_no_completion_event),
		cmocka_unit_test(ignores_requests_of_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
