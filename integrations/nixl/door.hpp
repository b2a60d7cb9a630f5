/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DOOR_HPP
#define PIER_NIXL_DOOR_HPP

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "address.hpp"
#include "clock.hpp"
#include "devices.hpp"
#include "sockets.hpp"

namespace pier_nixl
{

/*
 * The sockets on which an agent is called, and a thread that takes the calls. It reads
 * without waiting. A caller whose hello was accepted, and which begins its handshakes, gets
 * a thread of its own. Callers are limited in number and time; if there are too many, the
 * oldest that is silent has to leave. So no caller holds up others.
 *
 * The agent listens on a Unix socket, and on TCP if `where` is not empty or `has_tcp`.
 */
class door
{
      public:
	/*
	 * Called with a caller that has the token, on a thread of that caller. Owns the
	 * socket.
	 */
	using greet_function = std::function<void(owned_fd &&, const agent_hello &)>;

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
	void stop_thread();

      private:
	struct caller {
		owned_fd socket;
		std::string bytes;
		size_t wanted; /* bytes of the head, or of head and body */
		time_point start, end;
		bool is_accepted; /* its hello; it begins the handshakes next */
		agent_hello hello;
	};

	/* A caller whose handshakes are in progress. */
	struct greeting {
		std::thread thread;
		time_point start;
		/* Its next wait in a handshake ends. */
		std::atomic<bool> must_leave{ false };
		std::atomic<bool> is_over{ false };
	};

	owned_fd unix_socket, tcp_socket, wake;
	std::string token;
	std::vector<caller> callers;
	std::list<greeting> greetings;
	std::thread thread;
	std::atomic<bool> stopping{ false };
	greet_function greet_caller;

	void run_loop();
	void accept_from(int socket, bool is_unix);
	std::vector<caller>::iterator first_to_leave();
	int ms_to_room();
	bool serve(caller &from);
	bool accept_hello(caller &from);
	void greet(caller &from);
	bool has_place() const;
	void end_greetings();
};

} // namespace pier_nixl

#endif
