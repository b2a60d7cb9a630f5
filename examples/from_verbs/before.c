/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * 64 peers write records into the memory of a hub, by libibverbs. docs/verbs.md moves
 * this program to pier step by step; after.c is the result.
 *
 * A peer has SLOTS slots in the hub's memory, which it uses in turn. It announces each
 * record by immediate data. The hub returns the number in an empty message, which frees
 * the slot. One child process plays all peers.
 *
 *	before [DEVICE [GID_INDEX]]      without an RDMA NIC: pier run ./before
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum {
	PEERS = 64,
	SLOTS = 4,
	RECORDS = 32, /* that each peer writes */
	WORDS = 256,  /* of a record */
	QUEUE = 2 * SLOTS,
	PORT = 1,
	TIMEOUT_MS = 30000,
};
typedef uint32_t record[WORDS];

struct peer {
	struct ibv_qp *qp;
	uint32_t sent;	      /* records, or answers */
	uint32_t allowed;     /* the most that may be sent now */
	uint32_t received;    /* answers, or records */
	uint32_t outstanding; /* requests in the send queue */
};

struct node {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct peer peers[PEERS];
	record (*slots)[SLOTS]; /* of each peer */
	uint64_t remote;	/* the hub's slots */
	uint32_t rkey;
	uint32_t left; /* completions that are still to come */
	int hub, epoll;
};

/* The message that each side sends to the other. Both run on the same kind of CPU. */
struct greeting {
	union ibv_gid gid;
	uint64_t address;
	uint32_t rkey, mtu;
	uint32_t qpn[PEERS];
	uint16_t lid;
};

/* The functions of verbs that return an int return an errno. */
static void check(int error, const char *what)
{
	errno = error;
	if (error)
		err(1, "%s", what);
}

static void check_pointer(const void *pointer, const char *what)
{
	if (!pointer)
		err(1, "%s", what);
}

static void open_device(struct node *node, const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int i = 0;

	check_pointer(list, "ibv_get_device_list");
	while (name && list[i] && strcmp(ibv_get_device_name(list[i]), name) != 0)
		i++;
	if (!list[i])
		errx(1, "no such RDMA device");
	node->context = ibv_open_device(list[i]);
	check_pointer(node->context, "ibv_open_device");
	ibv_free_device_list(list);
}

static void post_receive(struct node *node)
{
	struct ibv_recv_wr *bad, wr = { 0 }; /* no memory: immediate data alone */

	check(ibv_post_srq_recv(node->srq, &wr, &bad), "ibv_post_srq_recv");
}

static void create_queues(struct node *node)
{
	struct ibv_srq_init_attr srq = { .attr = { PEERS * SLOTS, 1, 0 } };
	struct epoll_event event = { .events = EPOLLIN };
	size_t size = PEERS * sizeof(*node->slots);
	int flags;

	node->slots = calloc(1, size);
	check_pointer(node->slots, "calloc");
	node->pd = ibv_alloc_pd(node->context);
	check_pointer(node->pd, "ibv_alloc_pd");
	node->mr = ibv_reg_mr(node->pd, node->slots, size,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check_pointer(node->mr, "ibv_reg_mr");
	node->events = ibv_create_comp_channel(node->context);
	check_pointer(node->events, "ibv_create_comp_channel");
	node->cq = ibv_create_cq(node->context, PEERS * (QUEUE + SLOTS), NULL,
				 node->events, 0);
	check_pointer(node->cq, "ibv_create_cq");
	check(ibv_req_notify_cq(node->cq, 0), "ibv_req_notify_cq");
	node->srq = ibv_create_srq(node->pd, &srq);
	check_pointer(node->srq, "ibv_create_srq");
	for (int i = 0; i < PEERS * SLOTS; i++)
		post_receive(node);
	flags = fcntl(node->events->fd, F_GETFL);
	node->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (node->epoll < 0 || fcntl(node->events->fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
	    epoll_ctl(node->epoll, EPOLL_CTL_ADD, node->events->fd, &event))
		err(1, "epoll");
}

static void create_peer(struct node *node, struct peer *peer)
{
	struct ibv_qp_init_attr init = {
		.send_cq = node->cq,
		.recv_cq = node->cq,
		.srq = node->srq,
		.cap = { .max_send_wr = QUEUE, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	peer->qp = ibv_create_qp(node->pd, &init);
	check_pointer(peer->qp, "ibv_create_qp");
	check(ibv_modify_qp(peer->qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				    IBV_QP_ACCESS_FLAGS),
	      "ibv_modify_qp to INIT");
	peer->allowed = node->hub ? 0 : SLOTS;
}

static void connect_peer(struct peer *peer, const struct greeting *mine,
			 const struct greeting *theirs, uint32_t qpn, int gid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mine->mtu < theirs->mtu ? mine->mtu : theirs->mtu,
		.dest_qp_num = qpn,
		.min_rnr_timer = 12,
		.ah_attr = {
			.dlid = theirs->lid,
			.port_num = PORT,
			.is_global = theirs->lid == 0,
			.grh = {
				.dgid = theirs->gid,
				.sgid_index = (uint8_t)gid_index,
				.hop_limit = 64,
			},
		},
	};

	check(ibv_modify_qp(peer->qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER),
	      "ibv_modify_qp to RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 18;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	check(ibv_modify_qp(peer->qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC),
	      "ibv_modify_qp to RTS");
}

/* Both sides send first, then receive. It also makes each wait for the other. */
static void exchange(int socket, const void *mine, void *ret_theirs, size_t size)
{
	if (send(socket, mine, size, MSG_NOSIGNAL) != (ssize_t)size ||
	    recv(socket, ret_theirs, size, MSG_WAITALL) != (ssize_t)size)
		errx(1, "the other side is gone");
}

static void connect_peers(struct node *node, int socket, int gid_index)
{
	struct greeting mine = { 0 }, theirs;
	struct ibv_port_attr port;

	check(ibv_query_port(node->context, PORT, &port), "ibv_query_port");
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET &&
	    ibv_query_gid(node->context, PORT, gid_index, &mine.gid))
		err(1, "ibv_query_gid");
	mine.lid = port.lid;
	mine.mtu = port.active_mtu;
	mine.address = (uintptr_t)node->slots;
	mine.rkey = node->mr->rkey;
	for (int i = 0; i < PEERS; i++)
		mine.qpn[i] = node->peers[i].qp->qp_num;
	exchange(socket, &mine, &theirs, sizeof(mine));
	for (int i = 0; i < PEERS; i++)
		connect_peer(&node->peers[i], &mine, &theirs, theirs.qpn[i], gid_index);
	node->remote = theirs.address;
	node->rkey = theirs.rkey;
	exchange(socket, &mine, &theirs, 1); /* both are in RTS */
}

/* Send what is allowed: a peer its next records, the hub its next answers. */
static void advance(struct node *node, uint32_t number)
{
	struct peer *peer = &node->peers[number];

	while (peer->sent < peer->allowed && peer->outstanding < QUEUE) {
		uint32_t *words = node->slots[number][peer->sent % SLOTS];
		struct ibv_sge piece = { (uintptr_t)words, sizeof(record),
					 node->mr->lkey };
		struct ibv_send_wr *bad, wr = {
			.wr_id = number,
			.opcode = IBV_WR_SEND_WITH_IMM,
			.imm_data = htonl(peer->sent),
		};

		if (!node->hub) {
			for (uint32_t i = 0; i < WORDS; i++)
				words[i] = number * RECORDS + peer->sent + i;
			wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
			wr.sg_list = &piece;
			wr.num_sge = 1;
			wr.wr.rdma.rkey = node->rkey;
			wr.wr.rdma.remote_addr = node->remote +
						 (uint64_t)((char *)words -
							    (char *)node->slots);
		}
		check(ibv_post_send(peer->qp, &wr, &bad), "ibv_post_send");
		peer->sent++;
		peer->outstanding++;
	}
}

static void take_message(struct node *node, uint32_t number, uint32_t immediate)
{
	struct peer *peer = &node->peers[number];
	uint32_t *words = node->slots[number][immediate % SLOTS];

	if (immediate != peer->received++)
		errx(1, "out of order");
	for (uint32_t i = 0; node->hub && i < WORDS; i++)
		if (words[i] != number * RECORDS + immediate + i)
			errx(1, "a record is wrong");
	if (peer->allowed < RECORDS)
		peer->allowed++;
}

static uint32_t find_peer(const struct node *node, uint32_t qpn)
{
	for (uint32_t i = 0; i < PEERS; i++)
		if (node->peers[i].qp->qp_num == qpn)
			return i;
	errx(1, "a completion of no queue pair");
}

static void handle_completion(struct node *node, const struct ibv_wc *wc)
{
	uint32_t number;

	if (wc->status != IBV_WC_SUCCESS)
		errx(1, "%s", ibv_wc_status_str(wc->status));
	if (wc->opcode & IBV_WC_RECV) {
		number = find_peer(node, wc->qp_num);
		take_message(node, number, ntohl(wc->imm_data));
		post_receive(node);
	} else {
		number = (uint32_t)wc->wr_id;
		node->peers[number].outstanding--;
	}
	node->left--;
	advance(node, number);
}

static void wait_for_event(struct node *node)
{
	struct epoll_event event;
	struct ibv_cq *cq;
	void *context;
	int count = epoll_wait(node->epoll, &event, 1, TIMEOUT_MS);

	if (count == 0)
		errx(1, "nothing arrives");
	if (count < 0 && errno != EINTR)
		err(1, "epoll_wait");
	while (ibv_get_cq_event(node->events, &cq, &context) == 0)
		ibv_ack_cq_events(cq, 1);
	check(ibv_req_notify_cq(node->cq, 0), "ibv_req_notify_cq");
}

static void run(struct node *node)
{
	struct ibv_wc wc[16];
	int count;

	for (uint32_t i = 0; i < PEERS; i++)
		advance(node, i);
	while (node->left > 0) {
		/* Poll after arming: no event announces what came before. */
		while ((count = ibv_poll_cq(node->cq, 16, wc)) > 0)
			for (int i = 0; i < count; i++)
				handle_completion(node, &wc[i]);
		if (count < 0)
			errx(1, "ibv_poll_cq failed");
		if (node->left > 0)
			wait_for_event(node);
	}
}

static void close_node(struct node *node)
{
	for (int i = 0; i < PEERS; i++)
		ibv_destroy_qp(node->peers[i].qp);
	ibv_destroy_srq(node->srq);
	ibv_destroy_cq(node->cq);
	ibv_destroy_comp_channel(node->events);
	ibv_dereg_mr(node->mr);
	ibv_dealloc_pd(node->pd);
	ibv_close_device(node->context);
	close(node->epoll);
	free(node->slots);
}

int main(int argc, char **argv)
{
	struct node node = { .left = 2 * PEERS * RECORDS };
	int sockets[2], status = 0;
	char byte = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		err(1, "socketpair");
	node.hub = fork() != 0;
	close(sockets[node.hub]);
	open_device(&node, argc > 1 ? argv[1] : NULL);
	create_queues(&node);
	for (int i = 0; i < PEERS; i++)
		create_peer(&node, &node.peers[i]);
	connect_peers(&node, sockets[!node.hub], argc > 2 ? atoi(argv[2]) : 0);
	run(&node);
	exchange(sockets[!node.hub], &byte, &byte, 1); /* neither needs the other now */
	close_node(&node);
	if (node.hub) {
		wait(&status);
		printf("%d records of %d peers are right\n", PEERS * RECORDS, PEERS);
	}
	return status != 0;
}
