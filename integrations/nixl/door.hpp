/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DOOR_HPP
#define PIER_NIXL_DOOR_HPP

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "address.hpp"
#include "devices.hpp"
#include "sockets.hpp"

namespace pier_nixl
{

/*
 * The sockets on which an agent is called, and a thread that takes the calls. Callers
 * that have not shown the token hold up nobody: they are limited in number and time, and
 * read without waiting.
 *
 * The agent listens on a Unix socket, and on TCP if `where` is not empty or `has_tcp`.
 */
class door
{
      public:
	/*
	 * Called on the thread of the door with a caller that has the token. Owns the
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
		std::chrono::steady_clock::time_point end;
	};

	owned_fd unix_socket, tcp_socket, wake;
	std::string token;
	std::vector<caller> callers;
	std::thread thread;
	std::atomic<bool> stopping{ false };
	greet_function greet_caller;

	void run_loop();
	void accept_from(int socket, bool is_unix);
	bool serve(caller &from);
};

} // namespace pier_nixl

#endif
