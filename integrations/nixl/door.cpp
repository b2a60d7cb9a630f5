/* SPDX-License-Identifier: BSD-3-Clause */
#include "door.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "report.hpp"

namespace pier_nixl
{

static const size_t callers_max = 64, greetings_max = 64;
/*
 * To send the hello. After that, the oldest caller makes place for another one after this
 * time.
 */
static const auto caller_time = std::chrono::seconds(5);
/* To begin the handshakes after the hello was accepted. */
static const auto begin_time = std::chrono::seconds(10);
/* Before that, none leaves for another whose hello may be on its way. */
static const auto patience = std::chrono::milliseconds(250);
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
	meetings.clear();
	added.clear();
	callers.clear();
}

/* The oldest has had the most time; callers without the token leave first. */
std::vector<door::caller>::iterator door::first_to_leave()
{
	auto leaves = std::find_if(callers.begin(), callers.end(),
				   [](const caller &one) { return !one.is_accepted; });

	return leaves == callers.end() ? callers.begin() : leaves;
}

/* Milliseconds until a caller can be accepted. Until then it waits in the queue. */
int door::ms_to_room()
{
	if (callers.size() < callers_max)
		return 0;
	auto leaves = first_to_leave();

	return left_ms(leaves->start + (leaves->is_accepted ? caller_time : patience));
}

void door::accept_from(int listener, bool is_unix)
{
	owned_fd made(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));

	/* The caller stays in the queue while there is no fd for it. */
	if (made.fd < 0 && (errno == EMFILE || errno == ENFILE))
		poll(nullptr, 0, sweep_ms);
	if (made.fd < 0 || (is_unix && !is_same_user(made.fd)))
		return;
	if (!is_unix)
		set_up_tcp(made.fd);
	if (callers.size() == callers_max)
		callers.erase(first_to_leave());
	time_point now = clock_now();

	callers.push_back({ std::move(made),
			    std::string(),
			    PIER_NIXL_HELLO_HEAD,
			    now,
			    now + caller_time,
			    false,
			    {} });
}

/* Returns false if nothing more is expected from the caller. */
bool door::serve(caller &from)
{
	char bytes[PIER_NIXL_HELLO_HEAD + PIER_NIXL_HELLO_MAX];
	size_t wanted;
	ssize_t count;

	while (from.is_accepted || from.bytes.size() < from.wanted) {
		wanted = from.is_accepted ? 1 : from.wanted - from.bytes.size();
		count = recv(from.socket.fd, bytes, wanted,
			     MSG_DONTWAIT | (from.is_accepted ? MSG_PEEK : 0));
		if (count <= 0)
			return count < 0 && (errno == EAGAIN || errno == EINTR) &&
			       clock_now() < from.end;
		if (from.is_accepted) {
			if (!has_place())
				return true;
			greet(from);
			return false;
		}
		from.bytes.append(bytes, (size_t)count);
		if (from.bytes.size() != PIER_NIXL_HELLO_HEAD)
			continue;
		from.wanted += check_hello_head((const uint8_t *)from.bytes.data(),
						token);
		if (from.wanted == PIER_NIXL_HELLO_HEAD)
			return false;
	}
	return accept_hello(from);
}

bool door::accept_hello(caller &from)
{
	const char accepted = PIER_NIXL_HELLO_ACCEPTED;

	from.end = clock_now() + begin_time;
	from.is_accepted = true;
	return read_hello_body(from.bytes.substr(PIER_NIXL_HELLO_HEAD), from.hello) &&
	       send(from.socket.fd, &accepted, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

void door::greet(caller &from)
{
	auto with = greet_caller(std::move(from.socket), from.hello);

	if (with && with->step())
		meetings.push_back({ std::move(with), true, clock_now(), polled.size() });
}

void door::add(std::unique_ptr<meeting> call)
{
	std::lock_guard<std::mutex> guard(lock);

	added.push_back(std::move(call));
	eventfd_write(wake.fd, 1);
}

void door::take_added()
{
	std::vector<std::unique_ptr<meeting>> taken;
	eventfd_t count;

	eventfd_read(wake.fd, &count);
	{
		std::lock_guard<std::mutex> guard(lock);

		taken.swap(added);
	}
	for (std::unique_ptr<meeting> &one : taken)
		if (one->step())
			meetings.push_back(
				{ std::move(one), false, clock_now(), polled.size() });
}

/* Channels are limited in number. */
bool door::has_place() const
{
	return std::ranges::count(meetings, true, &entry::is_caller) <
	       (ptrdiff_t)greetings_max;
}

/* If a caller wants to begin its handshakes, the oldest leaves, which had the most time. */
void door::make_place()
{
	bool is_wanted = std::ranges::any_of(callers, &caller::is_accepted);
	auto oldest = std::ranges::find(meetings, true, &entry::is_caller);

	if (!is_wanted || has_place() || clock_now() - oldest->start < caller_time)
		return;
	oldest->with->leave();
	meetings.erase(oldest);
}

void door::poll_all()
{
	int wait_ms = ms_to_room();

	make_place();
	polled = { { wake.fd, POLLIN, 0 },
		   { wait_ms ? -1 : unix_socket.fd, POLLIN, 0 },
		   { wait_ms ? -1 : tcp_socket.fd, POLLIN, 0 } };
	if (!wait_ms)
		wait_ms = callers.empty() ? -1 : sweep_ms;
	for (const caller &one : callers)
		polled.push_back(
			{ one.is_accepted && !has_place() ? -1 : one.socket.fd, POLLIN,
			  0 });
	for (entry &one : meetings) {
		int left = left_ms(one.with->due());

		one.fds_from = polled.size();
		one.with->add_fds(polled);
		wait_ms = wait_ms < 0 ? left : std::min(left, wait_ms);
	}
	poll(polled.data(), polled.size(), wait_ms);
}

/* Those whose fds are ready, or which are due. */
void door::step_all()
{
	size_t end = polled.size();

	for (auto next = meetings.end(); next != meetings.begin();) {
		auto one = std::prev(next);
		bool is_ready = left_ms(one->with->due()) == 0;

		for (size_t i = one->fds_from; i < end; i++)
			is_ready |= polled[i].revents != 0;
		end = std::min(end, one->fds_from);
		if (is_ready && !one->with->step())
			next = meetings.erase(one);
		else
			next = one;
	}
}

void door::run_loop()
{
	while (!stopping) {
		poll_all();
		step_all();
		take_added();
		for (size_t i = callers.size(); i-- > 0;)
			if (!serve(callers[i]))
				callers.erase(callers.begin() + (ptrdiff_t)i);
		if (polled[1].revents && !ms_to_room())
			accept_from(unix_socket.fd, true);
		if (polled[2].revents && !ms_to_room())
			accept_from(tcp_socket.fd, false);
	}
}

} // namespace pier_nixl
