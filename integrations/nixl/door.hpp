/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DOOR_HPP
#define PIER_NIXL_DOOR_HPP

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <thread>
#include <vector>

#include "address.hpp"
#include "clock.hpp"
#include "sockets.hpp"

namespace pier_nixl
{

/* A connection that is being made, in steps of the door's thread. */
class meeting
{
      public:
	virtual ~meeting() = default;
	/* Go on without waiting. Returns false when it is connected, or has failed. */
	virtual bool step() = 0;
	/* Append what the next step waits for. */
	virtual void add_fds(std::vector<struct pollfd> &polled) const = 0;
	/* When the next step is due at the latest. */
	virtual time_point due() const = 0;
	/* Fail: another caller needs the place of this one. */
	virtual void leave()
	{
	}
};

/*
 * The sockets on which an agent is called, and a thread that takes the calls and makes
 * all connections. It waits for all peers at once, so none of them holds up others.
 * Callers are limited in number and time; if there are too many, the oldest has to leave.
 *
 * The agent listens on a Unix socket, and on TCP if `where` is not empty or `has_tcp`.
 */
class door
{
      public:
	/*
	 * Called with a caller that has the token, on the door's thread. Owns the socket.
	 * Returns NULL after a line that gives the reason.
	 */
	using greet_function =
		std::function<std::unique_ptr<meeting>(owned_fd &&, const agent_hello &)>;

	door() = default;
	door(const door &) = delete;
	void operator=(const door &) = delete;
	~door();

	/*
	 * Listen, and set the token and the addresses in ret_address. Returns 0, or a
	 * negative errno after a line that gives the reason.
	 */
	int open_sockets(const std::string &where, bool has_tcp,
			 agent_address &ret_address);
	/* Begin to take calls. Returns 0 or a negative errno. */
	int start_thread(greet_function greet);
	/* Give up the connections that are being made. */
	void stop_thread();
	/* Make a connection that this end begins. Any thread may call. */
	void add(std::unique_ptr<meeting> call);

      private:
	struct caller {
		owned_fd socket;
		std::string bytes;
		size_t wanted; /* bytes of the head, or of head and body */
		time_point start, end;
		bool is_accepted; /* its hello; it begins the handshakes next */
		agent_hello hello;
	};

	struct entry {
		std::unique_ptr<meeting> with;
		bool is_caller; /* its handshakes are in progress */
		time_point start;
		size_t fds_from; /* index of its first in what is polled */
	};

	owned_fd unix_socket, tcp_socket, wake;
	std::string token;
	std::vector<caller> callers;
	std::list<entry> meetings; /* the oldest first */
	std::vector<struct pollfd> polled;
	std::thread thread;
	std::atomic<bool> stopping{ false };
	greet_function greet_caller;
	std::mutex lock; /* guards the following */
	std::vector<std::unique_ptr<meeting>> added;

	void run_loop();
	void poll_all();
	void step_all();
	void take_added();
	void accept_from(int socket, bool is_unix);
	std::vector<caller>::iterator first_to_leave();
	int ms_to_room();
	bool serve(caller &from);
	bool accept_hello(caller &from);
	void greet(caller &from);
	bool has_place() const;
	void make_place();
};

} // namespace pier_nixl

#endif
