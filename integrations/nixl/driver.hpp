/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DRIVER_HPP
#define PIER_NIXL_DRIVER_HPP

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "devices.hpp"
#include "sockets.hpp"

namespace pier_nixl
{

/*
 * One end of a connection. Application threads make progress on it when they call into
 * the backend; the driver's thread does when they do not.
 */
class driven
{
      public:
	virtual ~driven() = default;

	/* The following are called with `lock` held. */

	/* Collect completions, and post what there is room for. */
	virtual void make_progress() = 0;
	/* End the connection: the peer is gone, or this end leaves. */
	virtual void hang_up() = 0;
	/*
	 * Whether a deadline runs, so that progress is due at times without a completion.
	 */
	virtual bool has_deadline() const
	{
		return false;
	}
	/*
	 * Make the fds of the channels readable at the next completion. Returns true if
	 * something has completed already: make progress, and arm again.
	 */
	bool arm_events();
	/*
	 * Take what the peer wrote to the socket. Returns false if the peer is gone, or
	 * wrote something other than one record for each rail.
	 */
	bool read_socket();

	/* Call hang_up() unless the end is over. Takes the lock. */
	void close_now();

	std::mutex lock;
	/* Incremented by application threads, so that the driver leaves the end to them.
	 */
	std::atomic<uint32_t> polls{ 0 };
	/* The end can no longer be used. Set with `lock` held; never cleared. */
	std::atomic<bool> over{ false };
	/*
	 * The driver looks at the end without an event, or is about to. Guarded by
	 * `lock`.
	 */
	bool is_timed = true;
	uint64_t id = 0; /* the driver's, of this end */
	/* Stays open as long as the connection: its end shows that the peer is gone. */
	owned_fd socket;
	/*
	 * Complete before the driver gets the end; then guarded by `lock`. A rail has
	 * the same index at both ends, and no channel when it has ended.
	 */
	std::vector<channel_end> ends;

      protected:
	std::string agent; /* the peer's name */

	/*
	 * Destroy the channels, so that nothing which this end posted touches memory any
	 * more. Then set `over`, and wake the driver to let the end go.
	 */
	void end_channels();
	/*
	 * End the channel of one rail, which has failed. Others are left if `over` is not
	 * set afterwards.
	 */
	virtual void lose_rail(size_t index, int error) = 0;
	/* The peer's end of the rail touches no memory any more. */
	virtual void settle_rail(size_t index, uint64_t messages) = 0;
	bool has_channels() const;
	/*
	 * Destroy the channel of a rail, and tell the peer.
	 *
	 * messages  of notifications that this end has received on all rails
	 */
	void end_rail(size_t index, uint64_t messages);

      private:
	/* What an end writes to the socket when a rail has ended. */
	static const size_t record_size = 12;
	uint8_t record[record_size]; /* that is arriving */
	size_t record_length = 0;
	uint64_t recorded = 0; /* bit n: rail n has its record, and gets no other */
};

/*
 * A thread that drives the ends of connections. It sleeps until something completes.
 * While an application thread polls an end, the driver does not ask for events, which
 * would cost both threads a switch for each completion, and looks once a millisecond
 * whether the application still polls.
 *
 * Threads: any thread may call add_end() and look_at().
 */
class driver
{
      public:
	driver() = default;
	driver(const driver &) = delete;
	void operator=(const driver &) = delete;
	~driver();

	/* Returns 0 or a negative errno. */
	int start_thread();
	/* Wait for the thread, and let go of all ends. */
	void stop_thread();
	/* Drive an end until it is over; after an error not at all. */
	int add_end(const std::shared_ptr<driven> &end);
	/* Look soon at an end, whose lock is held, and which is not over. */
	void look_at(driven &end);

      private:
	struct watched {
		std::shared_ptr<driven> end;
		uint32_t polls_seen;
	};

	owned_fd epoll, wake;
	std::thread thread;
	std::atomic<bool> stopping{ false };
	std::mutex lock; /* guards the following */
	std::map<uint64_t, watched> ends;
	uint64_t last_id = 0;
	/* Of the thread alone: ends that were not armed, because they are being polled.
	 */
	std::set<uint64_t> resting;
	std::set<uint64_t> timed; /* of the thread alone: ends with a deadline */

	void run_loop();
	void visit_end(uint64_t id, bool at_socket);
	void visit_set(std::set<uint64_t> visited);
};

} // namespace pier_nixl

#endif
