/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_SOCKETS_HPP
#define PIER_NIXL_SOCKETS_HPP

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "address.hpp"

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
 * Connect to an agent, by the Unix socket if it is on this host and of this user,
 * otherwise by TCP, over the address that answers first. Write the hello, and wait until
 * the agent accepts it.
 *
 * ret_where  the address; after an error, all that were tried
 *
 * Returns 0 or a negative errno: -ETIMEDOUT no address was reached within 2 s, or the
 * agent did not accept within timeout_ms; otherwise that of the last address that failed.
 */
int dial_agent(const agent_address &address, const std::string &hello, int timeout_ms,
	       owned_fd &ret_socket, std::string &ret_where);

/* Connect to an agent by the Unix socket. Returns 0 or a negative errno. */
int dial_unix(const std::string &name, owned_fd &ret_socket);

/* Set the options of a TCP connection. A host that is gone is noticed within a minute. */
void set_up_tcp(int socket);

/* The address of the other end of a connection, for sentences. */
std::string name_peer(int socket);

/* Whether the other end of a Unix socket is a process of this user, or root's. */
bool is_same_user(int socket);

/* Write all bytes. Returns 0, or a negative errno: -ETIMEDOUT after timeout_ms. */
int write_all(int socket, const void *bytes, size_t size, int timeout_ms);

} // namespace pier_nixl

#endif
