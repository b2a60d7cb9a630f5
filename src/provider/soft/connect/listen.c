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
#include "meeting.h"
#include "node.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/socket.h"

/* "::" or "0.0.0.0": valid for listening, but not for calling. */
static bool is_any(const struct in6_addr *address)
{
	return IN6_IS_ADDR_UNSPECIFIED(address) ||
	       (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr32[3] == 0);
}

/* A link-local address is of no use on another host. */
static bool address_of(const struct ifaddrs *interface, struct in6_addr *ret_address)
{
	if (!interface->ifa_addr || (interface->ifa_flags & IFF_LOOPBACK) ||
	    !(interface->ifa_flags & IFF_UP))
		return false;
	if (interface->ifa_addr->sa_family == AF_INET) {
		struct sockaddr_in v4;

		memcpy(&v4, interface->ifa_addr, sizeof(v4));
		pier_soft_map_v4(v4.sin_addr, ret_address);
		return true;
	}
	if (interface->ifa_addr->sa_family == AF_INET6) {
		struct sockaddr_in6 v6;

		memcpy(&v6, interface->ifa_addr, sizeof(v6));
		*ret_address = v6.sin6_addr;
		return !IN6_IS_ADDR_LINKLOCAL(ret_address);
	}
	return false;
}

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
		if (address_of(one, ret_address) &&
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

static int bind_tcp(struct in6_addr address)
{
	struct sockaddr_in6 name = { .sin6_family = AF_INET6, .sin6_addr = address };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int off = 0;

	if (fd < 0)
		return -1;
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	if (bind(fd, (struct sockaddr *)&name, sizeof(name)) == 0 &&
	    listen(fd, SOMAXCONN) == 0)
		return fd;
	return pier_close_fd(fd);
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
	if (bind(fd, (struct sockaddr *)&name, sizeof(name)) == 0 &&
	    listen(fd, SOMAXCONN) == 0)
		return fd;
	return pier_close_fd(fd);
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

/* The IPv4 fallback is for kernels without IPv6. No IPv6 address may become 0.0.0.0. */
static bool may_be_v4(const struct in6_addr *address)
{
	return IN6_IS_ADDR_V4MAPPED(address) || IN6_IS_ADDR_UNSPECIFIED(address);
}

static int listen_tcp(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;
	struct in6_addr address;
	int error = choose_addresses(listeners, &address);

	if (error || !listeners->tcp)
		return error;
	listeners->tcp_fd = bind_tcp(address);
	if (listeners->tcp_fd < 0 && may_be_v4(&address))
		listeners->tcp_fd = bind_tcp4(address);
	if (listeners->tcp_fd < 0)
		return pier_fail(errno, "soft0: cannot listen on PIER_SOFT_ADDRESS=%s",
				 secure_getenv("PIER_SOFT_ADDRESS"));
	listeners->port = bound_port(listeners->tcp_fd);
	return 0;
}

static int watch_listeners(struct soft_node *node)
{
	struct soft_listeners *listeners = &node->listeners;
	int error = 0;

	if (listeners->unix_fd >= 0)
		error = pier_soft_watch(node->engine, listeners->unix_fd, EPOLLIN,
					SOFT_EVENT_LISTENER, 0);
	if (!error && listeners->tcp_fd >= 0)
		error = pier_soft_watch(node->engine, listeners->tcp_fd, EPOLLIN,
					SOFT_EVENT_LISTENER, 0);
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
		close_socket(node, listeners->pending[i].fd);
		pier_soft_close_foreign(listeners->pending[i].shared_fd);
	}
	remove_socket(node);
	close_datagrams(node);
	close_socket(node, listeners->unix_fd);
	close_socket(node, listeners->tcp_fd);
	listeners->unix_fd = listeners->tcp_fd = -1;
}

/* A listener that is not served stays readable: stop watching it for a while. */
void pier_soft_pause_listeners(struct soft_node *node, uint64_t nanoseconds)
{
	struct soft_listeners *listeners = &node->listeners;

	if (listeners->unix_fd >= 0)
		pier_soft_unwatch(node->engine, listeners->unix_fd);
	if (listeners->tcp_fd >= 0)
		pier_soft_unwatch(node->engine, listeners->tcp_fd);
	listeners->paused_until = pier_soft_now() + nanoseconds;
	pier_soft_arm_timer(node->engine, listeners->paused_until);
}

void pier_soft_resume_listeners(struct soft_node *node)
{
	node->listeners.paused_until = 0;
	watch_listeners(node);
}
