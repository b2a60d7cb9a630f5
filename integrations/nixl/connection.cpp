/* SPDX-License-Identifier: BSD-3-Clause */
#include "connection.hpp"

#include <algorithm>
#include <cerrno>

#include "bytes.hpp"
#include "report.hpp"

namespace pier_nixl
{

/* The most bytes of a request, and of a piece: see chunk in docs/design/transfer.md. */
static const uint32_t chunk_max = 1 << 20;

void connection::rail::push(const piece &one)
{
	if (pieces.empty())
		since = clock_now();
	pieces.push_back(one);
	data_count += one.bytes.owner != nullptr;
}

connection::piece connection::rail::pop()
{
	piece one = pieces.front();

	since = clock_now();
	pieces.pop_front();
	data_count -= one.bytes.owner != nullptr;
	return one;
}

connection::~connection()
{
	fail_all(NIXL_ERR_CANCELED);
}

/* The sender of a request's notification learns its end from the request. */
void connection::count_lost_notices()
{
	size_t lost = 0;

	for (const notice &one : outbox)
		lost += !one.owner;
	for (size_t i = slots_done; i < slots_filled; i++)
		lost += messages[i % slots_max].is_last && !messages[i % slots_max].owner;
	if (!lost)
		return;
	counted.notices += lost;
	report_line("agent \"%s\": %zu notifications were not delivered", agent.c_str(),
		    lost);
}

void connection::drop_rails()
{
	for (const rail &one : rails)
		pier_mr_dereg(one.slots_mr);
	rails.clear();
}

void connection::fail_all(nixl_status_t status)
{
	std::vector<request *> failed;

	end_channels();
	count_lost_notices();
	drop_rails();
	failed.swap(active);
	waiting.clear();
	repeated.clear();
	outbox.clear();
	slots_done = slots_filled;
	for (request *one : failed) {
		bool is_released = one->is_released;

		one->status = status;
		if (is_released)
			delete one;
	}
	progressed.notify_all();
}

/* What has completed is done, although nobody has collected it yet. */
void connection::hang_up()
{
	for (rail &one : rails)
		collect_pieces(one);
	fail_all(NIXL_ERR_REMOTE_DISCONNECT);
}

/* Rails that work, beside this one. */
size_t connection::count_others(const rail &of) const
{
	return (size_t)std::ranges::count_if(rails, [&](const rail &one) {
		return one.channel && &one != &of;
	});
}

void connection::lose_rail(size_t index, int error)
{
	fail_rail(index, error,
		  error == -ECONNRESET ? "it ended at the peer" : pier_error_message());
}

/*
 * What was in flight waits for settle_rail(). Requests that were released need not be
 * repeated.
 */
void connection::fail_rail(size_t index, int error, const std::string &cause)
{
	rail &of = rails[index];
	struct pier_channel_failure failure;
	size_t left = count_others(of);

	/* Requests behind the first that fails are flushed. */
	if (pier_channel_error(of.channel, &failure, sizeof(failure)))
		error = failure.first.error;
	if (left == 0) {
		report_line("agent \"%s\": %s failed, and no rail is left: %s",
			    agent.c_str(), of.name.c_str(), cause.c_str());
		fail_all(status_of(error));
		return;
	}
	counted.rails++;
	report_line("agent \"%s\": rail %zu (%s) failed, and %zu others continue: %s",
		    agent.c_str(), index, of.name.c_str(), left, cause.c_str());
	end_rail(index, 0);
	of.channel = nullptr;
	/* The time of a piece covers the peer's answer, too. */
	if (of.pieces.empty())
		of.since = clock_now();
	std::erase_if(of.pieces, [](const piece &one) { return !one.bytes.owner; });
	drop_released(of);
}

/* The data of a lost rail. */
void connection::drop_released(rail &of)
{
	std::vector<request *> released;

	std::erase_if(of.pieces, [&](const piece &one) {
		if (one.bytes.owner->is_released)
			released.push_back(one.bytes.owner);
		return one.bytes.owner->is_released;
	});
	for (request *one : released) {
		one->in_flight--;
		finish_if_done(*one);
	}
}

/* Writes of a lost rail must not arrive after their memory has got another use. */
void connection::settle_rail(size_t index, uint64_t received)
{
	rail &of = rails[index];

	if (of.is_settled)
		return;
	of.is_settled = true;
	for (const piece &one : of.pieces)
		repeated.push_back(one.bytes);
	of.pieces.clear();
	if (index == notice_rail)
		move_notices(received);
}

/*
 * Messages that the peer has received were delivered, also those whose completion was not
 * collected here. One that had completed and was not received is lost.
 */
void connection::move_notices(uint64_t received)
{
	/* The record may be older than the use of this rail. */
	received = std::max<uint64_t>(received, first_slot);
	if (received < slots_done || received > slots_posted) {
		report_line("agent \"%s\": a notification was lost with rail %zu",
			    agent.c_str(), notice_rail);
		fail_all(NIXL_ERR_REMOTE_DISCONNECT);
		return;
	}
	while (slots_done < received)
		finish_message();
	slots_posted = first_slot = slots_done;
	notice_rail = 0;
	while (!rails[notice_rail].channel)
		notice_rail++;
}

int connection::set_up_rails(const agent_address &peer, const device_list &devices)
{
	int error;

	for (const channel_end &end : ends) {
		auto found = std::find(peer.devices.begin(), peer.devices.end(),
				       end.peer_device);

		if (found == peer.devices.end())
			return -EBADMSG;
		rails.emplace_back();
		rails.back().channel = end.channel;
		rails.back().name = devices.all[end.device].name;
		rails.back().device = end.device;
		rails.back().peer_device = (uint32_t)(found - peer.devices.begin());
		rails.back().since = clock_now();
		rails.back().chunk = std::min(chunk_max, end.max_message);
		error = pier_mr_reg(devices.all[end.device].pd, slots.data(),
				    slots.size(), PIER_ACCESS_LOCAL_READ,
				    &rails.back().slots_mr);
		if (error)
			return error;
	}
	return 0;
}

int connection::begin(std::vector<channel_end> &connected, owned_fd &&stream,
		      const agent_address &peer, const device_list &devices,
		      driver &by)
{
	std::lock_guard<std::mutex> guard(lock);
	int error;

	if (over)
		return 1;
	ends.swap(connected);
	socket = std::move(stream);
	error = set_up_rails(peer, devices);
	if (error) {
		/* Nobody may post on them until fail() is called. */
		drop_rails();
		return error;
	}
	/* What was posted before the peer was removed begins only now. */
	if (is_closing)
		closes_at = std::max(closes_at, clock_now() + finish_time);
	driven_by = &by;
	error = by.add_end(shared_from_this());
	if (error)
		fail_all(status_of(error));
	else
		make_progress();
	return 1;
}

void connection::fail(nixl_status_t status)
{
	std::lock_guard<std::mutex> guard(lock);

	if (!over)
		fail_all(status);
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
	of.is_released = of.notice_queued = of.notice_sent = false;
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
	start_deadline();
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

/* Each step may find that the connection is broken, and leaves no rails then. */
void connection::make_progress()
{
	for (size_t i = 0; i < rails.size(); i++)
		collect_rail(i);
	post_pieces();
	post_notices();
	if (is_closing && !over && (!is_busy(nullptr) || clock_now() > closes_at))
		fail_all(NIXL_ERR_CANCELED);
	progressed.notify_all();
}

bool connection::is_busy(const local_memory *memory) const
{
	if (!memory)
		return !active.empty() || !outbox.empty() || slots_done < slots_filled;
	return std::ranges::any_of(active,
				   [&](const request *one) { return one->uses(memory); });
}

void connection::close_later(time_point end)
{
	std::lock_guard<std::mutex> guard(lock);

	closes_at = end;
	is_closing = true;
	/* The agent is still being called, and nothing waits for it. */
	if (!over && ends.empty() && !is_busy(nullptr))
		fail_all(NIXL_ERR_CANCELED);
	if (!over && driven_by)
		driven_by->look_at(*this);
}

/* The driver makes progress meanwhile. */
void connection::finish(const local_memory *memory, time_point end)
{
	std::unique_lock<std::mutex> guard(lock);

	if (!over)
		make_progress();
	if (progressed.wait_until(guard, end,
				  [&] { return over || (memory && !is_busy(memory)); }))
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

	while (has_posted && !over) {
		has_posted = false;
		for (size_t i = 0; i < rails.size(); i++)
			has_posted |= post_piece(i);
	}
}

/*
 * Returns false if there is nothing to post, or the rail has no room or is lost. What
 * lost rails had in flight goes first.
 */
bool connection::post_piece(size_t index)
{
	rail &on = rails[index];
	bool is_repeated = !repeated.empty();
	piece one = {};
	int error;

	if (!on.channel || (!is_repeated && waiting.empty()))
		return false;

	request &of = *(is_repeated ? repeated.front().owner : waiting.front());
	range at = is_repeated ? repeated.front()
			       : range{ &of, of.next, of.offset, UINT64_MAX };

	if (is_repeated || !of.is_posted()) {
		if (on.data_count == pieces_max ||
		    pier_channel_send_room(on.channel) < piece_requests)
			return false;
		one.bytes = at;
		error = post_batch(on, at, one.work);
		if (error && error != -EAGAIN)
			fail_rail(index, error, pier_error_message());
		if (error)
			return false;
		one.bytes.length -= at.length;
		on.push(one);
		of.in_flight++;
	}
	if (!is_repeated) {
		of.next = at.next;
		of.offset = at.offset;
		if (of.is_posted())
			finish_posting(of);
	} else if (at.length > 0) {
		repeated.front() = at;
	} else {
		repeated.pop_front();
		of.in_flight--;
	}
	return true;
}

/* The first request that waits has been posted. */
void connection::finish_posting(request &of)
{
	waiting.pop_front();
	if (of.has_notice && rails.size() == 1 && of.operation == NIXL_WRITE) {
		of.written.devices = flush_set::bit(rails[0].peer_device);
		queue_notice(&of, of.message);
	}
	finish_if_done(of);
}

/* Take up to piece_requests requests, and up to a chunk of bytes, from the range. */
int connection::post_batch(rail &on, range &of, struct pier_work &ret_work)
{
	const std::vector<request::span> &spans = of.owner->spans;
	nixl_xfer_op_t operation = of.owner->operation;
	struct pier_write_pair writes[piece_requests];
	struct pier_read_pair reads[piece_requests];
	uint32_t count = 0, bytes = 0;

	while (count < piece_requests && bytes < on.chunk && of.length > 0 &&
	       of.next < spans.size()) {
		const request::span &span = spans[of.next];
		const memory_part &here = find_part(span.local->regions[on.device].parts,
						    span.local_offset + of.offset);
		const memory_part &there = find_part(span.remote->regions[on.peer_device],
						     span.remote_offset + of.offset);
		uint64_t skipped = span.local_offset + of.offset - here.offset;
		uint64_t beyond = span.remote_offset + of.offset - there.offset;
		uint32_t length = (uint32_t)std::min({ span.length - of.offset,
						       here.length - skipped,
						       there.length - beyond, of.length,
						       (uint64_t)(on.chunk - bytes) });
		pier_remote remote = { there.addr + beyond, length, there.key };

		if (operation == NIXL_WRITE)
			writes[count] = { { here.addr + skipped, length, here.key },
					  remote };
		else
			reads[count] = { { here.addr + skipped, length, here.key },
					 remote };
		count++;
		bytes += length;
		of.offset += length;
		of.length -= length;
		if (of.offset == span.length) {
			of.next++;
			of.offset = 0;
		}
	}
	return operation == NIXL_WRITE
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
	start_deadline();
	return over ? NIXL_ERR_REMOTE_DISCONNECT : NIXL_SUCCESS;
}

/* A driver that waits for a completion does not notice that none comes. */
void connection::start_deadline()
{
	if (!over && !is_timed && is_busy(nullptr))
		driven_by->look_at(*this);
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
	bool has_posted = true;

	if (rails.empty())
		return;
	while (!outbox.empty() && slots_filled - slots_done < slots_max)
		fill_slot();
	while (has_posted && !over && slots_posted < slots_filled)
		has_posted = post_slot();
}

void connection::fill_slot()
{
	notice &of = outbox.front();
	size_t length = std::min<size_t>(of.bytes.size() - of.sent, PIER_NIXL_SLOT_SIZE);

	memcpy(slots.data() + slots_filled % slots_max * PIER_NIXL_SLOT_SIZE,
	       of.bytes.data() + of.sent, length);
	of.sent += length;
	messages[slots_filled++ % slots_max] = { length, of.owner,
						 of.sent == of.bytes.size() };
	if (of.sent == of.bytes.size())
		outbox.pop_front();
}

/* Returns false if the rail has no room, or is lost. */
bool connection::post_slot()
{
	rail &on = rails[notice_rail];
	size_t index = slots_posted % slots_max;
	const uint8_t *bytes = slots.data() + index * PIER_NIXL_SLOT_SIZE;
	struct pier_gather element;
	piece one = {};
	int error;

	if (!on.channel)
		return false;
	element = pier_mr_gather_unchecked(on.slots_mr, (uint64_t)(uintptr_t)bytes,
					   (uint32_t)messages[index].length);
	error = pier_channel_post_send(on.channel, &element, 1, &one.work);
	if (error && error != -EAGAIN)
		fail_rail(notice_rail, error, pier_error_message());
	if (error)
		return false;
	slots_posted++;
	on.push(one);
	return true;
}

/* Returns 1 if none is left, 0 if the next has not completed, or a negative errno. */
int connection::collect_pieces(rail &of)
{
	struct pier_result result;
	int error = of.channel ? 1 : 0;

	while (!of.pieces.empty() && error == 1) {
		error = pier_work_poll(of.channel, of.pieces.front().work, &result);
		if (error == 1 && result.error)
			error = result.error;
		if (error == 1)
			finish_piece(of, of.pop());
	}
	return error;
}

void connection::collect_rail(size_t index)
{
	int error = collect_pieces(rails[index]);

	if (error == 0)
		check_deadline(index);
	else if (error < 0)
		fail_rail(index, error, pier_error_message());
}

/*
 * Pieces complete in order, so the time of the first covers all of them, and every
 * request has a piece in flight or waits for one. Half of the time is enough for a rail
 * if others are left, which have the rest.
 */
void connection::check_deadline(size_t index)
{
	auto limit = std::chrono::milliseconds(chosen.timeout * 1000ull);
	rail &of = rails[index];
	bool is_waited_for = !of.pieces.empty() ||
			     (index == notice_rail && slots_done < slots_filled);

	if (of.channel && count_others(of) > 0)
		limit /= 2;
	if (of.is_settled || !is_waited_for || clock_now() - of.since <= limit)
		return;
	if (of.channel) {
		fail_rail(index, -EHOSTUNREACH,
			  "no request completed within " + std::to_string(limit.count()) +
				  " ms (PIER_NIXL_TIMEOUT)");
		return;
	}
	report_line("agent \"%s\": the peer did not answer that rail %zu had failed "
		    "within %u s (PIER_NIXL_TIMEOUT); everything outstanding was stopped",
		    agent.c_str(), index, chosen.timeout);
	fail_all(NIXL_ERR_REMOTE_DISCONNECT);
}

/* NICs whose pieces other rails repeat need no flush, and may not be able to. */
void connection::finish_piece(const rail &on, const piece &done)
{
	request *owner = done.bytes.owner;

	if (!owner) {
		finish_message();
		return;
	}
	owner->devices |= flush_set::bit(on.device);
	owner->written.devices |= flush_set::bit(on.peer_device);
	owner->in_flight--;
	finish_if_done(*owner);
}

void connection::finish_message()
{
	const slot &done = messages[slots_done++ % slots_max];

	if (!done.owner)
		return;
	done.owner->notice_sent = done.is_last;
	finish_if_done(*done.owner);
}

void connection::finish_if_done(request &of)
{
	if (!of.is_posted() || of.in_flight > 0)
		return;
	if (of.is_released) {
		end_request(of, NIXL_ERR_CANCELED);
		return;
	}
	if (of.has_notice && !of.notice_queued)
		queue_notice(&of, of.message);
	if (!of.has_notice || of.notice_sent)
		end_request(of, flush_device(of));
}

void connection::end_request(request &of, nixl_status_t status)
{
	bool is_released = of.is_released;

	std::erase(active, &of);
	if (status == NIXL_SUCCESS)
		measure(of);
	/* From now on it is the application's. */
	of.status = status;
	if (is_released)
		delete &of;
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
		mbits += end.channel ? end.speed : 0;
	if (!rate)
		rate = (mbits ? mbits : unknown_mbits) * 125;
	return latency_us + bytes * 1000 / rate;
}

/* A notification that has begun is sent to its end, since the peer waits for the rest. */
void connection::withdraw(request &of)
{
	of.next = of.spans.size();
	std::erase(waiting, &of);
	std::erase_if(outbox, [&](const notice &one) {
		return one.owner == &of && one.sent == 0;
	});
	for (notice &one : outbox)
		if (one.owner == &of)
			one.owner = nullptr;
	for (slot &one : messages)
		if (one.owner == &of)
			one.owner = nullptr;
	of.in_flight -= (uint32_t)std::erase_if(
		repeated, [&](const range &one) { return one.owner == &of; });
	for (rail &on : rails)
		if (!on.channel)
			of.in_flight -= (uint32_t)std::erase_if(
				on.pieces,
				[&](const piece &one) { return one.bytes.owner == &of; });
}

void connection::release(request *of)
{
	std::lock_guard<std::mutex> guard(lock);

	if (of->status != NIXL_IN_PROG) {
		delete of;
		return;
	}
	of->is_released = true;
	of->on = nullptr;
	withdraw(*of);
	finish_if_done(*of);
	progressed.notify_all();
}

} // namespace pier_nixl
