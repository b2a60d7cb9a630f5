/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_MESSAGE_H
#define PIER_TOOLS_PERF_MESSAGE_H

#include <pier/endpoint.h>
#include <pier/remote.h>

#include "perf.h"
#include "remote/control.h"

enum {
	PERF_PROTOCOL_VERSION = 1
};

extern const struct control_protocol perf_protocol;

enum perf_frame {
	FRAME_PERF_REQUEST = 32, /* client: settings, and the server's place */
	FRAME_PERF_LANE = 33,	 /* both, for each lane: endpoint and memory */
	FRAME_PERF_REPORT = 34,	 /* both: struct perf_report */
	FRAME_PERF_STEP = 35,	 /* client: a size; server: it is ready for that */
	FRAME_PERF_STOP = 36,	 /* client: all its requests are complete */
	FRAME_PERF_FIGURES = 37, /* server: its figures; its bytes are right */
	FRAME_PERF_END = 38,	 /* client: no more sizes */
};

/* The contents of the frames. Receiving fails on any value out of its range. */

struct perf_request {
	struct perf_settings settings;
	struct perf_place place;
};

struct lane_message {
	struct pier_endpoint endpoint;
	struct pier_remote remote; /* all memory of the side */
};

/* The strings of struct perf_report, and their names in the JSON. */
enum {
	PERF_REPORT_TEXTS = 14
};
extern const struct perf_report_text {
	const char *name;
	size_t offset, size;
} perf_report_texts[PERF_REPORT_TEXTS];

/* The figures of one side for one size. */
struct perf_figures {
	uint32_t lanes;
	uint64_t posted[PERF_LANES_MAX]; /* messages of each lane, with the warm-up */
	uint64_t messages;		 /* after the warm-up, on all lanes */
	uint64_t elapsed_ns;		 /* for these; 0: none were sent */
	uint64_t cpu_ns;		 /* of the process, with the warm-up */
};

int send_perf_request(struct control *control, struct perf_request *request);
int receive_perf_request(struct control *control, struct perf_request *ret_request);
int send_lane(struct control *control, const struct lane_message *lane);
int receive_lane(struct control *control, struct lane_message *ret_lane);
int send_perf_report(struct control *control, struct perf_report *report);
int receive_perf_report(struct control *control, struct perf_report *ret_report);
int send_step(struct control *control, uint64_t size);
/* Of a frame that has arrived. */
int read_step(struct control *control, const struct frame *frame, uint64_t slot,
	      uint64_t *ret_size);
/* Both FRAME_PERF_STOP and FRAME_PERF_FIGURES. */
int send_figures(struct control *control, uint32_t type, struct perf_figures *figures);
int read_figures(struct control *control, const struct frame *frame, uint32_t type,
		 uint32_t lanes, struct perf_figures *ret_figures);

#endif
