/* SPDX-License-Identifier: BSD-3-Clause */
#include "door.hpp"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "report.hpp"

namespace pier_nixl
{

static const size_t callers_max = 64;
static const auto caller_time = std::chrono::seconds(2);
/* Callers that run out of time are noticed this late. */
static const int sweep_ms = 500;

door::~door()
{
	stop_thread();
}

int door::open_sockets(const std::string &where, bool has_tcp, agent_address &ret_address)
{
	char random[PIER_NIXL_TOKEN_SIZE];
	int error;

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return -EIO;
	token.assign(random, sizeof(random));
	ret_address.token = token;
	error = listen_unix(unix_socket, ret_address.unix_name);
	if (error) {
		report_line("cannot listen on a Unix socket: %s", strerror(-error));
		return error;
	}
	if (where.empty() && !has_tcp)
		return 0;
	error = listen_tcp(where, tcp_socket, ret_address.hosts, ret_address.port);
	if (error)
		report_line("cannot listen on \"%s\": %s; set address "
			    "(PIER_NIXL_ADDRESS) to IP or IP:PORT of this host",
			    where.c_str(), strerror(-error));
	return error;
}

int door::start_thread(greet_function greet)
{
	greet_caller = std::move(greet);
	wake = owned_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (wake.fd < 0)
		return -errno;
	thread = std::thread(&door::run_loop, this);
	return 0;
}

void door::stop_thread()
{
	if (!thread.joinable())
		return;
	stopping = true;
	eventfd_write(wake.fd, 1);
	thread.join();
}

void door::accept_from(int listener, bool is_unix)
{
	owned_fd made(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));

	/* The caller stays in the queue while there is no fd for it. */
	if (made.fd < 0 && (errno == EMFILE || errno == ENFILE))
		poll(nullptr, 0, sweep_ms);
	if (made.fd < 0 || (is_unix && !is_same_user(made.fd)))
		return;
	/* The oldest has had the most time. */
	if (callers.size() == callers_max)
		callers.erase(callers.begin());
	callers.push_back({ std::move(made), std::string(), PIER_NIXL_HELLO_HEAD,
			    std::chrono::steady_clock::now() + caller_time });
}

/* Returns false if nothing more is expected from the caller. */
bool door::serve(caller &from)
{
	char bytes[PIER_NIXL_HELLO_HEAD + PIER_NIXL_HELLO_MAX];
	agent_hello hello;
	ssize_t count;

	while (from.bytes.size() < from.wanted) {
		count = recv(from.socket.fd, bytes, from.wanted - from.bytes.size(),
			     MSG_DONTWAIT);
		if (count <= 0)
			return count < 0 && (errno == EAGAIN || errno == EINTR) &&
			       std::chrono::steady_clock::now() < from.end;
		from.bytes.append(bytes, (size_t)count);
		if (from.bytes.size() != PIER_NIXL_HELLO_HEAD)
			continue;
		from.wanted += check_hello_head((const uint8_t *)from.bytes.data(),
						token);
		if (from.wanted == PIER_NIXL_HELLO_HEAD)
			return false;
	}
	if (read_hello_body(from.bytes.substr(PIER_NIXL_HELLO_HEAD), hello))
		greet_caller(std::move(from.socket), hello);
	return false;
}

void door::run_loop()
{
	std::vector<struct pollfd> polled;

	while (!stopping) {
		polled = { { wake.fd, POLLIN, 0 },
			   { unix_socket.fd, POLLIN, 0 },
			   { tcp_socket.fd, POLLIN, 0 } };
		for (const caller &one : callers)
			polled.push_back({ one.socket.fd, POLLIN, 0 });
		poll(polled.data(), polled.size(), callers.empty() ? -1 : sweep_ms);
		for (size_t i = callers.size(); i-- > 0;)
			if (!serve(callers[i]))
				callers.erase(callers.begin() + (ptrdiff_t)i);
		if (polled[1].revents)
			accept_from(unix_socket.fd, true);
		if (polled[2].revents)
			accept_from(tcp_socket.fd, false);
	}
}

} // namespace pier_nixl
