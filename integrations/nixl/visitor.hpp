/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_VISITOR_HPP
#define PIER_NIXL_VISITOR_HPP

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include "nixl_abi.hpp"
#include "settings.hpp"

namespace pier_nixl
{

/* A notification that has arrived. */
struct arrival {
	std::string agent, message;
	flush_set written; /* the device memory that the agent wrote to before */
};

/* Notifications that have arrived, from all visitors. Any thread may call. */
class inbox
{
      public:
	void add(arrival &&made)
	{
		std::lock_guard<std::mutex> guard(lock);

		arrivals.push_back(std::move(made));
	}
	std::vector<arrival> take_all()
	{
		std::lock_guard<std::mutex> guard(lock);

		return std::exchange(arrivals, {});
	}

      private:
	std::mutex lock;
	std::vector<arrival> arrivals;
};

/*
 * A connection that a peer made. The peer's requests need nothing of this end, except
 * for notifications, which it puts into the inbox.
 */
class visitor : public driven
{
      public:
	/* called  the name of the peer */
	visitor(inbox &where, owned_fd &&from, const std::string &called);
	~visitor() override;

	/*
	 * The rails are connected: receive. Returns 0, or a negative errno with a
	 * sentence in pier_error_message().
	 */
	int welcome(std::vector<channel_end> &&connected, const device_list &devices);

	void make_progress() override;
	void hang_up() override;

      private:
	inbox &messages;
	/* For each rail; NULL: it is lost, and this was the reason. */
	std::vector<struct pier_recv_pool *> pools;
	std::vector<std::string> causes;
	uint64_t received = 0; /* messages, on all rails */
	/* Of the notification that is arriving. */
	std::string text;
	size_t expected = 0;
	flush_set written;
	bool has_head = false;
	bool is_confused = false; /* the peer's messages are no notifications */

	void end_now();
	void lose_rail(size_t index, int error) override;
	void settle_rail(size_t index, uint64_t) override;
	int take_messages(size_t index);
	void take_message(const uint8_t *bytes, size_t length);
};

} // namespace pier_nixl

#endif
