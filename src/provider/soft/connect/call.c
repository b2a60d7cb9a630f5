/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "call.h"
#include "address.h"
#include "core/error.h"
#include "core/fd.h"
#include "listen.h"
#include "node.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/crypto.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/link/socket.h"

/* 0 when the fd is ready, or -errno. */
static int wait_for_fd(int fd, short events, uint64_t deadline)
{
	struct pollfd waited = { .fd = fd, .events = events };

	for (;;) {
		uint64_t now = pier_soft_now();
		int count;

		if (now >= deadline)
			return -ETIMEDOUT;
		count = poll(&waited, 1, (int)((deadline - now) / 1000000 + 1));
		if (count > 0)
			return 0;
		if (count < 0 && errno != EINTR)
			return -errno;
	}
}

static int receive_all(int fd, uint8_t *bytes, size_t length, uint64_t deadline)
{
	while (length > 0) {
		int error = wait_for_fd(fd, POLLIN, deadline);
		ssize_t received;

		if (error)
			return error;
		received = recv(fd, bytes, length, MSG_DONTWAIT);
		if (received == 0)
			return -ECONNREFUSED;
		if (received < 0 && !pier_is_transient(errno))
			return errno == ECONNRESET ? -ECONNREFUSED : -errno;
		if (received > 0) {
			bytes += received;
			length -= received;
		}
	}
	return 0;
}

/* Does not block, since a fresh connection always has room for so few bytes. */
static int send_all(int fd, const uint8_t *bytes, size_t length)
{
	ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent == (ssize_t)length)
		return 0;
	return sent < 0 && errno != EPIPE && errno != ECONNRESET ? -errno : -ECONNREFUSED;
}

/* Without SO_SNDTIMEO, a Unix connect(2) waits without limit for room in the backlog. */
static int limit_connect(int fd, uint64_t deadline)
{
	uint64_t now = pier_soft_now();
	uint64_t left = now < deadline ? (deadline - now) / 1000 : 0;
	struct timeval limit = {
		.tv_sec = (time_t)(left / 1000000),
		.tv_usec = (suseconds_t)(left % 1000000),
	};

	if (left == 0) /* 0 would mean no limit */
		return -ETIMEDOUT;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		return -errno;
	return 0;
}

static int connect_before(int fd, const void *name, socklen_t length, uint64_t deadline)
{
	int error;
	socklen_t size = sizeof(error);

	for (;;) {
		error = limit_connect(fd, deadline);
		if (error)
			return error;
		if (connect(fd, name, length) == 0 || errno == EINPROGRESS)
			break;
		if (errno != EINTR)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
	}
	error = wait_for_fd(fd, POLLOUT, deadline);
	if (error)
		return error;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return -errno;
	return -error;
}

/* The longest time that a call to a peer in another process takes. */
#define DEADLINE	    UINT64_C(5000000000)
/*
 * Any process can take the peer's name in the abstract namespace, and fill the backlog,
 * or accept and stay silent. So if the peer can also be called by TCP, a Unix listener
 * has this long to prove itself.
 */
#define UNIX_PROOF_DEADLINE UINT64_C(1000000000)

/* Sends the proof, and with it the fd of the memory to share. */
static int send_proof(int fd, uint8_t *proof, const struct soft_shared_memory *memory)
{
	/* If too many fds are in flight, for example, the proof goes without it. */
	if (memory && pier_soft_send_with_fds(fd, proof, SOFT_PROOF_SIZE, &memory->fd, 1))
		return 0;
	return send_all(fd, proof, SOFT_PROOF_SIZE);
}

/* If the listener does not use the memory, `*shared` becomes NULL. */
static int check_welcome(const struct soft_connection *connection,
			 const uint8_t *transcript, const uint8_t *welcome,
			 struct soft_shared_memory **shared)
{
	const uint8_t *secret = connection->peer_address.secret;

	if (*shared &&
	    pier_soft_proves(secret, SOFT_LISTENER_SHARES, transcript, welcome))
		return 0;
	pier_soft_release_shared_memory(*shared);
	*shared = NULL;
	return pier_soft_proves(secret, SOFT_LISTENER_WELCOMES, transcript, welcome)
		       ? 0
		       : -ECONNREFUSED;
}

static int prove_ourselves(const struct soft_connection *connection, int fd,
			   const uint8_t *transcript, uint64_t deadline,
			   struct soft_shared_memory **shared)
{
	const uint8_t *secret = connection->peer_address.secret;
	uint8_t proof[SOFT_PROOF_SIZE], welcome[SOFT_WELCOME_SIZE];
	int error;

	pier_soft_prove(secret, SOFT_CALLER_PROVES, transcript, proof);
	pier_soft_prove(connection->secret, SOFT_CALLER_IDENTITY, transcript,
			proof + SOFT_MAC_SIZE);
	error = send_proof(fd, proof, *shared);
	if (!error)
		error = receive_all(fd, welcome, sizeof(welcome), deadline);
	return error ? error : check_welcome(connection, transcript, welcome, shared);
}

/* When this returns 0, the listener has proved itself, and `early` has the transcript. */
static int exchange_nonces(const struct soft_connection *connection,
			   const struct ibv_qp_attr *attr, int fd, bool sealed,
			   uint64_t deadline, struct soft_early_stream *early)
{
	struct soft_hello hello = {
		.from = connection->node->gid,
		.to = attr->ah_attr.grh.dgid,
		.from_qpn = connection->end->qpn,
		.to_qpn = attr->dest_qp_num,
		.ciphers = sealed ? pier_soft_offered_ciphers() : 0,
	};
	uint8_t bytes[SOFT_HELLO_SIZE], challenge[SOFT_CHALLENGE_SIZE];
	uint8_t *cipher = challenge + SOFT_SHARE_SIZE + SOFT_MAC_SIZE;
	struct soft_share share;
	int error;

	if (!pier_soft_make_nonce(&share, sealed, hello.nonce))
		return -EIO;
	pier_soft_pack_hello(&hello, bytes);
	error = send_all(fd, bytes, sizeof(bytes));
	if (!error)
		error = receive_all(fd, challenge, sizeof(challenge), deadline);
	if (!error && (!pier_soft_may_choose(hello.ciphers, *cipher) ||
		       !pier_soft_agree(&share, challenge, early->session.agreed)))
		error = -ECONNREFUSED;
	explicit_bzero(&share, sizeof(share));
	if (error)
		return error;
	early->session.cipher = *cipher;
	pier_soft_hash_transcript(bytes, challenge, early->session.cipher,
				  early->session.transcript);
	early->proven = pier_soft_proves(connection->peer_address.secret,
					 SOFT_LISTENER_PROVES, early->session.transcript,
					 challenge + SOFT_SHARE_SIZE);
	if (early->proven)
		return 0;
	return connection->node->meeting.joined ? -EKEYREJECTED : -ECONNREFUSED;
}

/* The user of the listener may connect, as is known here. */
static int introduce_unix(const struct soft_connection *connection,
			  const struct ibv_qp_attr *attr, int fd, uint64_t proof_deadline,
			  uint64_t deadline, struct soft_early_stream *early)
{
	struct soft_shared_memory *shared = NULL;
	bool sealed = pier_soft_must_seal(fd, geteuid());
	int error = exchange_nonces(connection, attr, fd, sealed, proof_deadline, early);

	if (error)
		return error;
	if (!sealed) /* otherwise the listener does not accept it */
		shared = pier_soft_create_shared_memory();
	error = prove_ourselves(connection, fd, early->session.transcript, deadline,
				&shared);
	if (!error && shared) {
		early->fifo = pier_soft_create_fifo(shared, 0, 1);
		/* The peer relies on this order. */
		return early->fifo ? 0 : -ENOMEM;
	}
	pier_soft_release_shared_memory(shared);
	return error;
}

static const char *describe_refusal(int error)
{
	if (error == -EKEYREJECTED)
		return "has another key";
	return error == -ECONNREFUSED ? "refuses: it is gone, or was set up with another "
					"address"
				      : "does not answer";
}

/* ENOENT: this host has no such socket, so the peer is on another one. */
static int call_unix(const struct soft_connection *connection,
		     const struct ibv_qp_attr *attr, uint64_t proof_deadline,
		     uint64_t deadline, struct soft_early_stream *early)
{
	struct sockaddr_un name;
	socklen_t length = pier_soft_unix_name(&connection->node->meeting,
					       &attr->ah_attr.grh.dgid, &name);
	pier_auto_fd fd = -1;
	int error;

	if (!pier_soft_unix_allowed())
		return -ENOENT;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return pier_fail(errno, "soft0: no socket");
	pier_soft_accept_fds(fd, false);
	error = connect_before(fd, &name, length, proof_deadline);
	if (error == -ENOENT || error == -ECONNREFUSED ||
	    (!error && !pier_soft_may_connect(fd)))
		return -ENOENT;
	if (!error)
		error = introduce_unix(connection, attr, fd, proof_deadline, deadline,
				       early);
	if (error)
		return pier_fail(-error,
				 "soft0: QP %#x of another process (Unix socket "
				 "%s%s) %s",
				 attr->dest_qp_num, *name.sun_path ? "" : "@",
				 name.sun_path + !*name.sun_path,
				 describe_refusal(error));
	early->fd = pier_take_fd(&fd);
	return 0;
}

static socklen_t tcp_name(const struct soft_address *address, uint32_t index,
			  struct sockaddr_storage *ret_name)
{
	const struct in6_addr *one = &address->addresses[index];
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret_name;
	struct sockaddr_in *v4 = (struct sockaddr_in *)ret_name;

	memset(ret_name, 0, sizeof(*ret_name));
	if (IN6_IS_ADDR_V4MAPPED(one)) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(address->port);
		memcpy(&v4->sin_addr, one->s6_addr + 12, 4);
		return sizeof(*v4);
	}
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(address->port);
	v6->sin6_addr = *one;
	return sizeof(*v6);
}

static int call_one(const struct soft_connection *connection,
		    const struct ibv_qp_attr *attr, uint32_t index, uint64_t deadline,
		    struct soft_early_stream *early)
{
	struct sockaddr_storage name;
	socklen_t length = tcp_name(&connection->peer_address, index, &name);
	pier_auto_fd fd = socket(name.ss_family,
				 SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct soft_shared_memory *shared = NULL;
	int error;

	if (fd < 0)
		return -errno;
	error = connect_before(fd, &name, length, deadline);
	if (!error)
		error = exchange_nonces(connection, attr, fd, true, deadline, early);
	if (!error)
		error = prove_ourselves(connection, fd, early->session.transcript,
					deadline, &shared);
	if (!error)
		early->fd = pier_take_fd(&fd);
	return error;
}

/* Whether the peer has an address that this process may call. */
static bool has_tcp_way(const struct soft_connection *connection)
{
	const struct soft_peers *peers = &connection->node->listeners.peers;
	const struct soft_address *address = &connection->peer_address;

	for (uint32_t i = 0; i < address->count; i++) {
		if (pier_soft_may_call(peers, &address->addresses[i], address->port))
			return true;
	}
	return false;
}

static int check_tcp(const struct soft_connection *connection,
		     const struct ibv_qp_attr *attr)
{
	/* In a meeting ECONNREFUSED is no error at RTR; what never will work is one. */
	bool meets = connection->node->meeting.joined;
	int error = meets ? EHOSTUNREACH : ECONNREFUSED;

	if (connection->peer_address.count == 0 && meets)
		return pier_fail(
			error,
			"soft0: QP %#x is of no process that uses the folder %s, "
			"and its GID has no address: set the same XDG_RUNTIME_DIR "
			"for both ends, or on two hosts PIER_SOFT_ADDRESS and "
			"PIER_SOFT_KEY",
			attr->dest_qp_num, connection->node->meeting.folder);
	if (connection->peer_address.count == 0)
		return pier_fail(error,
				 "soft0: QP %#x is not on this host, and neither end "
				 "listens on TCP: set PIER_SOFT_ADDRESS for both, or for "
				 "one and PIER_SOFT_PEERS for the other",
				 attr->dest_qp_num);
	if (!pier_soft_calls_anybody(&connection->node->listeners.peers))
		return pier_fail(error,
				 "soft0: QP %#x is not on this host, and this process "
				 "does not use TCP: set PIER_SOFT_PEERS to the "
				 "peer's address, or PIER_SOFT_ADDRESS",
				 attr->dest_qp_num);
	return 0;
}

/*
 * refused  the last address that this process may not call
 * failed   the last one that it called; empty: none
 */
static int fail_call(const struct soft_connection *connection, uint32_t qpn,
		     const char *refused, const char *failed, int error)
{
	const struct soft_address *address = &connection->peer_address;

	if (!*failed)
		return pier_fail(EACCES,
				 "soft0: the endpoint of QP %#x has %s port %u, which "
				 "this process may not call: %s",
				 qpn, refused, address->port,
				 address->port < SOFT_MIN_PORT
					 ? "ports below 1024 are never called"
					 : "set PIER_SOFT_PEERS to allow it");
	return pier_fail(-error,
			 "soft0: QP %#x cannot be reached by TCP: the last of %u "
			 "addresses, %s port %u: %s",
			 qpn, address->count, failed, address->port, strerror(-error));
}

/* Calls each permitted address of the peer in turn. */
static int call_tcp(const struct soft_connection *connection,
		    const struct ibv_qp_attr *attr, uint64_t deadline,
		    struct soft_early_stream *early)
{
	const struct soft_peers *peers = &connection->node->listeners.peers;
	const struct soft_address *address = &connection->peer_address;
	char refused[INET6_ADDRSTRLEN], failed[INET6_ADDRSTRLEN] = "";
	int error = check_tcp(connection, attr);

	if (error)
		return error;
	for (uint32_t i = 0; i < address->count; i++) {
		const struct in6_addr *one = &address->addresses[i];
		/*
		 * A share of the time left, so that a dead address does not use all of
		 * it.
		 */
		uint64_t now = pier_soft_now();
		uint64_t left = deadline > now ? deadline - now : 0;

		if (!pier_soft_may_call(peers, one, address->port)) {
			inet_ntop(AF_INET6, one, refused, sizeof(refused));
			continue;
		}
		error = call_one(connection, attr, i, now + left / (address->count - i),
				 early);
		if (!error)
			return 0;
		inet_ntop(AF_INET6, one, failed, sizeof(failed));
	}
	return fail_call(connection, attr->dest_qp_num, refused, failed, error);
}

int pier_soft_call(struct soft_connection *connection, const struct ibv_qp_attr *attr,
		   struct soft_early_stream *ret_parked)
{
	uint64_t now = pier_soft_now(), deadline = now + DEADLINE;
	bool has_tcp = has_tcp_way(connection);
	int error;

	*ret_parked = (struct soft_early_stream){
		.fd = -1,
		.gid = attr->ah_attr.grh.dgid,
		.qpn = attr->dest_qp_num,
	};
	error = call_unix(connection, attr,
			  has_tcp ? now + UNIX_PROOF_DEADLINE : deadline, deadline,
			  ret_parked);
	/* Once the peer may have our proof, a second connection would be one too many. */
	if (error == -ENOENT || (error && has_tcp && !ret_parked->proven))
		error = call_tcp(connection, attr, deadline, ret_parked);
	ret_parked->tx_fd = ret_parked->fd;
	if (!error)
		pier_soft_tune_stream(ret_parked->fd);
	return error;
}
