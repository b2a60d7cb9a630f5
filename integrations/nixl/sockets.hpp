/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_SOCKETS_HPP
#define PIER_NIXL_SOCKETS_HPP

#include <cstddef>
#include <poll.h>
#include <string>
#include <utility>
#include <vector>

#include "address.hpp"
#include "clock.hpp"

namespace pier_nixl
{

/* A file descriptor that is closed with its owner; -1: none. */
class owned_fd
{
      public:
	int fd;

	explicit owned_fd(int of = -1) : fd(of)
	{
	}
	owned_fd(owned_fd &&other) noexcept : fd(std::exchange(other.fd, -1))
	{
	}
	owned_fd &operator=(owned_fd &&other) noexcept
	{
		std::swap(fd, other.fd);
		return *this;
	}
	~owned_fd();
};

/*
 * Listen in the abstract namespace of Unix sockets, under a random name. Returns 0 or a
 * negative errno.
 */
int listen_unix(owned_fd &ret_socket, std::string &ret_name);

/*
 * Listen on TCP.
 *
 * where      "IP" or "IP:PORT" ("[IP]:PORT" for IPv6); "": all addresses, any port.
 *            0.0.0.0 and :: are all addresses
 * ret_hosts  the addresses under which peers may find it
 *
 * Returns 0, or a negative errno: -EINVAL `where` is no address.
 */
int listen_tcp(const std::string &where, owned_fd &ret_socket,
	       std::vector<std::string> &ret_hosts, uint16_t &ret_port);

/*
 * Calls an agent without waiting: by the Unix socket if it is on this host and of this
 * user, otherwise by TCP. Its addresses are called one after the other, those in a subnet
 * of this host first, each 250 ms after the one before or as soon as that fails (RFC
 * 8305). The first that accepts the hello is taken.
 *
 * Only one address is told the hello at a time, unless there is no answer from it for
 * 250 ms: an address that several hosts have can lead to another agent.
 */
class dialing
{
      public:
	/* timeout_ms  until the agent accepts the hello */
	void begin(const agent_address &peer, const std::string &hello_bytes,
		   int timeout_ms);
	/*
	 * Returns 1 when the agent has accepted, 0 before that, or a negative errno:
	 * -ETIMEDOUT no address was reached within 2 s, or the agent did not accept;
	 * otherwise that of the last address that failed.
	 */
	int step();
	/* Append what the next step waits for; it is due at `wake`. */
	void add_fds(std::vector<struct pollfd> &polled) const;

	time_point wake{};
	owned_fd socket; /* after the last step */
	/* The address; before the last step and after an error, all that were called. */
	std::string where;

      private:
	/* A socket on the way to an agent. */
	struct candidate {
		owned_fd socket;
		std::string where;
		enum progress {
			CONNECTING,
			CONNECTED,
			INTRODUCED /* the hello is being written, or was */
		} state;
		size_t sent; /* of the hello */
	};

	std::vector<candidate> candidates;
	std::vector<std::string> hosts; /* not called yet, the next one last */
	uint16_t port;
	std::string hello;
	int error; /* of the last address that failed */
	time_point end, next_start, reached_by, asked_until;

	bool call_next();
	bool introduce_next();
	bool advance_all();
	int advance(candidate &one);
	bool has(candidate::progress state) const;
	time_point limit() const;
};

/* Connect to an agent by the Unix socket. Returns 0 or a negative errno. */
int dial_unix(const std::string &name, owned_fd &ret_socket);

/* Set the options of a TCP connection. A host that is gone is noticed within a minute. */
void set_up_tcp(int socket);

/* The address of the other end of a connection, for sentences. */
std::string name_peer(int socket);

/* Whether the other end of a Unix socket is a process of this user, or root's. */
bool is_same_user(int socket);

} // namespace pier_nixl

#endif
