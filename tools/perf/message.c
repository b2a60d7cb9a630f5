/* SPDX-License-Identifier: BSD-3-Clause */
#include <stddef.h>
#include <string.h>

#include <pier/error.h>

#include "message.h"

const struct control_protocol perf_protocol = {
	.command = "perf",
	.name = "measurement",
	.task = "the measurement",
	.magic = { 0x89, 'P', 'I', 'E', 'R', 'P', 'F', '\n' },
	.version = PERF_PROTOCOL_VERSION,
};

enum {
	FLAG_LATENCY = 1,
	FLAG_BOTH = 2,
	FLAG_EVENTS = 4,
	FLAG_STAGED = 8,
	FLAGS = 15,
};

int send_perf_request(struct control *control, const struct perf_request *request)
{
	const struct perf_settings *settings = &request->settings;
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, settings->opcode);
	put_u32(&writer, (settings->latency ? FLAG_LATENCY : 0) |
				 (settings->both ? FLAG_BOTH : 0) |
				 (settings->events ? FLAG_EVENTS : 0) |
				 (settings->staged ? FLAG_STAGED : 0));
	put_u64(&writer, settings->slot);
	put_u64(&writer, settings->iterations);
	put_u32(&writer, settings->duration_ms);
	put_u32(&writer, settings->warm_up_ms);
	put_u32(&writer, settings->depth);
	put_u32(&writer, settings->rx_depth);
	put_u32(&writer, settings->batch);
	put_u32(&writer, settings->inline_size);
	put_u32(&writer, settings->rails);
	put_u32(&writer, settings->channels);
	put_u32(&writer, settings->threads);
	put_u32(&writer, settings->timeout_ms);
	put_string(&writer, settings->channel);
	put_string(&writer, request->place.memory);
	put_string(&writer, request->place.device);
	return control_send(control, FRAME_PERF_REQUEST, &writer);
}

static bool counts_valid(const struct perf_settings *settings)
{
	return settings->depth >= 1 && settings->depth <= PERF_DEPTH_MAX &&
	       settings->rx_depth >= 1 && settings->rx_depth <= PERF_DEPTH_MAX &&
	       settings->batch >= 1 && settings->batch <= PERF_BATCH_MAX &&
	       settings->batch <= settings->depth &&
	       settings->inline_size <= PERF_INLINE_MAX && settings->rails >= 1 &&
	       settings->rails <= PERF_RAILS_MAX && settings->channels >= 1 &&
	       settings->channels <= PERF_LANES_MAX / settings->rails &&
	       settings->threads >= 1 && settings->threads <= PERF_THREADS_MAX;
}

static bool settings_valid(const struct perf_settings *settings)
{
	enum pier_opcode opcode = settings->opcode;

	if (opcode != PIER_OP_WRITE && opcode != PIER_OP_READ && opcode != PIER_OP_SEND &&
	    !is_atomic(opcode))
		return false;
	if (settings->latency && (settings->both || settings->channels != 1 ||
				  settings->rails != 1 || settings->threads != 1))
		return false;
	if (settings->staged && (opcode != PIER_OP_SEND || settings->batch != 1))
		return false;
	if (is_atomic(opcode) && settings->slot != PERF_ATOMIC_SIZE)
		return false;
	return settings->slot >= 1 && settings->slot <= PERF_SIZE_MAX &&
	       counts_valid(settings) &&
	       perf_lane_size(settings) <=
		       PERF_MEMORY_MAX / settings->rails / settings->channels &&
	       settings->duration_ms <= PERF_DURATION_MAX_MS &&
	       settings->warm_up_ms <= PERF_DURATION_MAX_MS && settings->timeout_ms > 0 &&
	       settings->timeout_ms <= INT32_MAX;
}

static void get_settings(struct wire_reader *reader, struct perf_settings *ret_settings)
{
	uint32_t flags;

	ret_settings->opcode = (enum pier_opcode)get_u32(reader);
	flags = get_u32(reader);
	ret_settings->latency = flags & FLAG_LATENCY;
	ret_settings->both = flags & FLAG_BOTH;
	ret_settings->events = flags & FLAG_EVENTS;
	ret_settings->staged = flags & FLAG_STAGED;
	ret_settings->slot = get_u64(reader);
	ret_settings->iterations = get_u64(reader);
	ret_settings->duration_ms = get_u32(reader);
	ret_settings->warm_up_ms = get_u32(reader);
	ret_settings->depth = get_u32(reader);
	ret_settings->rx_depth = get_u32(reader);
	ret_settings->batch = get_u32(reader);
	ret_settings->inline_size = get_u32(reader);
	ret_settings->rails = get_u32(reader);
	ret_settings->channels = get_u32(reader);
	ret_settings->threads = get_u32(reader);
	ret_settings->timeout_ms = get_u32(reader);
	get_string(reader, ret_settings->channel, sizeof(ret_settings->channel));
	if (flags > FLAGS || !settings_valid(ret_settings))
		reader->bad = true;
}

int receive_perf_request(struct control *control, struct perf_request *ret_request)
{
	struct perf_place *place = &ret_request->place;
	struct wire_reader reader;
	struct frame frame;

	if (control_expect(control, FRAME_PERF_REQUEST, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	get_settings(&reader, &ret_request->settings);
	get_string(&reader, place->memory, sizeof(place->memory));
	get_string(&reader, place->device, sizeof(place->device));
	return wire_complete(&reader) ? 0 : control_fail_invalid(control, "request");
}

int send_lane(struct control *control, const struct lane_message *lane)
{
	uint8_t endpoint[PIER_ENDPOINT_WIRE_MAX], remote[PIER_REMOTE_WIRE_SIZE];
	int length = pier_endpoint_pack(&lane->endpoint, endpoint, sizeof(endpoint));
	struct wire_writer writer = { .length = 0 };

	if (length < 0)
		return fail_pier(control->failure, EXIT_DEVICE);
	pier_remote_pack(&lane->remote, remote);
	put_bytes(&writer, remote, sizeof(remote));
	put_bytes(&writer, endpoint, (size_t)length);
	return control_send(control, FRAME_PERF_LANE, &writer);
}

int receive_lane(struct control *control, struct lane_message *ret_lane)
{
	const uint8_t *remote;
	struct wire_reader reader;
	struct frame frame;

	if (control_expect(control, FRAME_PERF_LANE, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	remote = get_bytes(&reader, PIER_REMOTE_WIRE_SIZE);
	if (!remote)
		return control_fail_invalid(control, "description of a channel");
	if (pier_remote_unpack(remote, PIER_REMOTE_WIRE_SIZE, &ret_lane->remote) < 0 ||
	    pier_endpoint_unpack(reader.data, reader.left, &ret_lane->endpoint) < 0)
		return fail_pier(control->failure, EXIT_PEER);
	return 0;
}

/* The strings of a report, in the order of the frame. */
static const struct {
	size_t offset, size;
} report_strings[] = {
#define REPORT_STRING(member)                                     \
	{                                                         \
		offsetof(struct perf_report, member),             \
			sizeof(((struct perf_report *)0)->member) \
	}
	REPORT_STRING(device),	      REPORT_STRING(driver),  REPORT_STRING(firmware),
	REPORT_STRING(link),	      REPORT_STRING(memory),  REPORT_STRING(memory_kind),
	REPORT_STRING(memory_driver), REPORT_STRING(path),    REPORT_STRING(mapping),
	REPORT_STRING(reason),	      REPORT_STRING(host),    REPORT_STRING(kernel),
	REPORT_STRING(processor),     REPORT_STRING(version),
#undef REPORT_STRING
};

enum {
	REPORT_STRINGS = sizeof(report_strings) / sizeof(report_strings[0])
};

int send_perf_report(struct control *control, const struct perf_report *report)
{
	struct wire_writer writer = { .length = 0 };

	for (size_t i = 0; i < REPORT_STRINGS; i++)
		put_string(&writer, (const char *)report + report_strings[i].offset);
	put_u32(&writer, report->mapped);
	put_u64(&writer, report->register_ns);
	put_u64(&writer, report->deregister_ns);
	put_u64(&writer, report->registered);
	return control_send(control, FRAME_PERF_REPORT, &writer);
}

int receive_perf_report(struct control *control, struct perf_report *ret_report)
{
	struct wire_reader reader;
	struct frame frame;

	if (control_expect(control, FRAME_PERF_REPORT, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	for (size_t i = 0; i < REPORT_STRINGS; i++)
		get_string(&reader, (char *)ret_report + report_strings[i].offset,
			   report_strings[i].size);
	ret_report->mapped = get_u32(&reader);
	ret_report->register_ns = get_u64(&reader);
	ret_report->deregister_ns = get_u64(&reader);
	ret_report->registered = get_u64(&reader);
	return wire_complete(&reader) ? 0 : control_fail_invalid(control, "report");
}

int send_step(struct control *control, uint64_t size)
{
	struct wire_writer writer = { .length = 0 };

	put_u64(&writer, size);
	return control_send(control, FRAME_PERF_STEP, &writer);
}

int read_step(struct control *control, const struct frame *frame, uint64_t slot,
	      uint64_t *ret_size)
{
	struct wire_reader reader = read_frame(frame);

	*ret_size = get_u64(&reader);
	if (frame->type != FRAME_PERF_STEP || !wire_complete(&reader) || *ret_size < 1 ||
	    *ret_size > slot)
		return control_fail_invalid(control, "size");
	return 0;
}

int send_figures(struct control *control, uint32_t type,
		 const struct perf_figures *figures, uint32_t lanes)
{
	struct wire_writer writer = { .length = 0 };

	for (uint32_t i = 0; i < lanes; i++)
		put_u64(&writer, figures->posted[i]);
	put_u64(&writer, figures->messages);
	put_u64(&writer, figures->elapsed_ns);
	put_u64(&writer, figures->cpu_ns);
	return control_send(control, type, &writer);
}

int read_figures(struct control *control, const struct frame *frame, uint32_t type,
		 uint32_t lanes, struct perf_figures *ret_figures)
{
	struct wire_reader reader = read_frame(frame);

	memset(ret_figures, 0, sizeof(*ret_figures));
	for (uint32_t i = 0; i < lanes; i++)
		ret_figures->posted[i] = get_u64(&reader);
	ret_figures->messages = get_u64(&reader);
	ret_figures->elapsed_ns = get_u64(&reader);
	ret_figures->cpu_ns = get_u64(&reader);
	return frame->type == type && wire_complete(&reader)
		       ? 0
		       : control_fail_invalid(control, "figure");
}
