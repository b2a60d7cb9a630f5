/* SPDX-License-Identifier: BSD-3-Clause */
#include "visitor.hpp"

#include <algorithm>
#include <cerrno>

#include "bytes.hpp"
#include "report.hpp"

namespace pier_nixl
{

/* The longest notification. */
static const size_t text_max = 64 << 20;
static const size_t head_size = 4 + 8 + 8;

visitor::visitor(inbox &where, owned_fd &&from, const std::string &called)
	: messages(where)
{
	socket = std::move(from);
	agent = called;
}

visitor::~visitor()
{
	end_now();
}

void visitor::end_now()
{
	end_channels();
	pier_recv_pool_destroy(pool);
	pool = nullptr;
}

int visitor::welcome(std::vector<channel_end> &&connected, const device_list &devices)
{
	struct pier_recv_pool_attr attr;

	ends = std::move(connected);
	pier_recv_pool_attr_init(&attr);
	attr.count = PIER_NIXL_RECEIVES;
	attr.length = PIER_NIXL_SLOT_SIZE;
	attr.channel = ends[0].channel;
	return pier_recv_pool_create(devices.all[ends[0].device].pd, &attr, &pool);
}

/*
 * Messages that arrived before the peer went are taken first: it may have ended after it
 * sent the last one.
 */
void visitor::hang_up()
{
	make_progress();
	if (!over)
		end_now();
}

void visitor::make_progress()
{
	struct pier_pool_message message;
	int count;

	do {
		count = over ? 0 : pier_recv_pool_wait(pool, 0, &message);
		if (count == 1) {
			take_message((const uint8_t *)message.pointer, message.length);
			pier_recv_pool_release(pool, &message);
		}
	} while (count == 1);
	if (count < 0)
		end_now();
}

/* The forms of connection::queue_notice() and post_message(). */
void visitor::take_message(const uint8_t *bytes, size_t length)
{
	byte_reader reader(bytes, length);

	if (!has_head) {
		expected = reader.number(4);
		written.groups = reader.number(8);
		written.devices = reader.number(8);
		if (reader.failed() || expected > text_max) {
			report_line("%s sent something other than a notification",
				    agent.c_str());
			expected = 0;
			return;
		}
		has_head = true;
		bytes += head_size;
		length -= head_size;
	}
	text.append((const char *)bytes, std::min(length, expected - text.size()));
	if (text.size() < expected)
		return;
	messages.add(agent, std::move(text), written);
	text.clear();
	has_head = false;
}

} // namespace pier_nixl
