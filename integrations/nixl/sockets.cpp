/* SPDX-License-Identifier: BSD-3-Clause */
#include "sockets.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace pier_nixl
{

static const int dial_ms = 2000;

owned_fd::~owned_fd()
{
	if (fd >= 0)
		close(fd);
}

static socklen_t unix_address(const std::string &name, struct sockaddr_un &ret_address)
{
	size_t length = std::min(name.size(), sizeof(ret_address.sun_path) - 1);

	memset(&ret_address, 0, sizeof(ret_address));
	ret_address.sun_family = AF_UNIX;
	memcpy(ret_address.sun_path + 1, name.data(), length);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int listen_at(int family, const struct sockaddr *address, socklen_t length,
		     owned_fd &ret_socket)
{
	owned_fd made(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	int on = 1;

	if (made.fd < 0)
		return -errno;
	if (family != AF_UNIX)
		setsockopt(made.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(made.fd, address, length) || listen(made.fd, SOMAXCONN))
		return -errno;
	ret_socket = std::move(made);
	return 0;
}

int listen_unix(owned_fd &ret_socket, std::string &ret_name)
{
	static const char digits[] = "0123456789abcdef";
	struct sockaddr_un address;
	uint8_t random[16];
	socklen_t length;

	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	ret_name = "pier-nixl-";
	for (uint8_t byte : random) {
		ret_name.push_back(digits[byte >> 4]);
		ret_name.push_back(digits[byte & 15]);
	}
	length = unix_address(ret_name, address);
	return listen_at(AF_UNIX, (struct sockaddr *)&address, length, ret_socket);
}

/* "IP", "IP:PORT" or "[IP]:PORT". */
static int resolve_numeric(const std::string &where, int flags,
			   struct addrinfo **ret_list)
{
	std::string host = where, port = "0";
	size_t colon = where.rfind(':');
	struct addrinfo hints = {};

	if (!where.empty() && where[0] == '[') {
		size_t end = where.find(']');

		if (end == std::string::npos)
			return -EINVAL;
		host = where.substr(1, end - 1);
		if (end + 1 < where.size())
			port = where.substr(end + 2);
	} else if (colon != std::string::npos && where.find(':') == colon) {
		host = where.substr(0, colon);
		port = where.substr(colon + 1);
	}
	hints.ai_socktype = SOCK_STREAM;
	hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | flags;
	return getaddrinfo(host.c_str(), port.c_str(), &hints, ret_list) ? -EINVAL : 0;
}

static std::string text_of(const struct sockaddr *address)
{
	socklen_t length = address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
							  : sizeof(struct sockaddr_in);
	char host[INET6_ADDRSTRLEN + IF_NAMESIZE] = "";

	getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
	return host;
}

/* Peers cannot use a loopback address, nor the zone of a link-local one. */
static bool is_for_peers(const struct ifaddrs *one)
{
	const struct sockaddr *address = one->ifa_addr;

	if (!address || !(one->ifa_flags & IFF_UP) || one->ifa_flags & IFF_LOOPBACK)
		return false;
	if (address->sa_family == AF_INET6)
		return !IN6_IS_ADDR_LINKLOCAL(
			&((const struct sockaddr_in6 *)address)->sin6_addr);
	return address->sa_family == AF_INET;
}

static std::vector<std::string> list_hosts()
{
	std::vector<std::string> hosts;
	struct ifaddrs *list = nullptr;

	if (getifaddrs(&list))
		return hosts;
	for (struct ifaddrs *one = list; one; one = one->ifa_next)
		if (is_for_peers(one))
			hosts.push_back(text_of(one->ifa_addr));
	freeifaddrs(list);
	return hosts;
}

static uint16_t port_of(int socket)
{
	struct sockaddr_storage address = {};
	socklen_t length = sizeof(address);

	getsockname(socket, (struct sockaddr *)&address, &length);
	return ntohs(address.ss_family == AF_INET6
			     ? ((struct sockaddr_in6 *)&address)->sin6_port
			     : ((struct sockaddr_in *)&address)->sin_port);
}

static int listen_everywhere(owned_fd &ret_socket)
{
	struct sockaddr_in6 six = {};
	struct sockaddr_in four = {};

	six.sin6_family = AF_INET6;
	if (!listen_at(AF_INET6, (struct sockaddr *)&six, sizeof(six), ret_socket))
		return 0;
	/* A kernel without IPv6. */
	four.sin_family = AF_INET;
	return listen_at(AF_INET, (struct sockaddr *)&four, sizeof(four), ret_socket);
}

int listen_tcp(const std::string &where, owned_fd &ret_socket,
	       std::vector<std::string> &ret_hosts, uint16_t &ret_port)
{
	struct addrinfo *list;
	int error;

	if (where.empty()) {
		error = listen_everywhere(ret_socket);
		ret_hosts = list_hosts();
	} else {
		error = resolve_numeric(where, AI_PASSIVE, &list);
		if (error)
			return error;
		error = listen_at(list->ai_family, list->ai_addr, list->ai_addrlen,
				  ret_socket);
		ret_hosts = { text_of(list->ai_addr) };
		freeaddrinfo(list);
	}
	if (!error)
		ret_port = port_of(ret_socket.fd);
	return error;
}

static int left_ms(std::chrono::steady_clock::time_point end)
{
	auto left = end - std::chrono::steady_clock::now();
	auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();

	return ms > 0 ? (int)ms + 1 : 0;
}

static int await_socket(int socket, short events,
			std::chrono::steady_clock::time_point end)
{
	struct pollfd wait = { socket, events, 0 };
	int count = poll(&wait, 1, left_ms(end));

	if (count < 0 && errno != EINTR)
		return -errno;
	return count == 0 ? -ETIMEDOUT : 0;
}

static int connect_socket(int family, const struct sockaddr *address, socklen_t length,
			  owned_fd &ret_socket)
{
	auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(dial_ms);
	owned_fd made(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	socklen_t size = sizeof(int);
	int error = 0;

	if (made.fd < 0)
		return -errno;
	if (connect(made.fd, address, length)) {
		if (errno != EINPROGRESS && errno != EAGAIN)
			return -errno;
		error = await_socket(made.fd, POLLOUT, end);
		if (error)
			return error;
		getsockopt(made.fd, SOL_SOCKET, SO_ERROR, &error, &size);
		if (error)
			return -error;
	}
	ret_socket = std::move(made);
	return 0;
}

bool is_same_user(int socket)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
	       (peer.uid == geteuid() || peer.uid == 0);
}

/* After the agent's end, any process can take its name, and must not get the token. */
static int dial_unix(const std::string &name, owned_fd &ret_socket)
{
	struct sockaddr_un address;
	socklen_t length = unix_address(name, address);
	int error = connect_socket(AF_UNIX, (struct sockaddr *)&address, length,
				   ret_socket);

	return !error && !is_same_user(ret_socket.fd) ? -ECONNREFUSED : error;
}

static int dial_tcp(const std::string &host, uint16_t port, owned_fd &ret_socket)
{
	std::string where = "[" + host + "]:" + std::to_string(port);
	struct addrinfo *list;
	int error, on = 1;

	error = resolve_numeric(where, 0, &list);
	if (error)
		return error;
	error = connect_socket(list->ai_family, list->ai_addr, list->ai_addrlen,
			       ret_socket);
	freeaddrinfo(list);
	if (!error) {
		setsockopt(ret_socket.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		/* A host that is gone says nothing. */
		setsockopt(ret_socket.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	}
	return error;
}

int dial_agent(const agent_address &address, owned_fd &ret_socket)
{
	int error = dial_unix(address.unix_name, ret_socket);

	for (size_t i = 0; error && i < address.hosts.size(); i++)
		error = dial_tcp(address.hosts[i], address.port, ret_socket);
	return error;
}

int write_all(int socket, const void *bytes, size_t size, int timeout_ms)
{
	auto end = std::chrono::steady_clock::now() +
		   std::chrono::milliseconds(timeout_ms);
	const char *next = (const char *)bytes;
	ssize_t count;
	int error = 0;

	while (size > 0 && !error) {
		count = send(socket, next, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (count > 0) {
			next += count;
			size -= (size_t)count;
		} else if (errno == EAGAIN || errno == EINTR) {
			error = await_socket(socket, POLLOUT, end);
		} else {
			error = -errno;
		}
	}
	return error;
}

int read_all(int socket, void *ret_bytes, size_t size, int timeout_ms)
{
	auto end = std::chrono::steady_clock::now() +
		   std::chrono::milliseconds(timeout_ms);
	char *next = (char *)ret_bytes;
	ssize_t count;
	int error = 0;

	while (size > 0 && !error) {
		count = recv(socket, next, size, MSG_DONTWAIT);
		if (count > 0) {
			next += count;
			size -= (size_t)count;
		} else if (count == 0) {
			error = -ECONNRESET;
		} else if (errno == EAGAIN || errno == EINTR) {
			error = await_socket(socket, POLLIN, end);
		} else {
			error = -errno;
		}
	}
	return error;
}

} // namespace pier_nixl
