/* SPDX-License-Identifier: BSD-3-Clause */
#include <stddef.h>

#include <pier/error.h>

#include "message.h"

const struct control_protocol perf_protocol = {
	.command = "perf",
	.name = "measurement",
	.task = "the measurement",
	.magic = { 0x89, 'P', 'I', 'E', 'R', 'P', 'F', '\n' },
	.version = PERF_PROTOCOL_VERSION,
};

#define PASS_STRING(wire, array) pass_string(wire, array, sizeof(array))

typedef void pass_message(struct wire *wire, void *message);

static int send_message(struct control *control, uint32_t type, pass_message *pass,
			void *message)
{
	struct wire_writer writer = { .length = 0 };

	pass(&(struct wire){ .writer = &writer }, message);
	return control_send(control, type, &writer);
}

/* what: "report" */
static int read_message(struct control *control, const struct frame *frame, uint32_t type,
			pass_message *pass, void *ret_message, const char *what)
{
	struct wire wire = { .reader = read_frame(frame) };

	pass(&wire, ret_message);
	return frame->type == type && wire_complete(&wire.reader)
		       ? 0
		       : control_fail_invalid(control, what);
}

static int receive_message(struct control *control, uint32_t type, pass_message *pass,
			   void *ret_message, const char *what)
{
	struct frame frame;

	return control_expect(control, type, &frame) < 0
		       ? -1
		       : read_message(control, &frame, type, pass, ret_message, what);
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

static void pass_request(struct wire *wire, void *message)
{
	struct perf_request *request = message;
	struct perf_settings *settings = &request->settings;
	bool *const flags[] = { &settings->latency, &settings->both, &settings->events,
				&settings->staged };
	uint32_t opcode = settings->opcode;

	pass_u32(wire, &opcode);
	settings->opcode = (enum pier_opcode)opcode;
	pass_bools(wire, flags, sizeof(flags) / sizeof(flags[0]));
	pass_u64(wire, &settings->slot);
	pass_u64(wire, &settings->iterations);
	pass_u32(wire, &settings->duration_ms);
	pass_u32(wire, &settings->warm_up_ms);
	pass_u32(wire, &settings->depth);
	pass_u32(wire, &settings->rx_depth);
	pass_u32(wire, &settings->batch);
	pass_u32(wire, &settings->inline_size);
	pass_u32(wire, &settings->rails);
	pass_u32(wire, &settings->channels);
	pass_u32(wire, &settings->threads);
	pass_u32(wire, &settings->timeout_ms);
	PASS_STRING(wire, settings->channel);
	PASS_STRING(wire, request->place.memory);
	PASS_STRING(wire, request->place.device);
	require_value(wire, settings_valid(settings));
}

int send_perf_request(struct control *control, struct perf_request *request)
{
	return send_message(control, FRAME_PERF_REQUEST, pass_request, request);
}

int receive_perf_request(struct control *control, struct perf_request *ret_request)
{
	return receive_message(control, FRAME_PERF_REQUEST, pass_request, ret_request,
			       "request");
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

#define TEXT(name, member)                                        \
	{                                                         \
		name, offsetof(struct perf_report, member),       \
			sizeof(((struct perf_report *)0)->member) \
	}

/* In the order of the frame. */
const struct perf_report_text perf_report_texts[PERF_REPORT_TEXTS] = {
	TEXT("device", device),
	TEXT("driver", driver),
	TEXT("firmware", firmware),
	TEXT("link", link),
	TEXT("memory", memory),
	TEXT("memory_kind", memory_kind),
	TEXT("memory_driver", memory_driver),
	TEXT("path", path),
	TEXT("mapping", mapping),
	TEXT("reason", reason),
	TEXT("host", host),
	TEXT("kernel", kernel),
	TEXT("processor", processor),
	TEXT("pier", version),
};

static void pass_report(struct wire *wire, void *message)
{
	struct perf_report *report = message;
	uint32_t mapped = report->mapped;

	for (size_t i = 0; i < PERF_REPORT_TEXTS; i++)
		pass_string(wire, (char *)report + perf_report_texts[i].offset,
			    perf_report_texts[i].size);
	pass_u32(wire, &mapped);
	report->mapped = mapped;
	pass_u64(wire, &report->register_ns);
	pass_u64(wire, &report->deregister_ns);
	pass_u64(wire, &report->registered);
}

int send_perf_report(struct control *control, struct perf_report *report)
{
	return send_message(control, FRAME_PERF_REPORT, pass_report, report);
}

int receive_perf_report(struct control *control, struct perf_report *ret_report)
{
	return receive_message(control, FRAME_PERF_REPORT, pass_report, ret_report,
			       "report");
}

static void pass_size(struct wire *wire, void *message)
{
	pass_u64(wire, message);
}

int send_step(struct control *control, uint64_t size)
{
	return send_message(control, FRAME_PERF_STEP, pass_size, &size);
}

int read_step(struct control *control, const struct frame *frame, uint64_t slot,
	      uint64_t *ret_size)
{
	if (read_message(control, frame, FRAME_PERF_STEP, pass_size, ret_size, "size") <
	    0)
		return -1;
	return *ret_size >= 1 && *ret_size <= slot
		       ? 0
		       : control_fail_invalid(control, "size");
}

static void pass_figures(struct wire *wire, void *message)
{
	struct perf_figures *figures = message;

	for (uint32_t i = 0; i < figures->lanes; i++)
		pass_u64(wire, &figures->posted[i]);
	pass_u64(wire, &figures->messages);
	pass_u64(wire, &figures->elapsed_ns);
	pass_u64(wire, &figures->cpu_ns);
}

int send_figures(struct control *control, uint32_t type, struct perf_figures *figures)
{
	return send_message(control, type, pass_figures, figures);
}

int read_figures(struct control *control, const struct frame *frame, uint32_t type,
		 uint32_t lanes, struct perf_figures *ret_figures)
{
	*ret_figures = (struct perf_figures){ .lanes = lanes };
	return read_message(control, frame, type, pass_figures, ret_figures, "figure");
}
