/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_SOFT_GRANTS_H
#define PIER_TESTS_SOFT_GRANTS_H

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "soft_peer.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/grant.h"
#include "provider/soft/link/fifo.h"

/*
 * A target that grants memory which it then takes away, or which is more than the
 * initiator can map. The initiator must survive, and its requests succeed through the
 * fifo.
 */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct fixture_options stepped = { .stepped = 1 };

enum {
	LENGTH = FIXTURE_MEMORY, /* enough to request a grant at the first use of a key */
	FINAL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	KEYS = 16
};

struct pair {
	struct soft_fixture victim, peer;
	struct ibv_mr *mrs[KEYS]; /* of the peer: reached through the FIFO */
};

static inline void open_pair(struct pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	fixture_open_pair(&pair->victim, &pair->peer, &stepped);
	for (int i = 0; i < KEYS; i++) {
		pair->mrs[i] = soft->reg_mr(pair->peer.pd, pair->peer.memory, LENGTH, 0,
					    IBV_ACCESS_LOCAL_WRITE |
						    IBV_ACCESS_REMOTE_WRITE |
						    IBV_ACCESS_REMOTE_READ);
		assert_non_null(pair->mrs[i]);
	}
}

static inline void close_pair(struct pair *pair)
{
	for (int i = 0; i < KEYS; i++)
		assert_int_equal(soft->dereg_mr(pair->mrs[i]), 0);
	fixture_close(&pair->victim);
	fixture_close(&pair->peer);
}

static inline enum ibv_wc_status write_all(struct pair *pair, int key)
{
	return peer_transfer(&pair->victim, &pair->peer, IBV_WR_RDMA_WRITE,
			     pair->mrs[key]->rkey, 0, LENGTH);
}

/* Waits until the victim requests a grant, and takes the request from the peer's engine.
 */
static inline void intercept_grant_request(struct pair *pair)
{
	struct pollfd waited = { .fd = peer_qp(&pair->peer)->link.rx_fd,
				 .events = POLLIN };
	uint64_t deadline = fixture_milliseconds() + FIXTURE_DEADLINE_MS;
	char bytes[256];

	do {
		assert_true(fixture_milliseconds() < deadline);
		fixture_step(&pair->victim, NULL);
	} while (poll(&waited, 1, 0) == 0);
	assert_true(recv(waited.fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0);
}

/*
 * The victim writes to a key for the first time, and the peer answers its request with a
 * grant that an honest one would not give.
 */
static inline void give_grant(struct pair *pair, int key, const int *fds,
			      uint32_t fd_count, uint64_t offset, uint64_t length,
			      uint32_t pieces)
{
	struct fixture_endpoint remote = { .rkey = pair->mrs[key]->rkey };
	struct soft_grant_message message = {
		.key = remote.rkey,
		.slot = (uint32_t)key,
		.serial = 1000 + (uint32_t)key,
		.rights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
		.count = pieces,
		.fd_count = fd_count,
	};

	for (uint32_t i = 0; i < pieces; i++) {
		message.segments[i].offset = offset;
		message.segments[i].length = length;
		message.segments[i].fd = i % fd_count;
	}
	assert_int_equal(fixture_post(&pair->victim, IBV_WR_RDMA_WRITE, 1, 0, LENGTH,
				      &remote, 0, IBV_SEND_SIGNALED),
			 0);
	intercept_grant_request(pair);
	atomic_store(&peer_fifo(&pair->peer)->in->valid[message.slot], message.serial);
	assert_true(pier_soft_send_grant(&peer_qp(&pair->peer)->link, &message, fds));
	fixture_expect(&pair->victim, pair->victim.send_cq, &pair->peer, 1,
		       IBV_WC_SUCCESS);
	for (int i = 0; i < 20; i++)
		fixture_step(&pair->victim, &pair->peer);
}

static inline void give_file(struct pair *pair, int key, int fd)
{
	give_grant(pair, key, &fd, 1, 0, LENGTH, 1);
}

static inline bool has_grant(struct pair *pair, int key)
{
	const struct soft_received_grant *grants = peer_fifo(&pair->victim)->received;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (grants[i].key == pair->mrs[key]->rkey)
			return grants[i].state == SOFT_GRANT_RECEIVED;
	}
	return false;
}

#endif
