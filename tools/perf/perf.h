/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_PERF_PERF_H
#define PIER_TOOLS_PERF_PERF_H

#include <stdbool.h>
#include <stdint.h>

#include <pier/channel.h>

/*
 * `pier perf` runs as two processes: the client, which the user starts, and the server,
 * which the client starts on this host or through a remote shell. The client initiates
 * the requests; with --bidirectional the server does so too.
 */

enum {
	PERF_NAME_MAX = 64,
	PERF_DEVICES_MAX = 256, /* names, with "," between them */
	PERF_CHANNEL_MAX = 256,
	PERF_TEXT_MAX = 128,
	PERF_REASON_MAX = 1024,
	PERF_RAILS_MAX = 4,
	PERF_LANES_MAX = 128, /* channels, on all rails */
	PERF_THREADS_MAX = 64,
	PERF_DEPTH_MAX = 4096,
	PERF_BATCH_MAX = 32, /* requests that are posted at once */
	PERF_INLINE_MAX = 4096,
	PERF_SIZES_MAX = 64,
	PERF_ATOMIC_SIZE = 8,
	PERF_DURATION_MAX_MS = 86400000,
};

/* A server allocates at most this much for its client. */
#define PERF_SIZE_MAX	UINT64_C(0x40000000)
#define PERF_MEMORY_MAX UINT64_C(0x100000000)

/* The client's options that apply to both sides. */
struct perf_settings {
	enum pier_opcode opcode;
	bool latency;	      /* one message to and fro; otherwise many at once */
	bool both;	      /* the server initiates requests, too */
	bool events;	      /* waits sleep */
	bool staged;	      /* copy through host memory at both ends */
	uint64_t slot;	      /* bytes of the longest message */
	uint64_t iterations;  /* messages of each channel; 0: by time */
	uint32_t duration_ms; /* of each size, without iterations */
	uint32_t warm_up_ms;  /* of each size */
	uint32_t depth;	      /* requests of a channel in flight */
	uint32_t rx_depth;    /* receives of a channel */
	uint32_t batch;	      /* requests that are posted at once */
	uint32_t inline_size; /* bytes that are copied into a request */
	uint32_t rails;	      /* pairs of NICs, at most */
	uint32_t channels;    /* on each rail */
	uint32_t threads;     /* of each side */
	uint32_t timeout_ms;  /* without a sign of life from the other side */
	char channel[PERF_CHANNEL_MAX]; /* for pier_channel_attr_parse() */
};

/* The memory and NICs requested for one side; "": choose. */
struct perf_place {
	char memory[PERF_NAME_MAX];
	char device[PERF_DEVICES_MAX];
};

/* The devices, memory and system of one side. "": unknown, or there is none. */
struct perf_report {
	char device[PERF_DEVICES_MAX];
	char driver[PERF_TEXT_MAX];
	char firmware[PERF_TEXT_MAX];
	char link[PERF_TEXT_MAX];
	char memory[PERF_NAME_MAX];
	char memory_kind[PERF_TEXT_MAX];
	char memory_driver[PERF_TEXT_MAX];
	char path[PERF_NAME_MAX];
	char mapping[PERF_NAME_MAX];
	char reason[PERF_REASON_MAX]; /* of pier_mr_reason() */
	char host[PERF_TEXT_MAX];
	char kernel[PERF_TEXT_MAX];
	char processor[PERF_TEXT_MAX];
	char version[PERF_TEXT_MAX];	     /* of pier */
	bool mapped;			     /* the CPU can read the memory */
	uint64_t register_ns, deregister_ns; /* all memory, with the first NIC */
	uint64_t registered;		     /* bytes */
};

/* From the slot of one channel to that of the next: whole pages. */
static inline uint64_t perf_stride(const struct perf_settings *settings)
{
	return (settings->slot + 4095) / 4096 * 4096;
}

/* The larger of the two allocations for one channel. */
static inline uint64_t perf_lane_size(const struct perf_settings *settings)
{
	uint64_t staged = (uint64_t)settings->depth + settings->rx_depth + 1;

	return perf_stride(settings) * (settings->staged ? staged : 2);
}

static inline bool is_atomic(enum pier_opcode opcode)
{
	return opcode == PIER_OP_FETCH_ADD || opcode == PIER_OP_COMPARE_SWAP;
}

/* Both sides send in turn, and each waits for the other's message. */
static inline bool is_ping_pong(const struct perf_settings *settings)
{
	return settings->latency &&
	       (settings->opcode == PIER_OP_WRITE || settings->opcode == PIER_OP_SEND);
}

#endif
