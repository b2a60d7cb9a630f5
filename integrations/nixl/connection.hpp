/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_CONNECTION_HPP
#define PIER_NIXL_CONNECTION_HPP

#include <array>
#include <atomic>
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

/* What agents could not keep: printed when this one ends. Any thread may count. */
struct losses {
	std::atomic<uint64_t> rails{ 0 };
	std::atomic<uint64_t> notices{ 0 }; /* accepted or arrived, and not delivered */
};

/*
 * A connection to an agent, made by this one to post requests. It has a channel for
 * each rail, and none while the agent is being called: what is posted then waits. What the
 * peer initiates has a connection of its own, which is a visitor here.
 *
 * The spans of a request are posted in pieces, each of which is one doorbell and one
 * completion, as the channels have room. Rails take pieces in turn. Notifications go
 * through one channel, in order. That of a request follows its bytes: immediately, if
 * the connection has one rail and they are writes, because a channel delivers in order;
 * otherwise when all bytes have arrived.
 *
 * A rail that fails, or on which no piece completes within a time limit, is lost. When
 * the peer has ended its end of it, so that nothing late can arrive there, the other
 * rails repeat what it had in flight. Requests fail if no rail is left.
 *
 * Threads: any thread may call any public function. A request belongs to one thread at
 * a time, as NIXL has it.
 */
class connection : public driven, public std::enable_shared_from_this<connection>
{
      public:
	/* Accepted work has this long to finish before its connection is ended. */
	static constexpr auto finish_time = std::chrono::seconds(5);

	/*
	 * by_user, of_agent  must outlast the connection
	 * called             the agent's name
	 */
	connection(const settings &by_user, losses &of_agent, const std::string &called)
	    : chosen(by_user), counted(of_agent)
	{
		agent = called;
	}
	~connection() override;

	/*
	 * The rails are connected: start what was posted meanwhile, and have the end
	 * driven. Takes the channels, unless the connection is over. Returns 1, or a
	 * negative errno with a sentence in pier_error_message().
	 */
	int begin(std::vector<channel_end> &connected, owned_fd &&stream,
		  const agent_address &peer, const device_list &devices, driver &by);
	/* The agent was not reached: what was posted fails with this status. */
	void fail(nixl_status_t status);

	/*
	 * Start a request that is not in progress. Returns its status:
	 * NIXL_ERR_INVALID_PARAM memory of this end was deregistered.
	 */
	nixl_status_t post(request &of, const std::string *message);
	/* Make progress. Returns the status of the request. */
	nixl_status_t check(request &of);
	/*
	 * Post no more of a request, and delete it when the NIC no longer touches its
	 * memory: now, or later. The caller keeps the connection.
	 */
	void release(request *of);
	/* Send a notification that belongs to no request. */
	nixl_status_t notify(const std::string &message);
	/* Whether it works, and was not closed. */
	bool accepts_requests() const
	{
		return !over && !is_closing;
	}
	/*
	 * Accept no more, and end the connection when everything that was accepted has
	 * ended, also notifications, or at `end`; if the agent is still being called,
	 * finish_time after it is connected at the earliest. The driver does this
	 * afterwards.
	 */
	void close_later(time_point end);
	/*
	 * Wait until the requests that use a memory have ended; NULL: until the
	 * connection has, which was closed. At `end`, the connection is broken.
	 */
	void finish(const local_memory *memory, time_point end);
	/* How long a transfer of `bytes` takes, in microseconds. */
	uint64_t estimate_us(uint64_t bytes);
	void make_progress() override;
	/* Requests that have not completed fail. */
	void hang_up() override;
	bool has_deadline() const override
	{
		return is_closing || is_busy(nullptr);
	}

      private:
	static const size_t pieces_max = 16; /* of data, in flight on a rail */
	static const size_t slots_max = 8;   /* of notifications, in flight */
	static const uint32_t piece_requests = 16;

	/* Bytes of a request that follow each other, also across its spans. */
	struct range {
		request *owner;	 /* NULL: a message */
		size_t next;	 /* span */
		uint64_t offset; /* in that span */
		uint64_t length;
	};

	/* Requests that were posted together, or a message of a notification. */
	struct piece {
		struct pier_work work;
		range bytes;
	};

	/* A channel, its data, and its pieces in flight in the order of posting. */
	struct rail {
		struct pier_channel *channel; /* NULL: it is lost */
		std::string name;	      /* of its device */
		uint32_t device, peer_device;
		uint32_t chunk; /* the most bytes of a request */
		struct pier_mr *slots_mr;
		/* Of a lost rail: data that was in flight. */
		std::deque<piece> pieces;
		size_t data_count = 0; /* of these, not messages */
		/* When the first of them became the first. */
		time_point since;
		bool is_settled = false; /* the peer's end of it has ended, too */

		void push(const piece &one);
		piece pop();
	};

	struct notice {
		std::string bytes; /* with its head */
		size_t sent;
		request *owner; /* NULL: nobody waits for it */
	};

	/* A message of a notification, until it has completed. */
	struct slot {
		size_t length;
		request *owner; /* NULL: nobody waits for it */
		bool is_last;	/* message of its notification */
	};

	const settings &chosen;
	losses &counted;
	driver *driven_by = nullptr;	       /* as soon as it is connected */
	std::atomic<bool> is_closing{ false }; /* nothing more is accepted */
	time_point closes_at;
	std::condition_variable progressed;
	std::vector<rail> rails;
	std::vector<request *> active; /* in progress */
	std::deque<request *> waiting; /* of these: not posted completely */
	std::deque<range> repeated;    /* of lost rails; each counts as one in flight */
	std::deque<notice> outbox;
	/* Messages of notifications: slot n is in use while the nth message is. */
	std::array<uint8_t, slots_max * PIER_NIXL_SLOT_SIZE> slots;
	std::array<slot, slots_max> messages;
	size_t slots_filled = 0, slots_posted = 0, slots_done = 0;
	size_t notice_rail = 0;
	size_t first_slot = 0;	   /* that was posted on this rail */
	uint64_t bytes_per_ms = 0; /* of recent transfers; 0: unknown */

	int set_up_rails(const agent_address &peer, const device_list &devices);
	size_t count_others(const rail &of) const;
	void lose_rail(size_t index, int error) override;
	void fail_rail(size_t index, int error, const std::string &cause);
	void settle_rail(size_t index, uint64_t received) override;
	void move_notices(uint64_t received);
	int collect_pieces(rail &of);
	void collect_rail(size_t index);
	void check_deadline(size_t index);
	bool is_busy(const local_memory *memory) const;
	void post_pieces();
	bool post_piece(size_t index);
	int post_batch(rail &on, range &of, struct pier_work &ret_work);
	void finish_posting(request &of);
	void queue_notice(request *owner, const std::string &message);
	void start_deadline();
	void post_notices();
	void fill_slot();
	bool post_slot();
	void finish_piece(const rail &on, const piece &done);
	void finish_message();
	void finish_if_done(request &of);
	void end_request(request &of, nixl_status_t status);
	nixl_status_t flush_device(const request &of);
	void measure(const request &of);
	void count_lost_notices();
	void drop_rails();
	void fail_all(nixl_status_t status);
	void withdraw(request &of);
	void drop_released(rail &of);
};

} // namespace pier_nixl

#endif
