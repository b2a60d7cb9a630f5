/* SPDX-License-Identifier: BSD-3-Clause */
#include "visitor.hpp"

#include <algorithm>
#include <cerrno>

#include "bytes.hpp"
#include "report.hpp"

namespace pier_nixl
{

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
	for (struct pier_recv_pool *pool : pools)
		pier_recv_pool_destroy(pool);
	pools.clear();
}

int visitor::welcome(std::vector<channel_end> &&connected, const device_list &devices)
{
	struct pier_recv_pool_attr attr;
	int error = 0;

	ends = std::move(connected);
	pools.resize(ends.size());
	causes.resize(ends.size());
	for (size_t i = 0; !error && i < ends.size(); i++) {
		pier_recv_pool_attr_init(&attr);
		attr.count = PIER_NIXL_RECEIVES;
		attr.length = PIER_NIXL_SLOT_SIZE;
		attr.channel = ends[i].channel;
		error = pier_recv_pool_create(devices.all[ends[i].device].pd, &attr,
					      &pools[i]);
	}
	return error;
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
	for (size_t i = 0; i < pools.size(); i++) {
		int error = pools[i] ? take_messages(i) : 0;

		if (is_confused)
			end_now();
		else if (error)
			lose_rail(i, error);
	}
}

/* Returns 0 if no message is left, or a negative errno. */
int visitor::take_messages(size_t index)
{
	struct pier_pool_message message;
	int count;

	do {
		count = pier_recv_pool_wait(pools[index], 0, &message);
		if (count == 1) {
			received++;
			take_message((const uint8_t *)message.pointer, message.length);
			pier_recv_pool_release(pools[index], &message);
		}
	} while (count == 1 && !is_confused);
	return std::min(count, 0);
}

/*
 * Nothing arrives on the rail after it was stopped. What had arrived is taken before the
 * peer is told how much that was. When the peer ends its connection, its rails break one
 * after the other, which is no failure.
 */
void visitor::lose_rail(size_t index, int error)
{
	causes[index] = error == -ECONNRESET ? "it ended at the peer"
					     : pier_error_message();
	pier_channel_cancel(ends[index].channel);
	take_messages(index);
	end_rail(index, received);
	pier_recv_pool_destroy(pools[index]);
	pools[index] = nullptr;
	if (is_confused || !has_channels())
		end_now();
}

/* The peer continues with other rails. */
void visitor::settle_rail(size_t index, uint64_t)
{
	report_line("agent \"%s\": rail %zu, on which it sends, failed: %s",
		    agent.c_str(), index, causes[index].c_str());
}

/* The forms of connection::queue_notice() and fill_slot(). */
void visitor::take_message(const uint8_t *bytes, size_t length)
{
	byte_reader reader(bytes, length);

	if (!has_head) {
		expected = reader.number(4);
		written.groups = reader.number(8);
		written.devices = reader.number(8);
		if (reader.failed() || expected > PIER_NIXL_NOTICE_MAX) {
			report_line("agent \"%s\" sent something other than a "
				    "notification",
				    agent.c_str());
			is_confused = true;
			return;
		}
		has_head = true;
		bytes += head_size;
		length -= head_size;
	}
	text.append((const char *)bytes, std::min(length, expected - text.size()));
	if (text.size() < expected)
		return;
	messages.add({ agent, std::move(text), written });
	text.clear();
	has_head = false;
}

} // namespace pier_nixl
