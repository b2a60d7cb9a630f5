/* SPDX-License-Identifier: BSD-3-Clause */
#include "sockets.hpp"

#include <algorithm>
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

/* Between the addresses of an agent: the connection attempt delay of RFC 8305. */
static const auto stagger = std::chrono::milliseconds(250);
/* From the call of the last address until one is connected. */
static const auto reach_time = std::chrono::seconds(2);

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

/* The bytes of an address, and NULL for one of another family. */
static const uint8_t *bytes_of(const struct sockaddr *address, int family)
{
	if (!address || address->sa_family != family)
		return nullptr;
	return family == AF_INET6
		       ? ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr
		       : (const uint8_t *)&((const struct sockaddr_in *)address)->sin_addr;
}

/* Whether the host is in a subnet of this one. */
static bool is_near(const std::string &host, const struct ifaddrs *list)
{
	int family = host.find(':') == std::string::npos ? AF_INET : AF_INET6;
	size_t size = family == AF_INET ? 4 : 16;
	uint8_t there[16];

	if (inet_pton(family, host.c_str(), there) != 1)
		return false;
	for (const struct ifaddrs *one = list; one; one = one->ifa_next) {
		const uint8_t *here = bytes_of(one->ifa_addr, family);
		const uint8_t *mask = bytes_of(one->ifa_netmask, family);
		bool is_same = here && mask;

		for (size_t i = 0; is_same && i < size; i++)
			is_same = (here[i] & mask[i]) == (there[i] & mask[i]);
		if (is_same)
			return true;
	}
	return false;
}

/* Those in a subnet of this host first, otherwise in the order of the agent. */
static void sort_by_subnet(std::vector<std::string> &hosts)
{
	struct ifaddrs *list = nullptr;

	if (getifaddrs(&list))
		return;
	std::stable_partition(
		hosts.begin(), hosts.end(),
		[&](const std::string &one) { return is_near(one, list); });
	freeifaddrs(list);
}

void dialing::begin(const agent_address &peer, const std::string &hello_bytes,
		    int timeout_ms)
{
	owned_fd made;

	hello = hello_bytes;
	port = peer.port;
	end = clock_now() + std::chrono::milliseconds(timeout_ms);
	error = dial_unix(peer.unix_name, made);
	where = "its Unix socket";
	if (!error) {
		candidates.push_back({ std::move(made), where, candidate::CONNECTED, 0 });
	} else if (!peer.hosts.empty()) {
		where.clear();
		hosts = peer.hosts;
		sort_by_subnet(hosts);
		std::reverse(hosts.begin(), hosts.end());
	}
}

/* Returns whether there was an address to call. */
bool dialing::call_next()
{
	struct addrinfo *list;
	std::string name;
	owned_fd made;
	int failed;

	if (hosts.empty() || (!candidates.empty() && clock_now() < next_start))
		return false;
	name = "[" + hosts.back() + "]:" + std::to_string(port);
	hosts.pop_back();
	where += (where.empty() ? "" : ", ") + name;
	next_start = clock_now() + stagger;
	reached_by = clock_now() + reach_time;
	failed = resolve_numeric(name, 0, &list);
	if (!failed) {
		failed = begin_connect(list->ai_family, list->ai_addr, list->ai_addrlen,
				       made);
		freeaddrinfo(list);
	}
	if (failed) {
		error = failed;
		return true;
	}
	set_up_tcp(made.fd);
	candidates.push_back({ std::move(made), name, candidate::CONNECTING, 0 });
	return true;
}

bool dialing::has(candidate::progress state) const
{
	return std::ranges::any_of(
		candidates, [&](const candidate &one) { return one.state == state; });
}

/* Returns whether an address is told the hello now. */
bool dialing::introduce_next()
{
	if (has(candidate::INTRODUCED) && clock_now() < asked_until)
		return false;
	for (candidate &one : candidates)
		if (one.state == candidate::CONNECTED) {
			one.state = candidate::INTRODUCED;
			asked_until = clock_now() + stagger;
			return true;
		}
	return false;
}

/* Returns 1 if the agent accepted the hello, 0, or the error of the candidate. */
int dialing::advance(candidate &one)
{
	struct pollfd wait = { one.socket.fd, POLLOUT, 0 };
	socklen_t size = sizeof(int);
	int failed = 0;
	ssize_t count;
	char byte;

	if (one.state == candidate::CONNECTING && poll(&wait, 1, 0) == 1) {
		getsockopt(one.socket.fd, SOL_SOCKET, SO_ERROR, &failed, &size);
		one.state = candidate::CONNECTED;
		return -failed;
	}
	if (one.state != candidate::INTRODUCED)
		return 0;
	/* An error shows when the answer is read. */
	count = send(one.socket.fd, hello.data() + one.sent, hello.size() - one.sent,
		     MSG_NOSIGNAL | MSG_DONTWAIT);
	one.sent += count > 0 ? (size_t)count : 0;
	count = recv(one.socket.fd, &byte, 1, MSG_DONTWAIT);
	if (count < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	return count == 1 && byte == PIER_NIXL_HELLO_ACCEPTED ? 1 : -ECONNREFUSED;
}

/* Returns whether one was accepted, which is taken. */
bool dialing::advance_all()
{
	for (size_t i = candidates.size(); i-- > 0;) {
		int result = advance(candidates[i]);

		if (result == 1) {
			socket = std::move(candidates[i].socket);
			where = candidates[i].where;
			return true;
		}
		if (result == 0)
			continue;
		error = result;
		candidates.erase(candidates.begin() + (ptrdiff_t)i);
	}
	return false;
}

time_point dialing::limit() const
{
	if (has(candidate::INTRODUCED) || has(candidate::CONNECTED) || !hosts.empty())
		return end;
	return std::min(end, reached_by);
}

/* All is looked at once more after the limit: this process may have been stopped. */
int dialing::step()
{
	bool is_late = left_ms(limit()) == 0, has_moved;

	do {
		if (advance_all())
			return 1;
		has_moved = call_next();
		has_moved |= introduce_next();
		is_late &= !has_moved;
	} while (has_moved);
	if (candidates.empty())
		return error;
	if (is_late)
		return -ETIMEDOUT;
	wake = limit();
	if (!hosts.empty())
		wake = std::min(wake, next_start);
	if (has(candidate::CONNECTED))
		wake = std::min(wake, asked_until);
	return 0;
}

void dialing::add_fds(std::vector<struct pollfd> &polled) const
{
	for (const candidate &one : candidates) {
		bool writes = one.state == candidate::CONNECTING ||
			      (one.state == candidate::INTRODUCED &&
			       one.sent < hello.size());

		polled.push_back(
			{ one.state == candidate::CONNECTED ? -1 : one.socket.fd,
			  (short)(writes ? POLLOUT : POLLIN), 0 });
	}
}

} // namespace pier_nixl
