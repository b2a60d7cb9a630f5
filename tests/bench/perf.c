/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two processes and one channel between them, as a benchmark:
 *
 *	pier-perf DEVICE MEMORY write_bw SIZE COUNT [DEPTH]   prints bytes per second
 *	pier-perf DEVICE MEMORY read_bw SIZE COUNT [DEPTH]
 *	pier-perf DEVICE MEMORY send_bw SIZE COUNT [DEPTH]
 *	pier-perf DEVICE MEMORY write_bw_polled SIZE COUNT [DEPTH]
 *	pier-perf DEVICE MEMORY write_lat SIZE COUNT          prints seconds, one way
 *	pier-perf DEVICE MEMORY write_lat_typical SIZE COUNT  the median, not the average
 *	pier-perf - - memcpy SIZE COUNT                       prints bytes per second
 *
 * The first three keep DEPTH requests outstanding, posted in batches, and their
 * clock stops when the last one has completed at the initiator, which is when the
 * target has it. write_lat bounces one write to and fro, each side polling the memory
 * that the other writes, and prints half of a round trip: as ucx_perftest's ucp_put_bw
 * and ucp_put_lat do. The first three wait as channels do unless told otherwise, which
 * is to sleep after a while; the others poll all the time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <pier/pier.h>
#include <pier/inline.h>

#define PROGRAM "pier-perf"
#include "bench.h"
#include "pair.h"

struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channel;
	struct pier_remote remote; /* the peer's buffer */
	volatile uint8_t *memory;
	int socket;
};

struct plan {
	const char *device, *memory;
	size_t size;
	uint64_t count;
	uint32_t depth;
	enum pier_opcode opcode;
	int bounces, typical, polls;
};

enum {
	MAX_BATCH = 32,
	RECEIVES = 512,
	WARM_UP = 2,
	SMALL = 64, /* bytes that are copied into the request (inline) */
};

static void open_side(struct side *side, const struct plan *plan, int fd)
{
	struct pier_channel_attr attr;
	uint8_t mine[PIER_REMOTE_WIRE_SIZE], theirs[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	void *memory = NULL;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = plan->depth;
	attr.max_recv_wr = plan->opcode == PIER_OP_SEND ? RECEIVES : 1;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.max_inline = plan->size <= SMALL ? SMALL : 0;
	attr.waiting = plan->polls ? PIER_WAIT_POLL : PIER_WAIT_ADAPTIVE;
	side->socket = fd;
	if (pier_open_device(plan->device, &side->device) ||
	    pier_alloc_pd(side->device, &side->pd))
		die("device");
	if (pier_buffer_alloc(plan->memory, 2 * plan->size, &side->buffer) ||
	    pier_buffer_map(side->buffer, &memory))
		die("memory");
	/* As ucx_perftest's memory, if the kernel has huge pages. */
	if (strcmp(plan->memory, "host") == 0)
		madvise(memory, 2 * plan->size, MADV_HUGEPAGE);
	side->memory = memory;
	if (pier_reg_buffer_mr(side->pd, side->buffer, 0, 2 * plan->size,
			       PIER_ACCESS_SHARED, PIER_POLICY_ANY, &side->mr) ||
	    pier_mr_remote(side->mr, &remote))
		die("region");
	if (pier_channel_create(side->pd, &attr, &side->channel) ||
	    pier_channel_handshake(side->channel, fd, fd, 10000))
		die("channel");
	pier_remote_pack(&remote, mine);
	exchange(fd, mine, theirs, sizeof(mine));
	if (pier_remote_unpack(theirs, sizeof(theirs), &side->remote))
		die("remote region");
}

static void close_side(struct side *side)
{
	if (pier_channel_destroy(side->channel) || pier_dereg_mr(side->mr) ||
	    pier_buffer_free(side->buffer) || pier_dealloc_pd(side->pd) ||
	    pier_close_device(side->device))
		die("closing");
}

static void wait_for(struct side *side, struct pier_work work)
{
	if (pier_work_wait(side->channel, work, PIER_TIMEOUT_DEFAULT, NULL))
		die("write");
}

/* Element and target of a write from this side's second half into the peer's first. */
static void aim(struct side *side, size_t size, struct pier_gather *ret_source,
		struct pier_remote *ret_target)
{
	uint64_t source = pier_buffer_address(side->buffer) + size;

	if (pier_mr_gather(side->mr, source, size, ret_source) ||
	    pier_remote_sub(&side->remote, 0, size, ret_target))
		die("element");
}

/* Consecutive sources here, all into the same target. */
static int post_batch(struct side *side, const struct plan *plan, uint32_t count,
		      struct pier_work *ret_work)
{
	struct pier_request requests[MAX_BATCH] = { 0 };
	struct pier_gather source;
	struct pier_remote target;

	aim(side, plan->size, &source, &target);
	for (uint32_t i = 0; i < count; i++) {
		requests[i].opcode = plan->opcode;
		requests[i].gather = &source;
		requests[i].num_sge = 1;
		requests[i].remote = &target;
	}
	return pier_post_batch(side->channel, requests, count, ret_work);
}

/*
 * As soon as half of the depth is free, a batch of that size is posted, with one
 * completion. perftest calls this CQ moderation.
 */
static void run_requests(struct side *side, const struct plan *plan, uint64_t count)
{
	uint32_t batch = plan->depth / 2 < MAX_BATCH ? plan->depth / 2 : MAX_BATCH;
	struct pier_work last = { 0 };

	batch = batch ? batch : 1;
	for (uint64_t posted = 0; posted < count; posted += batch) {
		if (count - posted < batch)
			batch = (uint32_t)(count - posted);
		if (pier_channel_wait_room(side->channel, batch, PIER_TIMEOUT_DEFAULT))
			die("room");
		if (posted + batch == count) {
			if (post_batch(side, plan, batch, &last))
				die("post");
		} else if (post_batch(side, plan, batch, NULL)) {
			die("post");
		}
	}
	wait_for(side, last);
}

/* After a warm-up, as with ucx_perftest; receives are posted for `count` sends only. */
static void bandwidth(struct side *side, const struct plan *plan)
{
	double start;

	if (plan->opcode != PIER_OP_SEND)
		run_requests(side, plan, WARM_UP);
	start = now();
	run_requests(side, plan, plan->count);
	printf("%.0f\n", (double)plan->size * (double)plan->count / (now() - start));
}

/* The receiving end of sends: keeps as many receives posted as possible. */
static void receive_all(struct side *side, const struct plan *plan)
{
	struct pier_scatter target;
	uint64_t posted = 0;

	if (pier_mr_scatter(side->mr, pier_buffer_address(side->buffer), plan->size,
			    &target))
		die("element");
	while (posted < plan->count || pier_channel_outstanding(side->channel) > 0) {
		int error = posted < plan->count
				    ? pier_post_recv(side->channel, &target, 1, NULL)
				    : -EAGAIN;

		if (error && error != -EAGAIN)
			die("receive");
		posted += !error;
		if (error && pier_channel_poll(side->channel) < 0)
			die("poll");
	}
}

/* Prints half of the round trip: the average, or the median. */
static void print_latency(double *times, const struct plan *plan)
{
	double sum = 0;

	for (uint64_t i = 0; i < plan->count; i++)
		sum += times[i];
	qsort(times, plan->count, sizeof(*times), compare_times);
	printf("%.9f\n", plan->typical ? times[plan->count / 2] / 2
				       : sum / (double)plan->count / 2);
}

/*
 * soft0 makes progress while the channel is polled. A device does not need this, and is
 * polled occasionally to detect errors.
 */
static void wait_for_byte(struct side *side, const struct plan *plan, uint8_t number)
{
	unsigned int looks_at_once = strncmp(plan->device, "soft", 4) == 0 ? 1 : 256;

	for (unsigned int look = 1; side->memory[plan->size - 1] != number; look++) {
		if (look % looks_at_once == 0 && pier_channel_poll(side->channel) < 0)
			die("poll");
	}
}

/* The last byte of a message has its number. When it arrives, all earlier bytes have. */
static void bounce(struct side *side, const struct plan *plan, int first)
{
	double *times = calloc(plan->count, sizeof(*times)), start = now(), end;
	struct pier_gather source;
	struct pier_remote target;
	struct pier_work work;

	if (!times)
		die("memory");
	aim(side, plan->size, &source, &target);
	for (uint64_t i = 0; i < plan->count; i++) {
		uint8_t number = (uint8_t)(i % 250 + 1);

		if (!first)
			wait_for_byte(side, plan, number);
		side->memory[2 * plan->size - 1] = number;
		if (pier_post_write(side->channel, &source, 1, &target, &work))
			die("write");
		if (first)
			wait_for_byte(side, plan, number);
		wait_for(side, work);
		end = now();
		times[i] = end - start;
		start = end;
	}
	if (first)
		print_latency(times, plan);
	free(times);
}

static void run_memcpy(const struct plan *plan)
{
	char *source = malloc(plan->size), *target = malloc(plan->size);
	double start;

	if (!source || !target)
		die("memory");
	memset(source, 1, plan->size);
	memset(target, 2, plan->size);
	start = now();
	for (uint64_t i = 0; i < plan->count; i++) {
		memcpy(target, source, plan->size);
		/* Keep the compiler from dropping copies that are never read. */
		__asm__ volatile("" : : "r"(target) : "memory");
	}
	printf("%.0f\n", (double)plan->size * (double)plan->count / (now() - start));
	free(source);
	free(target);
}

static void run_side(const struct plan *plan, int fd, int first)
{
	struct side side;
	char done = 0, peer_done;

	open_side(&side, plan, fd);
	if (plan->bounces)
		bounce(&side, plan, first);
	else if (first)
		bandwidth(&side, plan);
	else if (plan->opcode == PIER_OP_SEND)
		receive_all(&side, plan);
	fflush(stdout);
	/* The target sleeps here: one-sided writes need nothing from it. */
	exchange(fd, &done, &peer_done, 1);
	close_side(&side);
}

int main(int argc, char **argv)
{
	struct plan plan = { .depth = 16 };

	if (argc < 6) {
		fprintf(stderr, "usage: pier-perf DEVICE MEMORY write_bw|read_bw|send_bw|"
				"write_bw_polled|write_lat|write_lat_typical|memcpy "
				"SIZE COUNT [DEPTH]\n");
		return 2;
	}
	plan.bounces = strncmp(argv[3], "write_lat", strlen("write_lat")) == 0;
	plan.polls = plan.bounces || strcmp(argv[3], "write_bw_polled") == 0;
	plan.typical = strcmp(argv[3], "write_lat_typical") == 0;
	plan.opcode = strcmp(argv[3], "read_bw") == 0	? PIER_OP_READ
		      : strcmp(argv[3], "send_bw") == 0 ? PIER_OP_SEND
							: PIER_OP_WRITE;
	plan.device = argv[1];
	plan.memory = argv[2];
	plan.size = strtoull(argv[4], NULL, 0);
	plan.count = strtoull(argv[5], NULL, 0);
	if (argc > 6)
		plan.depth = (uint32_t)strtoul(argv[6], NULL, 0);
	if (strcmp(argv[3], "memcpy") == 0) {
		run_memcpy(&plan);
		return 0;
	}
	return run_pair(&plan, run_side);
}
