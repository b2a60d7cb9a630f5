/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "by_hand.h"
#include "units.h"

typedef int name_end(int fd, struct sockaddr *address, socklen_t *length);

/* getsockname(2) or getpeername(2). An IPv4 address is never written as one of IPv6. */
static void write_address(int fd, name_end *name, struct tcp_address *ret_address,
			  char *ret_port, size_t port_size)
{
	static const char mapped[] = "::ffff:";
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	char *text = ret_address->text;

	text[0] = ret_port[0] = '\0';
	if (name(fd, (struct sockaddr *)&address, &length) < 0 ||
	    getnameinfo((struct sockaddr *)&address, length, text,
			sizeof(ret_address->text), ret_port, (socklen_t)port_size,
			NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		return;
	if (strncmp(text, mapped, strlen(mapped)) == 0 && strchr(text, '.'))
		memmove(text, text + strlen(mapped), strlen(text + strlen(mapped)) + 1);
}

/* A frame is two writes: the second one must not wait until the first is acknowledged. */
static void send_at_once(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int open_listener(const struct addrinfo *at)
{
	int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0), on = 1,
	    off = 0;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (at->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 1) == 0)
		return fd;
	close(fd);
	return -1;
}

/* "PORT", "ADDRESS:PORT" or "[ADDRESS]:PORT". address: "" if there is none. */
static int split_place(const char *where, char *ret_address, size_t size,
		       const char **ret_port, struct failure *failure)
{
	const char *colon = strrchr(where, ':');
	size_t length = colon ? (size_t)(colon - where) : 0;
	uint64_t number;

	*ret_port = colon ? colon + 1 : where;
	if (length > 1 && where[0] == '[' && where[length - 1] == ']') {
		where++;
		length -= 2;
	}
	if (length >= size || parse_number(*ret_port, &number) < 0 || number > UINT16_MAX)
		return fail(failure, EXIT_USAGE,
			    "--listen '%s': not PORT or ADDRESS:PORT, such as 18515",
			    where);
	snprintf(ret_address, size, "%.*s", (int)length, where);
	return 0;
}

static int listen_at(const char *where, struct failure *failure)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
				  .ai_socktype = SOCK_STREAM };
	/* The first one listens for IPv4, too; the second is for kernels without IPv6. */
	const char *every[] = { "::", "0.0.0.0" }, *port;
	char address[256] = "";
	int fd = -1, error = 0;

	if (split_place(where, address, sizeof(address), &port, failure) < 0)
		return -1;
	for (int i = 0; i < 2 && fd < 0; i++) {
		struct addrinfo *found;

		error = getaddrinfo(address[0] ? address : every[i], port, &hints,
				    &found);
		if (error)
			continue;
		fd = open_listener(found);
		freeaddrinfo(found);
	}
	if (fd < 0)
		return fail(failure, EXIT_PEER, "cannot listen at %s: %s", where,
			    error ? gai_strerror(error) : strerror(errno));
	return fd;
}

int accept_client(const char *where, uint32_t timeout_ms, struct tcp_address *ret_own,
		  struct tcp_address *ret_client, struct failure *failure)
{
	struct pollfd pollfd = { .fd = listen_at(where, failure), .events = POLLIN };
	char port[16];
	int client = -1, ready;

	if (pollfd.fd < 0)
		return -1;
	write_address(pollfd.fd, getsockname, ret_own, port, sizeof(port));
	print_error("pier perf: waiting for one client at %s port %s", ret_own->text,
		    port);
	ready = poll(&pollfd, 1, (int)timeout_ms);
	if (ready == 0)
		fail(failure, EXIT_PEER, "no client came within %g s (see --timeout)",
		     timeout_ms / 1e3);
	if (ready > 0)
		client = accept4(pollfd.fd, NULL, NULL, SOCK_CLOEXEC);
	if (client < 0 || dup2(client, STDIN_FILENO) < 0 ||
	    dup2(client, STDOUT_FILENO) < 0) {
		fail(failure, EXIT_PEER, "cannot accept a client: %s", strerror(errno));
	} else {
		send_at_once(client);
		write_address(client, getsockname, ret_own, port, sizeof(port));
		write_address(client, getpeername, ret_client, port, sizeof(port));
	}
	if (client >= 0)
		close(client);
	close(pollfd.fd);
	return failure->status ? -1 : 0;
}

/* connect(2) obeys the time limit for sending. */
static int connect_within(const struct addrinfo *to, uint32_t timeout_ms)
{
	struct timeval limit = { .tv_sec = timeout_ms / 1000,
				 .tv_usec = timeout_ms % 1000 * 1000 };
	struct timeval none = { 0 };
	int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) {
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
		send_at_once(fd);
		return fd;
	}
	if (errno == EINPROGRESS)
		errno = ETIMEDOUT;
	close(fd);
	return -1;
}

int call_server(const char *host, uint32_t port, struct control *control,
		struct tcp_address *ret_peer)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICSERV,
				  .ai_socktype = SOCK_STREAM },
			*found;
	char text[16];
	int error;

	snprintf(text, sizeof(text), "%u", port);
	error = getaddrinfo(host, text, &hints, &found);
	if (error)
		return fail(control->failure, EXIT_PEER, "%s: %s", host,
			    gai_strerror(error));
	for (struct addrinfo *one = found; one && control->in < 0; one = one->ai_next)
		control->in = connect_within(one, control->timeout_ms);
	error = errno;
	freeaddrinfo(found);
	if (control->in >= 0)
		control->out = fcntl(control->in, F_DUPFD_CLOEXEC, 0);
	if (control->in < 0 || control->out < 0)
		return fail(control->failure, EXIT_PEER,
			    "cannot connect to %s port %s: %s; is 'pier perf --listen "
			    "%s' running there?",
			    host, text, strerror(error), text);
	write_address(control->in, getpeername, ret_peer, text, sizeof(text));
	return 0;
}

void hang_up(struct control *control)
{
	if (!control->by_hand || control->out < 0)
		return;
	shutdown(control->out, SHUT_WR);
	control_await_close(control);
}
