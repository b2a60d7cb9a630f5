/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "socket.h"
#include "core/fd.h"

enum {
	STREAM_BUFFER = 2 * 1024 * 1024
};

static void set_option(int fd, int level, int option, int value)
{
	setsockopt(fd, level, option, &value, sizeof(value));
}

/* Not a Unix socket, so its bytes may cross a network. */
static bool is_remote(int fd)
{
	int family = AF_UNSPEC;
	socklen_t size = sizeof(family);

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
	return family != AF_UNIX;
}

void pier_soft_tune_stream(int fd)
{
	if (!is_remote(fd)) {
		set_option(fd, SOL_SOCKET, SO_SNDBUF, STREAM_BUFFER);
		return;
	}
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	/* Detects a host that vanished after about 20 s, also on an idle stream. */
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
	set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
	set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);
}

/* close(2) alone would leave it open in a forked child that has a copy. */
void pier_soft_hang_up(int fd)
{
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR);
	pier_close_fd(fd);
}

bool pier_soft_has_hung_up(int fd)
{
	struct pollfd socket = { .fd = fd, .events = POLLRDHUP };

	return poll(&socket, 1, 0) > 0;
}

/*
 * The process at the other end of a Unix socket. SO_PEERCRED (unix(7)) gives the ids
 * that it had when it connected or listened, translated to the namespaces of this
 * process: a user without an id in our user namespace is 65534, a process without one in
 * our pid namespace is 0.
 */

/* Linux 6.16. The number is that of asm-generic/socket.h. */
#if !defined(SO_PASSRIGHTS) && !defined(__sparc__) && !defined(__hppa__)
#define SO_PASSRIGHTS 83
#endif

/* Linux 6.5, likewise; no kernel has an option -1. */
#if !defined(SO_PEERPIDFD) && !defined(__sparc__) && !defined(__hppa__)
#define SO_PEERPIDFD 77
#elif !defined(SO_PEERPIDFD)
#define SO_PEERPIDFD -1
#endif

static bool get_peer_credentials(int fd, struct ucred *ret_peer)
{
	socklen_t size = sizeof(*ret_peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_peer, &size) == 0;
}

bool pier_soft_must_seal(int fd, uid_t uid)
{
	struct ucred peer;

	return is_remote(fd) || !get_peer_credentials(fd, &peer) || peer.uid != uid;
}

bool pier_soft_may_connect(int fd)
{
	struct ucred peer;

	return get_peer_credentials(fd, &peer) &&
	       (peer.uid == geteuid() || peer.uid == 0 || geteuid() == 0);
}

pid_t pier_soft_peer_pid(int fd)
{
	struct ucred peer;

	return get_peer_credentials(fd, &peer) ? peer.pid : 0;
}

/* readlink(2) on these links, and stat(2) through them, need access to the process. */
static bool is_in_our_namespace(pid_t pid, const char *type)
{
	char ours_path[48], its_path[48];
	struct stat ours, its;

	snprintf(ours_path, sizeof(ours_path), "/proc/self/ns/%s", type);
	snprintf(its_path, sizeof(its_path), "/proc/%d/ns/%s", (int)pid, type);
	return stat(ours_path, &ours) == 0 && stat(its_path, &its) == 0 &&
	       ours.st_dev == its.st_dev && ours.st_ino == its.st_ino;
}

static bool has_our_ids(const struct ucred *peer)
{
	uid_t uid, euid, suid;
	gid_t gid, egid, sgid;

	return getresuid(&uid, &euid, &suid) == 0 && getresgid(&gid, &egid, &sgid) == 0 &&
	       peer->uid == uid && peer->uid == euid && peer->uid == suid &&
	       peer->gid == gid && peer->gid == egid && peer->gid == sgid;
}

static bool has_our_capabilities(pid_t pid)
{
	struct __user_cap_header_struct header = { .version =
							   _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct ours[_LINUX_CAPABILITY_U32S_3];
	struct __user_cap_data_struct its[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &header, ours) < 0)
		return false;
	header.pid = pid;
	if (syscall(SYS_capget, &header, its) < 0)
		return false;
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
		if (ours[i].permitted & ~its[i].effective)
			return false;
	}
	return true;
}

/* The checks of __ptrace_may_access(), by which the kernel opens /proc/PID/fd/N. */
static bool may_open_our_fds(const struct ucred *peer)
{
	if (peer->pid == getpid())
		return true;
	return peer->pid > 0 && has_our_ids(peer) && prctl(PR_GET_DUMPABLE) == 1 &&
	       is_in_our_namespace(peer->pid, "user") &&
	       is_in_our_namespace(peer->pid, "pid") && has_our_capabilities(peer->pid);
}

/* A pidfd becomes readable when the process exits: pidfd_open(2). */
static bool is_process_running(int pidfd)
{
	struct pollfd waited = { .fd = pidfd, .events = POLLIN };

	return poll(&waited, 1, 0) == 0;
}

/*
 * The checks use the pid, which another process may have by now. If the process that
 * connected is still running after them, they were about that process. Before Linux 6.5
 * there is no SO_PEERPIDFD: a process of our ids may exit and leave its connection to a
 * child; if a process that passes the checks then takes its pid, that child gets fds.
 *
 * Security modules such as Yama and Landlock are not asked.
 */
bool pier_soft_may_have_fds(int fd)
{
	pier_auto_fd pidfd = -1;
	socklen_t size = sizeof(pidfd);
	struct ucred peer;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) < 0 &&
	    errno != ENOPROTOOPT)
		return false;
	return get_peer_credentials(fd, &peer) && may_open_our_fds(&peer) &&
	       (pidfd < 0 || is_process_running(pidfd));
}

/*
 * An fd that arrives must be closed, which can block as long as the sender likes (see
 * pier_soft_close_foreign()), even if recv(2) discards it.
 */
void pier_soft_accept_fds(int fd, bool accepted)
{
#ifdef SO_PASSRIGHTS
	int value = accepted;

	/* Fails before Linux 6.16. */
	setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value));
#endif
}

/*
 * The last close(2) of a socket with SO_LINGER waits for unsent bytes (socket(7)), so
 * SO_LINGER is switched off first. On other files setsockopt(2) fails with ENOTSOCK and
 * does not ask their file system. Three ways remain to block this process: a sender that
 * sets SO_LINGER again between the two calls; a socket with SO_LINGER that the kernel
 * itself closes because recv(2) had no room for it; and a FUSE file, for which close(2)
 * waits until the server has answered FUSE_FLUSH.
 */
int pier_soft_close_foreign(int fd)
{
	const struct linger off = { 0 };
	int saved = errno;

	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
	errno = saved;
	return pier_close_fd(fd);
}
