/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * 64 peers write records into the memory of a hub. This is before.c with pier instead of
 * libibverbs; docs/verbs.md describes the steps.
 *
 * A peer has SLOTS slots in the hub's memory, which it uses in turn. It announces each
 * record by immediate data. The hub returns the number in an empty message, which frees
 * the slot. One child process plays all peers.
 *
 * Without an RDMA NIC run it with PIER_DEVICE=soft0.
 */
#include <err.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

enum {
	PEERS = 64,
	SLOTS = 4,
	RECORDS = 32, /* that each peer writes */
	WORDS = 256,  /* of a record */
	QUEUE = 2 * SLOTS,
	TIMEOUT_MS = 30000,
};
typedef uint32_t record[WORDS];

struct peer {
	struct pier_channel *channel;
	uint32_t sent;	   /* records, or answers */
	uint32_t allowed;  /* the most that may be sent now */
	uint32_t received; /* answers, or records */
};

struct node {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;
	struct pier_cq *cq;
	struct pier_srq *srq;
	struct peer peers[PEERS];
	record (*slots)[SLOTS];	   /* of each peer */
	struct pier_remote remote; /* the hub's slots */
	int hub, epoll;
};

static void check(int error)
{
	if (error < 0)
		errx(1, "%s", pier_error_message());
}

static void create_queues(struct node *node)
{
	struct epoll_event event = { .events = EPOLLIN };
	size_t size = PEERS * sizeof(*node->slots);
	struct pier_srq_attr attr;

	node->slots = calloc(1, size);
	if (!node->slots)
		err(1, "calloc");
	pier_srq_attr_init(&attr);
	attr.max_wr = PEERS * SLOTS;
	check(pier_device_open(NULL, &node->device));
	check(pier_pd_alloc(node->device, &node->pd));
	check(pier_mr_reg(node->pd, node->slots, size, PIER_ACCESS_SHARED, &node->mr));
	check(pier_cq_create(node->pd, NULL, &node->cq));
	check(pier_srq_create(node->pd, &attr, &node->srq));
	for (int i = 0; i < PEERS * SLOTS; i++)
		check(pier_srq_post_recv(node->srq, NULL, 0, NULL));
	node->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (node->epoll < 0 ||
	    epoll_ctl(node->epoll, EPOLL_CTL_ADD, pier_cq_fd(node->cq), &event))
		err(1, "epoll");
}

static void connect_peer(struct node *node, struct peer *peer, int socket)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = QUEUE;
	attr.cq = node->cq;
	attr.srq = node->srq;
	attr.context = peer;
	check(pier_channel_create(node->pd, &attr, &peer->channel));
	check(pier_channel_handshake(peer->channel, socket, socket, TIMEOUT_MS));
	peer->allowed = node->hub ? 0 : SLOTS;
}

/* Both sides send first, then receive. It also makes each wait for the other. */
static void exchange(int socket, const void *mine, void *ret_theirs, size_t size)
{
	if (send(socket, mine, size, MSG_NOSIGNAL) != (ssize_t)size ||
	    recv(socket, ret_theirs, size, MSG_WAITALL) != (ssize_t)size)
		errx(1, "the other side is gone");
}

static void connect_peers(struct node *node, int socket)
{
	uint8_t mine[PIER_REMOTE_WIRE_SIZE], theirs[sizeof(mine)];
	struct pier_remote remote;

	check(pier_mr_remote(node->mr, &remote));
	pier_remote_pack(&remote, mine);
	exchange(socket, mine, theirs, sizeof(mine));
	check(pier_remote_unpack(theirs, sizeof(theirs), &node->remote));
	for (int i = 0; i < PEERS; i++)
		connect_peer(node, &node->peers[i], socket);
}

/* Send what is allowed: a peer its next records, the hub its next answers. */
static void advance(struct node *node, struct peer *peer)
{
	uint32_t number = (uint32_t)(peer - node->peers);

	while (peer->sent < peer->allowed && pier_channel_send_room(peer->channel) > 0) {
		uint32_t slot = number * SLOTS + peer->sent % SLOTS;
		uint32_t *words = node->slots[number][peer->sent % SLOTS];
		struct pier_gather piece;
		struct pier_remote target;
		struct pier_request request = {
			.opcode = PIER_OP_SEND,
			.flags = PIER_POST_IMMEDIATE,
			.immediate = peer->sent,
		};

		if (!node->hub) {
			for (uint32_t i = 0; i < WORDS; i++)
				words[i] = number * RECORDS + peer->sent + i;
			check(pier_mr_gather(node->mr, (uintptr_t)words, sizeof(record),
					     &piece));
			check(PIER_REMOTE_ARRAY(&node->remote, record, slot, &target));
			request.opcode = PIER_OP_WRITE;
			request.gather = &piece;
			request.num_sge = 1;
			request.remote = &target;
		}
		check(pier_channel_post_request(peer->channel, &request, NULL));
		peer->sent++;
	}
}

static void take_message(struct node *node, struct peer *peer, uint32_t immediate)
{
	uint32_t number = (uint32_t)(peer - node->peers);
	uint32_t *words = node->slots[number][immediate % SLOTS];

	if (immediate != peer->received++)
		errx(1, "out of order");
	for (uint32_t i = 0; node->hub && i < WORDS; i++)
		if (words[i] != number * RECORDS + immediate + i)
			errx(1, "a record is wrong");
	if (peer->allowed < RECORDS)
		peer->allowed++;
}

static void handle_channel(struct node *node, struct peer *peer)
{
	struct pier_result result;
	int taken;

	while ((taken = pier_message_wait(peer->channel, 0, &result)) == 1) {
		check(result.error);
		take_message(node, peer, result.immediate);
		check(pier_srq_post_recv(node->srq, NULL, 0, NULL));
	}
	check(taken);
	advance(node, peer);
}

static int is_finished(const struct node *node)
{
	for (int i = 0; i < PEERS; i++)
		if (node->peers[i].received < RECORDS ||
		    pier_channel_outstanding(node->peers[i].channel) > 0)
			return 0;
	return 1;
}

static void wait_for_event(struct node *node)
{
	struct epoll_event event;
	int count, left = pier_cq_arm(node->cq);

	check(left);
	if (left > 0)
		return;
	count = epoll_wait(node->epoll, &event, 1, TIMEOUT_MS);
	if (count == 0)
		errx(1, "nothing arrives");
	if (count < 0 && errno != EINTR)
		err(1, "epoll_wait");
}

static void run(struct node *node)
{
	struct pier_channel *ready[16];
	int count;

	for (int i = 0; i < PEERS; i++)
		advance(node, &node->peers[i]);
	while (!is_finished(node)) {
		wait_for_event(node);
		count = pier_cq_poll(node->cq, ready, 16);
		check(count);
		for (int i = 0; i < count; i++)
			handle_channel(node, pier_channel_context(ready[i]));
	}
}

static void close_node(struct node *node)
{
	for (int i = 0; i < PEERS; i++)
		check(pier_channel_destroy(node->peers[i].channel));
	check(pier_srq_destroy(node->srq));
	check(pier_cq_destroy(node->cq));
	check(pier_mr_dereg(node->mr));
	check(pier_pd_dealloc(node->pd));
	check(pier_device_close(node->device));
	close(node->epoll);
	free(node->slots);
}

int main(void)
{
	struct node node = { 0 };
	int sockets[2], status = 0;
	char byte = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		err(1, "socketpair");
	node.hub = fork() != 0;
	close(sockets[node.hub]);
	create_queues(&node);
	connect_peers(&node, sockets[!node.hub]);
	run(&node);
	exchange(sockets[!node.hub], &byte, &byte, 1); /* neither needs the other now */
	close_node(&node);
	if (node.hub) {
		wait(&status);
		printf("%d records of %d peers are right\n", PEERS * RECORDS, PEERS);
	}
	return status != 0;
}
