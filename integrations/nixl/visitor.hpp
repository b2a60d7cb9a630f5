/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_VISITOR_HPP
#define PIER_NIXL_VISITOR_HPP

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "devices.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include "nixl_abi.hpp"
#include "settings.hpp"

namespace pier_nixl
{

/* Notifications that have arrived, from all visitors. Any thread may call. */
class inbox
{
      public:
	void add(const std::string &agent, std::string &&message,
		 const flush_set &written)
	{
		std::lock_guard<std::mutex> guard(lock);

		messages.emplace_back(agent, std::move(message));
		unflushed.groups |= written.groups;
		unflushed.devices |= written.devices;
	}
	/* Returns the device memory that peers wrote to before the notifications. */
	flush_set take_all(notif_list_t &ret_list)
	{
		std::lock_guard<std::mutex> guard(lock);
		flush_set written = unflushed;

		ret_list.insert(ret_list.end(), std::make_move_iterator(messages.begin()),
				std::make_move_iterator(messages.end()));
		messages.clear();
		unflushed = {};
		return written;
	}

      private:
	std::mutex lock;
	notif_list_t messages;
	flush_set unflushed;
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

	void end_now();
	void lose_rail(size_t index, int error) override;
	void settle_rail(size_t index, uint64_t) override;
	int take_messages(size_t index);
	void take_message(const uint8_t *bytes, size_t length);
};

} // namespace pier_nixl

#endif
