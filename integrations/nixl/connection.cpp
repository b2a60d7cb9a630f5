/* SPDX-License-Identifier: BSD-3-Clause */
#include "connection.hpp"

#include <algorithm>
#include <cerrno>
#include <poll.h>

#include "bytes.hpp"
#include "report.hpp"

namespace pier_nixl
{

/* The most bytes of a request, and of a piece: see chunk in docs/design/transfer.md. */
static const uint32_t chunk_max = 1 << 20;
static const int cancel_ms = 5000;

void connection::rail::push(const piece &one)
{
	if (pieces.empty())
		since = clock_now();
	pieces.push_back(one);
	data_count += !one.is_message;
}

connection::piece connection::rail::pop()
{
	piece one = pieces.front();

	since = clock_now();
	pieces.pop_front();
	data_count -= !one.is_message;
	return one;
}

connection::~connection()
{
	fail_all(NIXL_ERR_CANCELED);
}

void connection::fail_all(nixl_status_t status)
{
	std::vector<request *> failed;

	end_channels();
	rails.clear();
	pier_mr_dereg(slots_mr);
	slots_mr = nullptr;
	failed.swap(active);
	waiting.clear();
	outbox.clear();
	for (request *one : failed)
		one->status = status;
	progressed.notify_all();
}

void connection::fail_step(const char *step, int error)
{
	report_failure(step);
	fail_all(status_of(error));
}

void connection::hang_up()
{
	fail_all(NIXL_ERR_REMOTE_DISCONNECT);
}

int connection::set_up_rails(const agent_address &peer, const device_list &devices)
{
	for (const channel_end &end : ends) {
		auto found = std::find(peer.devices.begin(), peer.devices.end(),
				       end.peer_device);

		if (found == peer.devices.end())
			return -EBADMSG;
		rails.emplace_back();
		rails.back().channel = end.channel;
		rails.back().device = end.device;
		rails.back().peer_device = (uint32_t)(found - peer.devices.begin());
		rails.back().chunk = std::min(chunk_max, end.max_message);
	}
	return pier_mr_reg(devices.all[rails[0].device].pd, slots.data(), slots.size(),
			   PIER_ACCESS_LOCAL_READ, &slots_mr);
}

int connection::call_agent(const std::string &called, const agent_address &peer,
			   const std::string &name, const device_list &devices)
{
	uint32_t count = std::min(chosen.rails, peer.rails);
	agent_hello hello = { peer.token, name, count, devices.description };
	std::string where, step;
	channel_maker maker;
	int error;

	agent = called;
	error = dial_agent(peer, hello.write(), (int)chosen.connect_timeout * 1000,
			   socket, where);
	if (error) {
		report_line("cannot reach agent \"%s\" at %s: %s", agent.c_str(),
			    where.c_str(), strerror(-error));
		return error;
	}
	error = maker.begin(devices, peer.description, count, chosen.connect_timeout,
			    true, socket.fd);
	for (int done = 0; !error && done == 0;) {
		done = maker.step();
		if (done == 0)
			poll(maker.fds, 2, left_ms(maker.wake));
		error = std::min(done, 0);
	}
	ends = std::move(maker.ends);
	if (!error)
		error = set_up_rails(peer, devices);
	step = "cannot connect to agent \"" + agent + "\" at " + where;
	if (error)
		report_failure(step.c_str());
	return error;
}

nixl_status_t connection::post(request &of, const std::string *message)
{
	std::lock_guard<std::mutex> guard(lock);

	polls++;
	if (over || is_closing)
		return of.status = NIXL_ERR_REMOTE_DISCONNECT;
	if (of.has_gone()) {
		report_line("a transfer uses memory that was deregistered");
		return of.status = NIXL_ERR_INVALID_PARAM;
	}
	of.next = 0;
	of.offset = 0;
	of.in_flight = 0;
	of.is_cancelled = of.notice_queued = of.notice_sent = false;
	of.has_notice = message != nullptr;
	of.message = message ? *message : std::string();
	of.started = clock_now();
	of.devices = of.written.devices = 0;
	of.status = NIXL_IN_PROG;
	active.push_back(&of);
	waiting.push_back(&of);
	make_progress();
	/* Software NICs and inline data may be done already. */
	if (of.status == NIXL_IN_PROG && !over)
		make_progress();
	return of.status;
}

nixl_status_t connection::check(request &of)
{
	nixl_status_t status = of.status;
	std::unique_lock<std::mutex> guard(lock, std::defer_lock);

	if (status != NIXL_IN_PROG)
		return status;
	polls++;
	/* Another thread that holds the lock makes the same progress. */
	if (guard.try_lock() && !over)
		make_progress();
	return of.status;
}

void connection::make_progress()
{
	collect_all();
	post_pieces();
	post_notices();
	progressed.notify_all();
}

bool connection::is_busy(const local_memory *memory) const
{
	bool busy = !memory && !outbox.empty();

	for (const rail &one : rails)
		busy |= !memory && !one.pieces.empty();
	for (const request *one : active)
		busy |= !memory || one->uses(memory);
	return busy;
}

/* The driver makes progress meanwhile. */
void connection::finish(const local_memory *memory, time_point end)
{
	std::unique_lock<std::mutex> guard(lock);

	is_closing |= !memory;
	if (!over)
		make_progress();
	if (progressed.wait_until(guard, end, [&] { return over || !is_busy(memory); }))
		return;
	report_line(
		"agent \"%s\" did not take what was sent to it in time: its transfers "
		"and notifications are given up",
		agent.c_str());
	fail_all(NIXL_ERR_CANCELED);
}

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
				queue_notice(&of, of.message);
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
		of.devices |= flush_set::bit(on.device);
		of.written.devices |= flush_set::bit(on.peer_device);
		return true;
	}
	of.next = next;
	of.offset = offset;
	if (error != -EAGAIN)
		fail_step("a transfer cannot be posted", error);
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
		       ? pier_channel_post_writes(on.channel, writes, count, &ret_work)
		       : pier_channel_post_reads(on.channel, reads, count, &ret_work);
}

nixl_status_t connection::notify(const std::string &message)
{
	std::lock_guard<std::mutex> guard(lock);

	polls++;
	if (over || is_closing)
		return NIXL_ERR_REMOTE_DISCONNECT;
	queue_notice(nullptr, message);
	make_progress();
	return over ? NIXL_ERR_REMOTE_DISCONNECT : NIXL_SUCCESS;
}

/* The head is read by visitor::take_message(). */
void connection::queue_notice(request *owner, const std::string &message)
{
	flush_set written = owner ? owner->written : flush_set();
	byte_writer writer;

	writer.put_number(message.size(), 4);
	writer.put_number(written.groups, 8);
	writer.put_number(written.groups ? written.devices : 0, 8);
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
	error = pier_channel_post_send(rails[0].channel, &element, 1, &one.work);
	if (error && error != -EAGAIN)
		fail_step("a notification cannot be sent", error);
	if (error)
		return false;
	of.sent += length;
	slots_posted++;
	rails[0].push(one);
	return true;
}

/* Each function may find that the connection is broken, and leaves no rails then. */
void connection::collect_all()
{
	for (size_t i = 0; i < rails.size(); i++)
		collect_rail(rails[i]);
}

void connection::collect_rail(rail &of)
{
	struct pier_channel_failure failure;
	struct pier_result result;
	int error = 1;

	while (!of.pieces.empty() && error == 1) {
		error = pier_work_poll(of.channel, of.pieces.front().work, &result);
		if (error == 1 && result.error)
			error = result.error;
		if (error == 1)
			finish_piece(of.pop());
	}
	if (error == 0 && clock_now() - of.since > std::chrono::seconds(chosen.timeout)) {
		report_line("agent \"%s\": no request completed within %u s "
			    "(PIER_NIXL_TIMEOUT); everything outstanding was stopped",
			    agent.c_str(), chosen.timeout);
		fail_all(NIXL_ERR_REMOTE_DISCONNECT);
	} else if (error < 0) {
		report_failure("a transfer failed");
		/* Requests behind the first that fails are flushed. */
		if (pier_channel_error(of.channel, &failure, sizeof(failure)))
			error = failure.first.error;
		fail_all(status_of(error));
	}
}

void connection::finish_piece(const piece &done)
{
	slots_done += done.is_message;
	if (!done.owner)
		return;
	if (done.is_message)
		done.owner->notice_sent = done.is_last;
	else
		done.owner->in_flight--;
	finish_if_done(*done.owner);
}

void connection::finish_if_done(request &of)
{
	if (of.is_cancelled || !of.is_posted() || of.in_flight > 0)
		return;
	if (of.has_notice && !of.notice_queued)
		queue_notice(&of, of.message);
	if (!of.has_notice || of.notice_sent)
		end_request(of, flush_device(of));
}

void connection::end_request(request &of, nixl_status_t status)
{
	std::erase(active, &of);
	if (status == NIXL_SUCCESS)
		measure(of);
	of.status = status;
}

/*
 * The bytes are visible to device code after this: see <pier/sync.h>. One byte flushes
 * all that came through the same NIC to memory of the same group.
 */
nixl_status_t connection::flush_device(const request &of)
{
	int error = 0;

	for (const local_memory *one : of.to_flush)
		error = error ? error : one->flush(of.devices);
	if (error)
		report_failure("bytes were read but are not visible to the device");
	return status_of(error);
}

void connection::measure(const request &of)
{
	auto took = clock_now() - of.started;
	uint64_t us = (uint64_t)std::chrono::duration_cast<std::chrono::microseconds>(
			      took)
			      .count();
	uint64_t rate = of.bytes * 1000 / (us + 1);

	/* Small transfers measure the latency. */
	if (of.bytes >= chunk_max)
		bytes_per_ms = bytes_per_ms ? (bytes_per_ms * 3 + rate) / 4 : rate;
}

uint64_t connection::estimate_us(uint64_t bytes)
{
	static const uint64_t latency_us = 10, unknown_mbits = 16000;
	std::lock_guard<std::mutex> guard(lock);
	uint64_t rate = bytes_per_ms, mbits = 0;

	for (const channel_end &end : ends)
		mbits += end.speed;
	if (!rate)
		rate = (mbits ? mbits : unknown_mbits) * 125;
	return latency_us + bytes * 1000 / rate;
}

/* A notification that has begun is sent to its end, since the peer waits for the rest. */
void connection::withdraw(request &of)
{
	of.is_cancelled = true;
	of.next = of.spans.size();
	std::erase(waiting, &of);
	std::erase_if(outbox, [&](const notice &one) {
		return one.owner == &of && one.sent == 0;
	});
	for (notice &one : outbox)
		if (one.owner == &of)
			one.owner = nullptr;
	for (rail &on : rails)
		for (piece &one : on.pieces)
			if (one.owner == &of && one.is_message)
				one.owner = nullptr;
}

/*
 * Pieces complete in order, so the wait is for the first piece of a rail, whosever it is.
 * A timeout breaks the connection, and leaves no rails.
 */
void connection::cancel(request &of)
{
	std::lock_guard<std::mutex> guard(lock);
	auto end = clock_now() + std::chrono::milliseconds(cancel_ms);
	auto is_owned = [&](const piece &one) { return one.owner == &of; };
	struct pier_result result;

	if (of.status != NIXL_IN_PROG)
		return;
	withdraw(of);
	for (size_t i = 0; i < rails.size(); i++)
		while (i < rails.size() &&
		       std::ranges::any_of(rails[i].pieces, is_owned)) {
			rail &on = rails[i];
			int done = pier_work_wait(on.channel, on.pieces.front().work,
						  std::max(left_ms(end), 1), &result);

			if (done == 1 && !result.error)
				finish_piece(on.pop());
			else
				fail_step("a transfer could not be cancelled",
					  done == 1 ? result.error : done);
		}
	if (of.status == NIXL_IN_PROG)
		end_request(of, NIXL_ERR_CANCELED);
	progressed.notify_all();
}

} // namespace pier_nixl
