/* SPDX-License-Identifier: BSD-3-Clause */
#include "connection.hpp"

#include <algorithm>
#include <cerrno>

#include "bytes.hpp"
#include "report.hpp"

/* What a connection posts: the pieces of its requests, and notifications. */

namespace pier_nixl
{

/* Rails take pieces in turn; one that is full is left out. */
void connection::post_pieces()
{
	bool has_posted = true;

	while (has_posted && !over && !waiting.empty()) {
		has_posted = false;
		for (size_t i = 0; i < rails.size() && !waiting.empty(); i++) {
			request &of = *waiting.front();

			if (!of.is_posted() && !post_piece(rails[i], of)) {
				if (over)
					return;
				continue;
			}
			has_posted = true;
			if (!of.is_posted())
				continue;
			waiting.pop_front();
			if (of.has_notice && rails.size() == 1 &&
			    of.operation == NIXL_WRITE)
				queue_notice(&of, of.message, of.writes_device);
			finish_if_done(of);
		}
	}
}

/* Returns false if the rail has no room, or the connection is broken. */
bool connection::post_piece(rail &on, request &of)
{
	size_t next = of.next;
	uint64_t offset = of.offset;
	piece one = { {}, &of, false, false };
	int error;

	if (on.data_count == pieces_max ||
	    pier_channel_send_room(on.channel) < piece_requests)
		return false;
	error = post_batch(on, of, one.work);
	if (!error) {
		on.push(one);
		of.in_flight++;
		return true;
	}
	of.next = next;
	of.offset = offset;
	if (error != -EAGAIN) {
		report_failure("a transfer cannot be posted");
		fail_all(status_of(error));
	}
	return false;
}

/* Take up to piece_requests requests, and up to a chunk of bytes, from the spans. */
int connection::post_batch(rail &on, request &of, struct pier_work &ret_work)
{
	struct pier_write_pair writes[piece_requests];
	struct pier_read_pair reads[piece_requests];
	uint32_t count = 0, bytes = 0;

	while (count < piece_requests && bytes < on.chunk && !of.is_posted()) {
		const request::span &span = of.spans[of.next];
		const memory_part &here = find_part(span.local->regions[on.device].parts,
						    span.local_offset + of.offset);
		const memory_part &there = find_part(span.remote->regions[on.peer_device],
						     span.remote_offset + of.offset);
		uint64_t skipped = span.local_offset + of.offset - here.offset;
		uint64_t beyond = span.remote_offset + of.offset - there.offset;
		uint32_t length = (uint32_t)std::min(
			{ span.length - of.offset, here.length - skipped,
			  there.length - beyond, (uint64_t)(on.chunk - bytes) });
		pier_remote remote = { there.addr + beyond, length, there.key };

		if (of.operation == NIXL_WRITE)
			writes[count] = { { here.addr + skipped, length, here.key },
					  remote };
		else
			reads[count] = { { here.addr + skipped, length, here.key },
					 remote };
		count++;
		bytes += length;
		of.offset += length;
		if (of.offset == span.length) {
			of.next++;
			of.offset = 0;
		}
	}
	return of.operation == NIXL_WRITE
		       ? pier_post_writes(on.channel, writes, count, &ret_work)
		       : pier_post_reads(on.channel, reads, count, &ret_work);
}

nixl_status_t connection::notify(const std::string &message)
{
	std::lock_guard<std::mutex> guard(lock);

	polls++;
	if (over || is_closing)
		return NIXL_ERR_REMOTE_DISCONNECT;
	queue_notice(nullptr, message, false);
	make_progress();
	return over ? NIXL_ERR_REMOTE_DISCONNECT : NIXL_SUCCESS;
}

/* The head is read by visitor::take_message(). */
void connection::queue_notice(request *owner, const std::string &message, bool to_device)
{
	byte_writer writer;

	writer.put_number(message.size(), 4);
	writer.put_number(to_device, 4);
	writer.put_bytes(message.data(), message.size());
	outbox.push_back({ std::move(writer.out), 0, owner });
	if (owner)
		owner->notice_queued = true;
}

void connection::post_notices()
{
	while (!over && !outbox.empty() && slots_posted - slots_done < slots_max &&
	       post_message(outbox.front()))
		if (outbox.front().sent == outbox.front().bytes.size())
			outbox.pop_front();
}

bool connection::post_message(notice &of)
{
	uint8_t *slot = slots.data() + slots_posted % slots_max * PIER_NIXL_SLOT_SIZE;
	size_t length = std::min<size_t>(of.bytes.size() - of.sent, PIER_NIXL_SLOT_SIZE);
	struct pier_gather element;
	piece one = { {}, of.owner, true, of.sent + length == of.bytes.size() };
	int error;

	memcpy(slot, of.bytes.data() + of.sent, length);
	element = pier_mr_gather_unchecked(slots_mr, (uint64_t)(uintptr_t)slot,
					   (uint32_t)length);
	error = pier_post_send(rails[0].channel, &element, 1, &one.work);
	if (error == -EAGAIN)
		return false;
	if (error) {
		report_failure("a notification cannot be sent");
		fail_all(status_of(error));
		return false;
	}
	of.sent += length;
	slots_posted++;
	rails[0].push(one);
	return true;
}

} // namespace pier_nixl
