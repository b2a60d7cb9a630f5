/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "listen.h"
#include "address.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/log.h"
#include "meeting.h"
#include "node.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/link/socket.h"

/* "::" or "0.0.0.0": valid for listening, but not for calling. */
static bool is_any(const struct in6_addr *address)
{
	return IN6_IS_ADDR_UNSPECIFIED(address) ||
	       (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr32[3] == 0);
}

/* A link-local address is of no use on another host. */
static int list_interfaces(struct soft_listeners *listeners, bool v4_only)
{
	struct in6_addr *ret_address;
	struct ifaddrs *interfaces;

	if (getifaddrs(&interfaces) < 0)
		return pier_fail(errno, "soft0: cannot list the network interfaces");
	for (const struct ifaddrs *one = interfaces; one; one = one->ifa_next) {
		if (listeners->count == SOFT_MAX_ADDRESSES)
			break;
		ret_address = &listeners->addresses[listeners->count];
		if (pier_soft_find_interface_address(one, ret_address) &&
		    !IN6_IS_ADDR_LINKLOCAL(ret_address) &&
		    (!v4_only || IN6_IS_ADDR_V4MAPPED(ret_address)))
			listeners->count++;
	}
	freeifaddrs(interfaces);
	return 0;
}

static const char *read_setting(const char *name)
{
	const char *value = secure_getenv(name);

	return value && *value ? value : NULL;
}

/* By default a process that listens may call the networks of this host's interfaces. */
static int choose_peers(struct soft_listeners *listeners, bool loopback)
{
	const char *wanted = read_setting("PIER_SOFT_PEERS");
	int error = 0;

	listeners->peers = (struct soft_peers){ .attached = listeners->tcp };
	if (wanted)
		error = pier_soft_parse_peers(wanted, &listeners->peers);
	listeners->peers.loopback = loopback;
	return error;
}

/* Reads PIER_SOFT_ADDRESS and PIER_SOFT_PEERS. 0; -EINVAL with a sentence. */
static int choose_addresses(struct soft_listeners *listeners, struct in6_addr *ret_bind)
{
	const char *wanted = read_setting("PIER_SOFT_ADDRESS");

	listeners->tcp = wanted && strcmp(wanted, "none") != 0;
	listeners->count = 0;
	if (!listeners->tcp)
		return choose_peers(listeners, false);
	if (!pier_soft_parse_ip(wanted, ret_bind))
		return pier_fail(EINVAL,
				 "soft0: PIER_SOFT_ADDRESS=%s is no IPv4 or IPv6 "
				 "address, nor \"none\"",
				 wanted);
	if (is_any(ret_bind)) {
		int error = list_interfaces(listeners, IN6_IS_ADDR_V4MAPPED(ret_bind));

		return error ? error : choose_peers(listeners, false);
	}
	listeners->addresses[listeners->count++] = *ret_bind;
	return choose_peers(listeners, pier_soft_is_loopback(ret_bind));
}

socklen_t pier_soft_datagram_name(const struct soft_meeting *meeting,
				  const union ibv_gid *gid, struct sockaddr_un *ret_name)
{
	return pier_soft_name_in_folder(meeting, "ud", gid, ret_name);
}

/* 0 or -errno with a sentence; close_datagrams() follows in any case. */
static int open_datagrams(struct soft_node *node)
{
	struct sockaddr_un name;
	socklen_t length;
	int fd;

	if (!*node->meeting.folder)
		return 0;
	pier_soft_sweep_folder(&node->meeting);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	node->listeners.datagram_fd = fd;
	pier_soft_accept_fds(fd, false);
	length = pier_soft_datagram_name(&node->meeting, &node->gid, &name);
	if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) < 0)
		return pier_fail(errno, "soft0: no socket for datagrams at %s",
				 name.sun_path);
	return pier_soft_watch(node->engine, fd, EPOLLIN, SOFT_EVENT_DATAGRAM, 0);
}

static void close_datagrams(struct soft_node *node)
{
	struct sockaddr_un name;

	if (node->listeners.datagram_fd < 0)
		return;
	pier_soft_datagram_name(&node->meeting, &node->gid, &name);
	if (node->pid == getpid())
		unlink(name.sun_path);
	node->listeners.datagram_fd = pier_close_fd(node->listeners.datagram_fd);
}

/* PIER_SOFT_UNIX is for tests: "off" leaves TCP between processes of one host. */
bool pier_soft_unix_allowed(void)
{
	return !pier_switched_off("PIER_SOFT_UNIX");
}

/*
 * In the folder of a meeting, where no other user can bind it. Otherwise in the abstract
 * namespace: without a file, and gone with its last fd.
 */
socklen_t pier_soft_unix_name(const struct soft_meeting *meeting,
			      const union ibv_gid *gid, struct sockaddr_un *ret_name)
{
	char *end = ret_name->sun_path + 1;

	if (meeting->joined)
		return pier_soft_name_in_folder(meeting, "qp", gid, ret_name);
	memset(ret_name, 0, sizeof(*ret_name));
	ret_name->sun_family = AF_UNIX;
	end = stpcpy(end, "pier-soft-");
	pier_soft_print_gid(gid, end);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			   strlen(ret_name->sun_path + 1));
}

static int listen_unix(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&node->meeting, &node->gid, &name);

	if (!pier_soft_unix_allowed())
		return 0;
	listeners->uid = geteuid();
	listeners->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
				    0);
	/* Connections inherit this, so no fd comes with them before they are accepted. */
	pier_soft_accept_fds(listeners->unix_fd, false);
	if (listeners->unix_fd < 0 ||
	    bind(listeners->unix_fd, (struct sockaddr *)&name, length) < 0 ||
	    listen(listeners->unix_fd, SOMAXCONN) < 0)
		return pier_fail(errno, "soft0: cannot listen on the Unix socket %s%s",
				 *name.sun_path ? "" : "@",
				 name.sun_path + !*name.sun_path);
	return 0;
}

/* Takes the fd. Returns it, or -1. */
static int listen_at(int fd, const void *name, socklen_t length)
{
	if (bind(fd, name, length) == 0 && listen(fd, SOMAXCONN) == 0)
		return fd;
	return pier_close_fd(fd);
}

static int bind_tcp(struct in6_addr address)
{
	struct sockaddr_in6 name = { .sin6_family = AF_INET6, .sin6_addr = address };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int off = 0;

	if (fd < 0)
		return -1;
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	return listen_at(fd, &name, sizeof(name));
}

/* For kernels without IPv6. */
static int bind_tcp4(struct in6_addr address)
{
	struct sockaddr_in name = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	if (IN6_IS_ADDR_V4MAPPED(&address))
		memcpy(&name.sin_addr, address.s6_addr + 12, 4);
	return listen_at(fd, &name, sizeof(name));
}

static uint16_t bound_port(int fd)
{
	/* An IPv4 address is shorter, and has its port in the same place. */
	struct sockaddr_in6 name = { 0 };
	socklen_t size = sizeof(name);

	if (getsockname(fd, (struct sockaddr *)&name, &size) < 0)
		return 0;
	return ntohs(name.sin6_port);
}

static int listen_tcp(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;
	struct in6_addr address = { 0 };
	int error = choose_addresses(listeners, &address);

	if (error || !listeners->tcp)
		return error;
	listeners->tcp_fd = bind_tcp(address);
	/* No other IPv6 address may become 0.0.0.0. */
	if (listeners->tcp_fd < 0 &&
	    (IN6_IS_ADDR_V4MAPPED(&address) || IN6_IS_ADDR_UNSPECIFIED(&address)))
		listeners->tcp_fd = bind_tcp4(address);
	if (listeners->tcp_fd < 0)
		return pier_fail(errno, "soft0: cannot listen on PIER_SOFT_ADDRESS=%s",
				 secure_getenv("PIER_SOFT_ADDRESS"));
	listeners->port = bound_port(listeners->tcp_fd);
	return 0;
}

static int watch_listeners(struct soft_node *node)
{
	const int fds[] = { node->listeners.unix_fd, node->listeners.tcp_fd };
	int error = 0;

	for (int i = 0; i < 2 && !error; i++) {
		if (fds[i] >= 0)
			error = pier_soft_watch(node->engine, fds[i], EPOLLIN,
						SOFT_EVENT_LISTENER, 0);
	}
	return error;
}

/* A GID of a meeting has the first IPv4 address on which this process listens. */
static int choose_gid(struct soft_node *node)
{
	const struct soft_listeners *listeners = &node->listeners;
	uint32_t i = 0;

	if (!node->meeting.joined || !listeners->tcp)
		return pier_soft_make_gid(&node->gid) ? 0 : -EIO;
	while (i < listeners->count && !IN6_IS_ADDR_V4MAPPED(&listeners->addresses[i]))
		i++;
	if (i == listeners->count)
		return pier_fail(EADDRNOTAVAIL,
				 "soft0: PIER_SOFT_ADDRESS=%s: there is no IPv4 address, "
				 "and no other fits a GID",
				 secure_getenv("PIER_SOFT_ADDRESS"));
	return pier_soft_make_callable_gid(&listeners->addresses[i], listeners->port,
					   &node->gid)
		       ? 0
		       : -EIO;
}

int pier_soft_open_listeners(struct soft_node *node)
{
	int error = listen_tcp(node);

	if (!error)
		error = choose_gid(node);
	if (!error)
		error = open_datagrams(node);
	if (!error)
		error = listen_unix(node);
	if (!error)
		error = watch_listeners(node);
	return error;
}

/* Not in a forked child, whose parent still listens. */
static void remove_socket(const struct soft_node *node)
{
	struct sockaddr_un name;

	if (!node->meeting.joined || node->listeners.unix_fd < 0 || node->pid != getpid())
		return;
	pier_soft_unix_name(&node->meeting, &node->gid, &name);
	unlink(name.sun_path);
}

/* A forked child closes its copy: the parent goes on using the socket. */
static void close_socket(const struct soft_node *node, int fd)
{
	if (node->pid == getpid())
		pier_soft_hang_up(fd);
	else
		pier_close_fd(fd);
}

void pier_soft_close_listeners(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;

	for (int i = 0; i < SOFT_MAX_PENDING; i++) {
		if (listeners->pending[i].step == SOFT_PENDING_FREE)
			continue;
		close_socket(node, listeners->pending[i].stream.fd);
		pier_soft_close_foreign(listeners->pending[i].shared_fd);
	}
	remove_socket(node);
	close_datagrams(node);
	close_socket(node, listeners->unix_fd);
	close_socket(node, listeners->tcp_fd);
	listeners->unix_fd = listeners->tcp_fd = -1;
}

/* A listener that is not served stays readable: stop watching it for a while. */
static void pause_listeners(struct soft_node *node, uint64_t nanoseconds)
{
	struct soft_listeners *listeners = &node->listeners;

	if (listeners->unix_fd >= 0)
		pier_soft_unwatch(node->engine, listeners->unix_fd);
	if (listeners->tcp_fd >= 0)
		pier_soft_unwatch(node->engine, listeners->tcp_fd);
	listeners->paused_until = pier_soft_now() + nanoseconds;
	pier_soft_arm_timer(node->engine, listeners->paused_until);
}

/*
 * Each pending connection takes a slot for at most ten seconds, reads of at most 144
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

/*
 * Longer than a caller waits (call.c): a listener that gave up first would refuse a
 * caller whose process got no processor for a while.
 */
#define DEADLINE_NANOSECONDS UINT64_C(10000000000)

enum {
	ACCEPTS_PER_EVENT = 16,
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

static void free_slot(struct soft_pending *pending)
{
	explicit_bzero(&pending->stream, sizeof(pending->stream));
	pending->stream.fd = -1;
	pending->step = SOFT_PENDING_FREE;
	pending->generation++;
}

static void drop_pending(struct soft_node *node, struct soft_pending *pending,
			 const char *reason)
{
	if (reason)
		pier_info("soft0: dropped a connection: %s", reason);
	pier_soft_unwatch(node->engine, pending->stream.fd);
	pier_soft_hang_up(pending->stream.fd);
	pending->shared_fd = pier_soft_close_foreign(pending->shared_fd);
	free_slot(pending);
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
	pending->stream.fd = fd;
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
		pause_listeners(node, FULL_NANOSECONDS);
		return false;
	}
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		if (pier_is_transient(errno) || errno == ECONNABORTED)
			return false;
		pier_warning("soft0: cannot accept connections: %s", strerror(errno));
		pause_listeners(node, NO_FD_NANOSECONDS);
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
	return send(pending->stream.fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL) ==
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
	pending->stream.session.cipher = pending->sealed
						 ? pier_soft_choose_cipher(hello.ciphers)
						 : SOFT_PLAIN;
	if (pending->sealed && pending->stream.session.cipher == SOFT_PLAIN)
		return "it offers no cipher that this end has";
	if (!pier_soft_make_nonce(&share, pending->sealed, challenge))
		return "there are no random numbers";
	if (!pier_soft_agree(&share, hello.nonce, pending->stream.session.agreed))
		return "its half of the key is not valid";
	pier_soft_hash_transcript(pending->bytes, challenge,
				  pending->stream.session.cipher,
				  pending->stream.session.transcript);
	pier_soft_prove(target->secret, SOFT_LISTENER_PROVES,
			pending->stream.session.transcript, challenge + SOFT_SHARE_SIZE);
	challenge[SOFT_SHARE_SIZE + SOFT_MAC_SIZE] =
		(uint8_t)pending->stream.session.cipher;
	pending->stream.gid = hello.from;
	pending->stream.qpn = hello.from_qpn;
	pending->target_qpn = hello.to_qpn;
	pending->step = SOFT_PENDING_PROOF;
	pending->have = 0;
	return send_answer(pending, challenge, sizeof(challenge))
		       ? NULL
		       : "it does not take the answer";
}

static void hand_over_stream(struct soft_node *node, struct soft_pending *pending,
			     struct soft_connection *target, struct soft_fifo *fifo)
{
	struct soft_early_stream *stream = &pending->stream;

	stream->tx_fd = stream->fd;
	stream->fifo = fifo;
	memcpy(stream->proof, pending->bytes + SOFT_MAC_SIZE, SOFT_MAC_SIZE);
	pier_soft_unwatch(node->engine, stream->fd);
	pier_soft_tune_stream(stream->fd);
	if (pier_soft_prefers_own_call(target, stream))
		pier_soft_free_stream(stream);
	else
		pier_soft_store_stream(target, stream);
	free_slot(pending);
}

/* Uses the memory that came with the proof, if any, now that the proof is valid. */
static struct soft_fifo *attach_shared_memory(struct soft_pending *pending)
{
	struct soft_shared_memory *memory = NULL;

	if (pending->shared_fd >= 0)
		memory = pier_soft_adopt_shared_memory(pending->shared_fd);
	pending->shared_fd = pier_soft_close_foreign(pending->shared_fd);
	return pier_soft_create_fifo(memory, 1, 0);
}

static const char *answer_proof(struct soft_node *node, struct soft_pending *pending)
{
	struct soft_connection *target = pier_soft_find_connection(node,
								   pending->target_qpn);
	uint8_t welcome[SOFT_WELCOME_SIZE];
	struct soft_fifo *fifo;

	if (!target)
		return "its queue pair is gone";
	if (!pier_soft_proves(target->secret, SOFT_CALLER_PROVES,
			      pending->stream.session.transcript, pending->bytes))
		return "it does not know the secret";
	fifo = attach_shared_memory(pending);
	pier_soft_prove(target->secret,
			fifo ? SOFT_LISTENER_SHARES : SOFT_LISTENER_WELCOMES,
			pending->stream.session.transcript, welcome);
	if (!send_answer(pending, welcome, sizeof(welcome))) {
		pier_soft_free_fifo(fifo);
		return "it does not take the answer";
	}
	hand_over_stream(node, pending, target, fifo);
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
	ssize_t received = recvmsg(pending->stream.fd, &message,
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
		if (now < listeners->paused_until) {
			pier_soft_arm_timer(node->engine, listeners->paused_until);
		} else {
			listeners->paused_until = 0;
			watch_listeners(node);
		}
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
