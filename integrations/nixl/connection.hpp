/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_CONNECTION_HPP
#define PIER_NIXL_CONNECTION_HPP

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "devices.hpp"
#include "driver.hpp"
#include "request.hpp"
#include "settings.hpp"

namespace pier_nixl
{

/*
 * A connection to an agent, made by this one to post requests. It has a channel for
 * each rail. What the peer initiates has a connection of its own, which is a visitor
 * here.
 *
 * The spans of a request are posted in pieces, each of which is one doorbell and one
 * completion, as the channels have room. Rails take pieces in turn. Notifications go
 * through the first channel, in order. That of a request follows its bytes:
 * immediately, if they are writes on the same channel, because a channel delivers in
 * order; otherwise when all bytes have arrived. A connection on which no piece completes
 * within a time limit is given up.
 *
 * Threads: any thread may call any public function. A request belongs to one thread at
 * a time, as NIXL has it.
 */
class connection : public driven
{
      public:
	/* by_user  must outlast the connection */
	explicit connection(const settings &by_user) : chosen(by_user)
	{
	}
	~connection() override;

	/*
	 * Call an agent, and connect all rails.
	 *
	 * called  its name
	 * name    of this agent
	 *
	 * Returns 0, or a negative errno after a line that gives the reason.
	 */
	int call_agent(const std::string &called, const agent_address &peer,
		       const std::string &name, const device_list &devices);

	/*
	 * Start a request that is not in progress. Returns its status:
	 * NIXL_ERR_INVALID_PARAM memory of this end was deregistered.
	 */
	nixl_status_t post(request &of, const std::string *message);
	/* Make progress. Returns the status of the request. */
	nixl_status_t check(request &of);
	/*
	 * Stop a request: post no more of it, and wait until the NIC no longer touches
	 * its memory. If that takes longer than 5 seconds, the connection is
	 * broken.
	 */
	void cancel(request &of);
	/* Send a notification that belongs to no request. */
	nixl_status_t notify(const std::string &message);
	/*
	 * Wait until the requests that use a memory have ended; NULL: until everything
	 * that was accepted has, also notifications, and accept no more. At `end`, the
	 * connection is broken.
	 */
	void finish(const local_memory *memory, time_point end);
	/* How long a transfer of `bytes` takes, in microseconds. */
	uint64_t estimate_us(uint64_t bytes);
	void make_progress() override;
	/* Requests in progress fail. */
	void hang_up() override;

      private:
	static const size_t pieces_max = 16; /* of data, in flight on a rail */
	static const size_t slots_max = 8;   /* of notifications, in flight */
	static const uint32_t piece_requests = 16;

	/* Requests that were posted together, or a message of a notification. */
	struct piece {
		struct pier_work work;
		request *owner; /* NULL: nobody waits for it */
		bool is_message;
		bool is_last; /* message of its notification */
	};

	/* A channel, its data, and its pieces in flight in the order of posting. */
	struct rail {
		struct pier_channel *channel;
		uint32_t device, peer_device;
		uint32_t chunk; /* the most bytes of a request */
		std::deque<piece> pieces;
		size_t data_count = 0; /* of these, not messages */
		/* When the first of them became the first. */
		time_point since;

		void push(const piece &one);
		piece pop();
	};

	struct notice {
		std::string bytes; /* with its head */
		size_t sent;
		request *owner;
	};

	const settings &chosen;
	bool is_closing = false; /* nothing more is accepted */
	std::condition_variable progressed;
	std::vector<rail> rails;
	std::vector<request *> active; /* in progress */
	std::deque<request *> waiting; /* of these: not posted completely */
	std::deque<notice> outbox;
	/* Messages of notifications: slot n is in use while the nth message is. */
	std::array<uint8_t, slots_max * PIER_NIXL_SLOT_SIZE> slots;
	struct pier_mr *slots_mr = nullptr;
	size_t slots_posted = 0, slots_done = 0;
	uint64_t bytes_per_ms = 0; /* of recent transfers; 0: unknown */

	int set_up_rails(const agent_address &peer, const device_list &devices);
	void collect_rail(rail &of);
	bool is_busy(const local_memory *memory) const;
	void collect_all();
	void post_pieces();
	bool post_piece(rail &on, request &of);
	int post_batch(rail &on, request &of, struct pier_work &ret_work);
	void queue_notice(request *owner, const std::string &message);
	void post_notices();
	bool post_message(notice &of);
	void finish_piece(const piece &done);
	void finish_if_done(request &of);
	void end_request(request &of, nixl_status_t status);
	nixl_status_t flush_device(const request &of);
	void measure(const request &of);
	void fail_all(nixl_status_t status);
	/* After a line with the step and pier_error_message(). */
	void fail_step(const char *step, int error);
	void withdraw(request &of);
};

} // namespace pier_nixl

#endif
