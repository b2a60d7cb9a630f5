/* SPDX-License-Identifier: BSD-3-Clause */
#include "driver.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.hpp"
#include "clock.hpp"
#include "report.hpp"

namespace pier_nixl
{

/* While applications poll, the driver looks at their ends this often. */
static const int rest_ms = 1;
/* So much later than its deadline an end is looked at. */
static const auto deadline_time = std::chrono::milliseconds(100);
/* Completions that arrive while the driver arms; then it looks again later. */
static const int arm_attempts = 4;

bool driven::arm_events()
{
	int collected = 0;

	for (size_t i = 0; i < ends.size(); i++) {
		int count = ends[i].channel ? pier_channel_arm(ends[i].channel) : 0;

		/* Other rails may have got requests of this one. */
		if (count < 0) {
			lose_rail(i, count);
			count = 1;
		}
		collected += count;
	}
	return collected > 0;
}

bool driven::has_channels() const
{
	return std::ranges::any_of(
		ends, [](const channel_end &one) { return one.channel != nullptr; });
}

/*
 * A peer that does not read has a deadline elsewhere, so a record that the socket has no
 * room for is lost.
 */
void driven::end_rail(size_t index, uint64_t messages)
{
	byte_writer writer;

	pier_channel_destroy(ends[index].channel);
	ends[index].channel = nullptr;
	writer.put_number(index, 4);
	writer.put_number(messages, 8);
	send(socket.fd, writer.out.data(), writer.out.size(),
	     MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool driven::read_socket()
{
	ssize_t count = 1;

	while (!over && count > 0) {
		count = recv(socket.fd, record + record_length,
			     record_size - record_length, MSG_DONTWAIT);
		if (count > 0)
			record_length += (size_t)count;
		if (record_length < record_size)
			continue;

		byte_reader reader(record, record_size);
		size_t index = reader.number(4);
		uint64_t messages = reader.number(8);

		record_length = 0;
		/* Endless records would keep the thread here. */
		if (index >= ends.size() || recorded >> index & 1)
			return false;
		recorded |= UINT64_C(1) << index;
		if (ends[index].channel)
			lose_rail(index, -ECONNRESET);
		if (!over)
			settle_rail(index, messages);
	}
	return over || (count < 0 && (errno == EAGAIN || errno == EINTR));
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
	timed.clear();
}

static const uint32_t socket_events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

/* The socket is writable, which is an event as soon as it is asked for again. */
void driver::look_at(driven &end)
{
	struct epoll_event event = {};

	event.events = socket_events;
	event.data.u64 = end.id << 1 | 1;
	end.is_timed = !epoll_ctl(epoll.fd, EPOLL_CTL_MOD, end.socket.fd, &event);
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
		if (!error && one.channel &&
		    epoll_ctl(epoll.fd, EPOLL_CTL_ADD, pier_channel_fd(one.channel),
			      &event))
			error = -errno;
	/* The socket is writable now: the first event makes the thread look at the end.
	 */
	event.events = socket_events;
	event.data.u64 = id << 1 | 1;
	if (!error && epoll_ctl(epoll.fd, EPOLL_CTL_ADD, end->socket.fd, &event))
		error = -errno;
	if (error)
		report_line("a connection cannot be watched: %s", strerror(-error));
	else
		ends[id] = { end, end->polls - 1 };
	end->id = id;
	return error;
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

	if (!end->over && at_socket && !end->read_socket())
		end->hang_up();
	if (!end->over)
		end->make_progress();
	for (int i = 0; !end->over && !is_polled; i++) {
		is_polled = i == arm_attempts;
		if (is_polled || !end->arm_events())
			break;
		if (!end->over)
			end->make_progress();
	}
	resting.erase(id);
	timed.erase(id);
	end->is_timed = is_polled || end->has_deadline();
	if (end->over) {
		guard.unlock();
		std::lock_guard<std::mutex> all(lock);
		ends.erase(id);
	} else if (is_polled) {
		resting.insert(id);
	} else if (end->is_timed) {
		timed.insert(id);
	}
}

void driver::visit_set(std::set<uint64_t> visited)
{
	for (uint64_t id : visited)
		visit_end(id, false);
}

void driver::run_loop()
{
	struct epoll_event events[16];
	time_point looked_at;
	int count;

	while (!stopping) {
		count = epoll_wait(epoll.fd, events, 16,
				   !resting.empty() ? rest_ms
				   : timed.empty()  ? -1
						    : (int)deadline_time.count());
		for (int i = 0; i < count; i++)
			if (events[i].data.u64)
				visit_end(events[i].data.u64 >> 1,
					  events[i].data.u64 & 1);
		visit_set(resting);
		if (timed.empty() || clock_now() - looked_at < deadline_time)
			continue;
		looked_at = clock_now();
		visit_set(timed);
	}
}

} // namespace pier_nixl
