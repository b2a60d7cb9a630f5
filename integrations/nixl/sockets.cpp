/* SPDX-License-Identifier: BSD-3-Clause */
#include "sockets.hpp"

#include <arpa/inet.h>
#include <cerrno>
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

#include "clock.hpp"

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

/* The addresses of a family; AF_UNSPEC: of all. */
static std::vector<std::string> list_hosts(int family)
{
	std::vector<std::string> hosts;
	struct ifaddrs *list = nullptr;

	if (getifaddrs(&list))
		return hosts;
	for (struct ifaddrs *one = list; one; one = one->ifa_next)
		if (is_for_peers(one) &&
		    (family == AF_UNSPEC || family == one->ifa_addr->sa_family))
			hosts.push_back(text_of(one->ifa_addr));
	freeifaddrs(list);
	return hosts;
}

/* Peers cannot call the address 0.0.0.0 or ::, which stand for all of this host. */
static std::vector<std::string> list_hosts_of(const struct sockaddr *address)
{
	const auto *four = (const struct sockaddr_in *)address;
	const auto *six = (const struct sockaddr_in6 *)address;

	if (address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr))
		return list_hosts(AF_UNSPEC);
	if (address->sa_family == AF_INET && four->sin_addr.s_addr == INADDR_ANY)
		return list_hosts(AF_INET);
	return { text_of(address) };
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
		ret_hosts = list_hosts(AF_UNSPEC);
	} else {
		error = resolve_numeric(where, AI_PASSIVE, &list);
		if (error)
			return error;
		error = listen_at(list->ai_family, list->ai_addr, list->ai_addrlen,
				  ret_socket);
		ret_hosts = list_hosts_of(list->ai_addr);
		freeaddrinfo(list);
	}
	if (!error)
		ret_port = port_of(ret_socket.fd);
	return error;
}

std::string name_peer(int socket)
{
	struct sockaddr_storage address = {};
	socklen_t length = sizeof(address);

	getpeername(socket, (struct sockaddr *)&address, &length);
	return address.ss_family == AF_UNIX ? "a Unix socket"
					    : text_of((struct sockaddr *)&address);
}

bool is_same_user(int socket)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
	       (peer.uid == geteuid() || peer.uid == 0);
}

/* Begin to connect. Returns 0 also while the connection is being made. */
static int begin_connect(int family, const struct sockaddr *address, socklen_t length,
			 owned_fd &ret_socket)
{
	owned_fd made(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (made.fd < 0)
		return -errno;
	if (connect(made.fd, address, length) && errno != EINPROGRESS)
		return -errno;
	ret_socket = std::move(made);
	return 0;
}

/*
 * It is connected at once, or not at all: unix(7). After the agent's end, any process can
 * take its name, and must not get the token.
 */
int dial_unix(const std::string &name, owned_fd &ret_socket)
{
	struct sockaddr_un address;
	socklen_t length = unix_address(name, address);
	owned_fd made;
	int error = begin_connect(AF_UNIX, (struct sockaddr *)&address, length, made);

	if (!error && !is_same_user(made.fd))
		error = -ECONNREFUSED;
	if (!error)
		ret_socket = std::move(made);
	return error;
}

void set_up_tcp(int socket)
{
	int on = 1, idle_s = 30, interval_s = 10, probes = 3, silent_ms = 60000;

	setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	/* No probes are sent while something is not acknowledged. */
	setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
}

/* A socket on the way to an agent. */
struct candidate {
	owned_fd socket;
	std::string where;
	enum progress {
		CONNECTING,
		CONNECTED,
		INTRODUCED /* the hello was written */
	} state;
};

static short events_of(const candidate &one)
{
	if (one.state == candidate::CONNECTING)
		return POLLOUT;
	return one.state == candidate::INTRODUCED ? POLLIN : 0;
}

static int begin_dial(const std::string &host, uint16_t port,
		      std::vector<candidate> &candidates, std::string &ret_where)
{
	std::string where = "[" + host + "]:" + std::to_string(port);
	struct addrinfo *list;
	owned_fd made;
	int error;

	ret_where += (ret_where.empty() ? "" : ", ") + where;
	error = resolve_numeric(where, 0, &list);
	if (error)
		return error;
	error = begin_connect(list->ai_family, list->ai_addr, list->ai_addrlen, made);
	freeaddrinfo(list);
	if (!error) {
		set_up_tcp(made.fd);
		candidates.push_back(
			{ std::move(made), where, candidate::CONNECTING });
	}
	return error;
}

/* Returns 1 if the agent accepted the hello, 0, or the error of the candidate. */
static int advance(candidate &one)
{
	socklen_t size = sizeof(int);
	int error = 0;
	ssize_t count;
	char byte;

	if (one.state == candidate::CONNECTING) {
		getsockopt(one.socket.fd, SOL_SOCKET, SO_ERROR, &error, &size);
		one.state = candidate::CONNECTED;
		return -error;
	}
	count = recv(one.socket.fd, &byte, 1, MSG_DONTWAIT);
	if (count < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	return count == 1 && byte == PIER_NIXL_HELLO_ACCEPTED ? 1 : -ECONNREFUSED;
}

/* Returns whether a candidate was accepted, which is then the first. */
static bool advance_all(std::vector<candidate> &candidates,
			const std::vector<struct pollfd> &polled, int &ret_error)
{
	for (size_t i = candidates.size(); i-- > 0;) {
		int result = polled[i].revents ? advance(candidates[i]) : 0;

		if (result == 1) {
			std::swap(candidates[0], candidates[i]);
			return true;
		}
		if (result == 0)
			continue;
		ret_error = result;
		candidates.erase(candidates.begin() + (ptrdiff_t)i);
	}
	return false;
}

static candidate *find_in_state(std::vector<candidate> &candidates,
				candidate::progress state)
{
	for (candidate &one : candidates)
		if (one.state == state)
			return &one;
	return nullptr;
}

/*
 * Only one address is told the hello at a time, unless there is no answer from it: an
 * address that several hosts have can lead to another agent. Each socket is looked at
 * once more when the time is over, because this process may have been stopped.
 */
static int dial_candidates(std::vector<candidate> &candidates, const std::string &hello,
			   int timeout_ms, int error)
{
	auto start = clock_now(), asked = start;
	auto end = start + std::chrono::milliseconds(timeout_ms);
	std::vector<struct pollfd> polled;

	while (!candidates.empty()) {
		candidate *connected = find_in_state(candidates, candidate::CONNECTED);
		candidate *introduced = find_in_state(candidates, candidate::INTRODUCED);

		if (connected && (!introduced || left_ms(asked) == 0)) {
			connected->state = candidate::INTRODUCED;
			/* An error shows when the answer is read. */
			write_all(connected->socket.fd, hello.data(), hello.size(),
				  dial_ms);
			asked = clock_now() + std::chrono::milliseconds(dial_ms);
			continue;
		}
		auto until = introduced ? end
					: start + std::chrono::milliseconds(dial_ms);

		polled.clear();
		for (const candidate &one : candidates)
			polled.push_back({ one.socket.fd, events_of(one), 0 });
		if (poll(polled.data(), polled.size(),
			 left_ms(connected ? std::min(asked, until) : until)) == 0 &&
		    left_ms(until) == 0)
			return -ETIMEDOUT;
		if (advance_all(candidates, polled, error))
			return 0;
	}
	return error;
}

int dial_agent(const agent_address &address, const std::string &hello, int timeout_ms,
	       owned_fd &ret_socket, std::string &ret_where)
{
	std::vector<candidate> candidates(1);
	int error = dial_unix(address.unix_name, candidates[0].socket);

	ret_where.clear();
	if (error) {
		candidates.clear();
		for (const std::string &host : address.hosts) {
			int failed = begin_dial(host, address.port, candidates, ret_where);

			error = failed ? failed : error;
		}
	} else {
		candidates[0].where = "its Unix socket";
		candidates[0].state = candidate::CONNECTED;
	}
	if (ret_where.empty())
		ret_where = "its Unix socket";
	error = dial_candidates(candidates, hello, timeout_ms, error);
	if (!error) {
		ret_where = candidates[0].where;
		ret_socket = std::move(candidates[0].socket);
	}
	return error;
}

int write_all(int socket, const void *bytes, size_t size, int timeout_ms)
{
	auto end = clock_now() + std::chrono::milliseconds(timeout_ms);
	struct pollfd wait = { socket, POLLOUT, 0 };
	const char *next = (const char *)bytes;

	while (size > 0) {
		ssize_t count = send(socket, next, size, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (count > 0) {
			next += count;
			size -= (size_t)count;
		} else if (errno != EAGAIN && errno != EINTR) {
			return -errno;
		} else if (poll(&wait, 1, left_ms(end)) == 0) {
			return -ETIMEDOUT;
		}
	}
	return 0;
}

} // namespace pier_nixl
