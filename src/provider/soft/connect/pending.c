/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "pending.h"
#include "core/fd.h"
#include "core/log.h"
#include "listen.h"
#include "node.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/link/socket.h"

/*
 * Each pending connection takes a slot for at most two seconds, reads of at most 144
 * bytes, and one fd beside its own, which only processes of our user may send.
 *
 * Strangers can fill all slots: over TCP, and if this process is root also over the Unix
 * socket. A caller then waits in the backlog of the socket until the connections before
 * it have been accepted: silent ones at 64 every 250 ms, those with a valid hello at 64
 * a second. A hello is valid only with our GID and the number of a queue pair. A caller
 * gives up after 5 seconds, so about 1280 silent connections that always reconnect keep
 * callers out. The backlog is SOMAXCONN, which the kernel limits to net.core.somaxconn;
 * when a TCP backlog is full, the kernel drops the SYN of the caller, which repeats it
 * after 1, 3 and 7 s. Processes of other users, unless one of the two is root, are
 * closed when they are accepted and take no slot.
 */

enum {
	ACCEPTS_PER_EVENT = 16,
	DEADLINE_NANOSECONDS = 2000000000,
	/*
	 * Connections older than this may be replaced. The hello follows the connect at
	 * once; the proof takes one more round trip.
	 */
	HELLO_PATIENCE_NANOSECONDS = 250000000,
	PROOF_PATIENCE_NANOSECONDS = 1000000000,
	/*
	 * How long listeners pause when all slots are taken, or the process has no more
	 * fds.
	 */
	FULL_NANOSECONDS = 5000000,
	NO_FD_NANOSECONDS = 100000000
};

static void drop_pending(struct soft_node *node, struct soft_pending *pending,
			 const char *reason)
{
	if (reason)
		pier_info("soft0: dropped a connection: %s", reason);
	pier_soft_unwatch(node->engine, pending->fd);
	pier_soft_hang_up(pending->fd);
	pending->shared_fd = pier_soft_close_foreign(pending->shared_fd);
	explicit_bzero(pending->agreed, sizeof(pending->agreed));
	pending->fd = -1;
	pending->step = SOFT_PENDING_FREE;
	pending->generation++;
}

/* When a connection may be replaced. */
static uint64_t replaceable_at(const struct soft_pending *pending)
{
	uint64_t accepted = pending->deadline - DEADLINE_NANOSECONDS;

	return accepted + (pending->step == SOFT_PENDING_HELLO
				   ? HELLO_PATIENCE_NANOSECONDS
				   : PROOF_PATIENCE_NANOSECONDS);
}

/* A free slot, or one whose connection takes too long; NULL: there is none. */
static struct soft_pending *find_slot(struct soft_node *node)
{
	struct soft_pending *slots = node->listeners.pending, *slowest = &slots[0];

	for (int i = 0; i < SOFT_MAX_PENDING; i++) {
		if (slots[i].step == SOFT_PENDING_FREE)
			return &slots[i];
		if (replaceable_at(&slots[i]) < replaceable_at(slowest))
			slowest = &slots[i];
	}
	return replaceable_at(slowest) <= node->engine->now ? slowest : NULL;
}

static void admit_connection(struct soft_node *node, struct soft_pending *pending, int fd,
			     bool sealed)
{
	uint64_t index = (uint64_t)(pending - node->listeners.pending);
	uint64_t id;

	if (pending->step != SOFT_PENDING_FREE)
		drop_pending(node, pending,
			     "too many connections wait for authentication");
	/* 32 bits of generation fit beside the index in the 56 bits of an event's id. */
	id = (uint64_t)pending->generation << 8 | index;
	if (pier_soft_watch(node->engine, fd, EPOLLIN | EPOLLRDHUP, SOFT_EVENT_PENDING,
			    id)) {
		pier_close_fd(fd);
		return;
	}
	if (!sealed)
		pier_soft_accept_fds(fd, true);
	pending->fd = fd;
	pending->sealed = sealed;
	pending->shared_fd = -1;
	pending->step = SOFT_PENDING_HELLO;
	pending->have = 0;
	pending->deadline = pier_soft_now() + DEADLINE_NANOSECONDS;
	pier_soft_arm_timer(node->engine, pending->deadline);
}

static bool accept_connection(struct soft_node *node, int listener, bool is_unix)
{
	struct soft_pending *pending = find_slot(node);
	int fd;

	if (!pending) {
		pier_soft_pause_listeners(node, FULL_NANOSECONDS);
		return false;
	}
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		if (pier_is_transient(errno) || errno == ECONNABORTED)
			return false;
		pier_warning("soft0: cannot accept connections: %s", strerror(errno));
		pier_soft_pause_listeners(node, NO_FD_NANOSECONDS);
		return false;
	}
	if (is_unix && !pier_soft_may_connect(fd)) {
		pier_info("soft0: dropped a connection: it is from another user");
		pier_close_fd(fd);
		return true;
	}
	admit_connection(node, pending, fd, pier_soft_must_seal(fd, node->listeners.uid));
	return true;
}

void pier_soft_accept(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;

	for (int i = 0; i < ACCEPTS_PER_EVENT && listeners->unix_fd >= 0; i++) {
		if (!accept_connection(node, listeners->unix_fd, true))
			break;
	}
	for (int i = 0; i < ACCEPTS_PER_EVENT && listeners->tcp_fd >= 0; i++) {
		if (!accept_connection(node, listeners->tcp_fd, false))
			break;
	}
}

static bool send_answer(const struct soft_pending *pending, const uint8_t *bytes,
			size_t length)
{
	return send(pending->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL) ==
	       (ssize_t)length;
}

static const char *answer_hello(struct soft_node *node, struct soft_pending *pending)
{
	uint8_t challenge[SOFT_CHALLENGE_SIZE];
	struct soft_hello hello;
	struct soft_share share;
	struct soft_connection *target;

	if (pier_soft_is_other_version(pending->bytes))
		return "it is of another version of pier";
	if (!pier_soft_unpack_hello(pending->bytes, &hello) ||
	    memcmp(&hello.to, &node->gid, sizeof(hello.to)) != 0)
		return "its hello is not valid here";
	target = pier_soft_find_connection(node, hello.to_qpn);
	if (!target)
		return "it asks for a queue pair that does not exist";
	pending->cipher = pending->sealed ? pier_soft_choose_cipher(hello.ciphers)
					  : SOFT_PLAIN;
	if (pending->sealed && pending->cipher == SOFT_PLAIN)
		return "it offers no cipher that this end has";
	if (!pier_soft_make_nonce(&share, pending->sealed, challenge))
		return "there are no random numbers";
	if (!pier_soft_agree(&share, hello.nonce, pending->agreed))
		return "its half of the key is not valid";
	pier_soft_hash_transcript(pending->bytes, challenge, pending->cipher,
				  pending->transcript);
	pier_soft_prove(target->secret, SOFT_LISTENER_PROVES, pending->transcript,
			challenge + SOFT_SHARE_SIZE);
	challenge[SOFT_SHARE_SIZE + SOFT_MAC_SIZE] = (uint8_t)pending->cipher;
	pending->gid = hello.from;
	pending->qpn = hello.from_qpn;
	pending->target_qpn = hello.to_qpn;
	pending->step = SOFT_PENDING_PROOF;
	pending->have = 0;
	return send_answer(pending, challenge, sizeof(challenge))
		       ? NULL
		       : "it does not take the answer";
}

static void hand_over_stream(struct soft_node *node, struct soft_pending *pending,
			     struct soft_connection *target, struct soft_ring *ring)
{
	struct soft_early_stream early = {
		.fd = pending->fd,
		.tx_fd = pending->fd,
		.ring = ring,
		.gid = pending->gid,
		.qpn = pending->qpn,
		.cipher = pending->cipher,
	};

	memcpy(early.transcript, pending->transcript, SOFT_MAC_SIZE);
	memcpy(early.agreed, pending->agreed, SOFT_SHARE_SIZE);
	explicit_bzero(pending->agreed, sizeof(pending->agreed));
	memcpy(early.proof, pending->bytes + SOFT_MAC_SIZE, SOFT_MAC_SIZE);
	pier_soft_unwatch(node->engine, pending->fd);
	pending->fd = -1;
	pending->step = SOFT_PENDING_FREE;
	pending->generation++;
	pier_soft_tune_stream(early.fd);
	pier_soft_store_stream(target, &early);
	explicit_bzero(&early, sizeof(early));
}

/* Uses the memory that came with the proof, if any, now that the proof is valid. */
static struct soft_ring *attach_shared_memory(struct soft_pending *pending)
{
	struct soft_shared_memory *memory = NULL;

	if (pending->shared_fd >= 0)
		memory = pier_soft_adopt_shared_memory(pending->shared_fd);
	pending->shared_fd = pier_soft_close_foreign(pending->shared_fd);
	return pier_soft_create_ring(memory, 1);
}

static const char *answer_proof(struct soft_node *node, struct soft_pending *pending)
{
	struct soft_connection *target = pier_soft_find_connection(node,
								   pending->target_qpn);
	uint8_t welcome[SOFT_WELCOME_SIZE];
	struct soft_ring *ring;

	if (!target)
		return "its queue pair is gone";
	if (!pier_soft_proves(target->secret, SOFT_CALLER_PROVES, pending->transcript,
			      pending->bytes))
		return "it does not know the secret";
	ring = attach_shared_memory(pending);
	pier_soft_prove(target->secret,
			ring ? SOFT_LISTENER_SHARES : SOFT_LISTENER_WELCOMES,
			pending->transcript, welcome);
	if (!send_answer(pending, welcome, sizeof(welcome))) {
		pier_soft_free_ring(ring);
		return "it does not take the answer";
	}
	hand_over_stream(node, pending, target, ring);
	return NULL;
}

/*
 * Keeps the fd that came with a proof. False: there were more fds than the protocol
 * allows. MSG_CTRUNC: the kernel discarded some; a peer that sent one fd is not at fault
 * if our fd table is full.
 */
static bool take_fd(struct soft_pending *pending, struct msghdr *message)
{
	const struct cmsghdr *header = CMSG_FIRSTHDR(message);

	if (header && header->cmsg_level == SOL_SOCKET &&
	    header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&pending->shared_fd, CMSG_DATA(header), sizeof(int));
	return !(message->msg_flags & MSG_CTRUNC) ||
	       (pending->step == SOFT_PENDING_PROOF && pending->shared_fd < 0);
}

/*
 * As recv(2); EPROTO: fds came where the protocol has none. One fd may come with a
 * proof. Otherwise there is no room for control data, and the kernel discards fds: a
 * buffer for one fd that is padded to CMSG_SPACE() has room for two.
 */
static ssize_t receive_pending(struct soft_pending *pending, uint32_t wanted)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	bool has_room = !pending->sealed && pending->step == SOFT_PENDING_PROOF &&
			pending->shared_fd < 0;
	struct iovec part = {
		.iov_base = pending->bytes + pending->have,
		.iov_len = wanted - pending->have,
	};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = has_room ? control : NULL,
		.msg_controllen = has_room ? CMSG_LEN(sizeof(int)) : 0,
	};
	ssize_t received = recvmsg(pending->fd, &message,
				   MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	if (received <= 0 || take_fd(pending, &message))
		return received;
	errno = EPROTO;
	return -1;
}

void pier_soft_continue_pending(struct soft_node *node, uint64_t id)
{
	struct soft_pending *pending = &node->listeners.pending[id % SOFT_MAX_PENDING];
	uint32_t wanted = pending->step == SOFT_PENDING_HELLO ? SOFT_HELLO_SIZE
							      : SOFT_PROOF_SIZE;
	const char *reason = NULL;
	ssize_t received;

	if (pending->step == SOFT_PENDING_FREE || pending->generation != id >> 8)
		return;
	received = receive_pending(pending, wanted);
	if (received < 0 && pier_is_transient(errno))
		return;
	if (received <= 0) {
		drop_pending(node, pending,
			     received < 0 && errno == EPROTO
				     ? "it sends fds that the protocol does not allow"
				     : "it hung up");
		return;
	}
	pending->have += (uint32_t)received;
	if (pending->have < wanted)
		return;
	reason = pending->step == SOFT_PENDING_HELLO ? answer_hello(node, pending)
						     : answer_proof(node, pending);
	if (reason)
		drop_pending(node, pending, reason);
}

void pier_soft_check_pending(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;
	uint64_t now = node->engine->now;

	if (listeners->paused_until) {
		if (now >= listeners->paused_until)
			pier_soft_resume_listeners(node);
		else
			pier_soft_arm_timer(node->engine, listeners->paused_until);
	}
	for (int i = 0; i < SOFT_MAX_PENDING; i++) {
		struct soft_pending *pending = &listeners->pending[i];

		if (pending->step == SOFT_PENDING_FREE)
			continue;
		if (now >= pending->deadline)
			drop_pending(node, pending, "it took too long");
		else
			pier_soft_arm_timer(node->engine, pending->deadline);
	}
}
