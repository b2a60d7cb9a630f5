/* SPDX-License-Identifier: BSD-3-Clause */
#include "driver.hpp"

#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "report.hpp"

namespace pier_nixl
{

/* While applications poll, the driver looks at their ends this often. */
static const int rest_ms = 1;
/* Completions that arrive while the driver arms; then it looks again later. */
static const int arm_attempts = 4;

bool driven::arm_events()
{
	int collected = 0;

	for (const channel_end &end : ends) {
		int count = pier_channel_arm(end.channel);

		if (count < 0) {
			report_failure("cannot ask a channel for events");
			hang_up();
			return false;
		}
		collected += count;
	}
	return collected > 0;
}

void driven::close_now()
{
	std::lock_guard<std::mutex> guard(lock);

	if (!over)
		hang_up();
}

void driven::end_channels()
{
	for (const channel_end &end : ends)
		pier_channel_destroy(end.channel);
	ends.clear();
	over = true;
	if (socket.fd >= 0)
		shutdown(socket.fd, SHUT_RDWR);
}

driver::~driver()
{
	stop_thread();
}

int driver::start_thread()
{
	struct epoll_event event = {};

	epoll = owned_fd(epoll_create1(EPOLL_CLOEXEC));
	wake = owned_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (epoll.fd < 0 || wake.fd < 0)
		return -errno;
	event.events = EPOLLIN;
	if (epoll_ctl(epoll.fd, EPOLL_CTL_ADD, wake.fd, &event))
		return -errno;
	thread = std::thread(&driver::run_loop, this);
	return 0;
}

void driver::stop_thread()
{
	if (!thread.joinable())
		return;
	stopping = true;
	eventfd_write(wake.fd, 1);
	thread.join();
	ends.clear();
	resting.clear();
}

/*
 * The number of the end, and in the lowest bit whether the fd is its socket. Numbers are
 * not reused, so that an event that was already taken cannot reach another end. Fds of
 * channels are edge-triggered: they stay readable until they are armed again.
 */
int driver::add_end(const std::shared_ptr<driven> &end)
{
	std::lock_guard<std::mutex> guard(lock);
	uint64_t id = ++last_id;
	struct epoll_event event = {};
	int error = 0;

	event.events = EPOLLIN | EPOLLET;
	event.data.u64 = id << 1;
	for (const channel_end &one : end->ends)
		if (!error && epoll_ctl(epoll.fd, EPOLL_CTL_ADD,
					pier_channel_fd(one.channel), &event))
			error = -errno;
	/* The socket is writable now: the first event makes the thread look at the end.
	 */
	event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
	event.data.u64 = id << 1 | 1;
	if (!error && epoll_ctl(epoll.fd, EPOLL_CTL_ADD, end->socket.fd, &event))
		error = -errno;
	if (error)
		report_line("a connection cannot be watched: %s", strerror(-error));
	else
		ends[id] = { end, end->polls - 1 };
	return error;
}

/* Whether the peer has closed its end. It sends nothing after the handshakes. */
static bool has_hung_up(int socket)
{
	char byte;
	ssize_t count = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return count >= 0 || (errno != EAGAIN && errno != EINTR);
}

void driver::visit_end(uint64_t id, bool at_socket)
{
	std::shared_ptr<driven> end;
	bool is_polled;

	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = ends.find(id);

		if (found == ends.end())
			return;
		end = found->second.end;
		is_polled = found->second.polls_seen != end->polls;
		found->second.polls_seen = end->polls;
	}
	std::unique_lock<std::mutex> guard(end->lock);

	if (!end->over && at_socket && has_hung_up(end->socket.fd))
		end->hang_up();
	if (!end->over)
		end->make_progress();
	for (int i = 0; !end->over && !is_polled; i++) {
		is_polled = i == arm_attempts;
		if (is_polled || !end->arm_events())
			break;
		end->make_progress();
	}
	if (end->over) {
		guard.unlock();
		resting.erase(id);
		std::lock_guard<std::mutex> all(lock);
		ends.erase(id);
	} else if (is_polled) {
		resting.insert(id);
	} else {
		resting.erase(id);
	}
}

void driver::visit_resting()
{
	const std::set<uint64_t> visited = resting;

	for (uint64_t id : visited)
		visit_end(id, false);
}

void driver::run_loop()
{
	struct epoll_event events[16];
	int count;

	while (!stopping) {
		count = epoll_wait(epoll.fd, events, 16, resting.empty() ? -1 : rest_ms);
		for (int i = 0; i < count; i++)
			if (events[i].data.u64)
				visit_end(events[i].data.u64 >> 1,
					  events[i].data.u64 & 1);
		visit_resting();
	}
}

} // namespace pier_nixl
