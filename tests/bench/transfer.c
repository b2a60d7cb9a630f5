/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A transfer between two processes, as a benchmark:
 *
 *	pier-transfer-perf DEVICE MEMORY LENGTH CHUNK RAILS WINDOW ROUNDS [DIGEST]
 *
 * Each round moves LENGTH bytes as one transfer, and once more by a loop of
 * pier_channel_post_write() and pier_work_wait() that somebody wrote for the purpose,
 * with as many chunks in flight on each of as many channels; which comes first changes
 * every time. Prints bytes per second of the transfers and of the loops, and the ratio:
 * medians. With DIGEST, "write" or "read", transfers with PIER_TRANSFER_DIGEST take the
 * place of transfers, and transfers without take that of the loop.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pier/pier.h>

#define PROGRAM "pier-transfer-perf"
#include "bench.h"
#include "pair.h"

enum {
	MAX_RAILS = 8,
	MAX_WINDOW = 256,
};

struct plan {
	const char *device, *memory;
	uint64_t length;
	uint32_t chunk, rails, window, rounds;
	enum pier_transfer_direction direction;
	bool digest;
};

struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channels[MAX_RAILS];
	struct pier_remote remote; /* the peer's buffer */
};

static void open_channels(struct side *side, const struct plan *plan, int fd)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = plan->window;
	for (uint32_t i = 0; i < plan->rails; i++)
		if (pier_channel_create(side->pd, &attr, &side->channels[i]) ||
		    pier_channel_handshake(side->channels[i], fd, fd, 10000))
			die("channel");
}

static void open_side(struct side *side, const struct plan *plan, int fd)
{
	uint8_t mine[PIER_REMOTE_WIRE_SIZE], theirs[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	void *memory = NULL;

	if (pier_device_open(plan->device, &side->device) ||
	    pier_pd_alloc(side->device, &side->pd))
		die("device");
	if (pier_buffer_alloc(plan->memory, plan->length, &side->buffer) ||
	    pier_buffer_map(side->buffer, &memory))
		die("memory");
	/* Touch all pages before measuring. */
	memset(memory, 1, plan->length);
	if (pier_mr_reg_buffer(side->pd, side->buffer, 0, plan->length,
			       PIER_ACCESS_SHARED, PIER_POLICY_ANY, &side->mr) ||
	    pier_mr_remote(side->mr, &remote))
		die("region");
	open_channels(side, plan, fd);
	pier_remote_pack(&remote, mine);
	exchange(fd, mine, theirs, sizeof(mine));
	if (pier_remote_unpack(theirs, sizeof(theirs), &side->remote))
		die("remote region");
}

static void close_side(struct side *side, const struct plan *plan)
{
	for (uint32_t i = 0; i < plan->rails; i++)
		if (pier_channel_destroy(side->channels[i]))
			die("closing a channel");
	if (pier_mr_dereg(side->mr) || pier_buffer_free(side->buffer) ||
	    pier_pd_dealloc(side->pd) || pier_device_close(side->device))
		die("closing");
}

static void run_transfer(struct side *side, const struct plan *plan, bool digest)
{
	struct pier_transfer_attr attr;
	struct pier_rail rails[MAX_RAILS];

	pier_transfer_attr_init(&attr);
	for (uint32_t i = 0; i < plan->rails; i++)
		rails[i] = (struct pier_rail){ .channel = side->channels[i],
					       .mr = side->mr,
					       .parts = &side->remote,
					       .count = 1 };
	attr.rails = rails;
	attr.rail_count = plan->rails;
	attr.length = plan->length;
	attr.chunk = plan->chunk;
	attr.window = plan->window;
	attr.direction = plan->direction;
	attr.flags = digest ? PIER_TRANSFER_DIGEST : 0;
	if (pier_transfer_run(&attr, 60000))
		die("transfer");
}

static void post(struct side *side, const struct plan *plan, uint64_t index,
		 struct pier_work *ret_work)
{
	uint64_t offset = index * plan->chunk;
	uint64_t left = plan->length - offset;
	uint32_t length = left < plan->chunk ? (uint32_t)left : plan->chunk;
	struct pier_gather source;
	struct pier_remote target;

	if (pier_mr_gather(side->mr, pier_mr_iova(side->mr) + offset, length, &source) ||
	    pier_remote_sub(&side->remote, offset, length, &target) ||
	    pier_channel_post_write(side->channels[index % plan->rails], &source, 1,
				    &target, ret_work))
		die("write");
}

/* Uses the channels in turn and waits for the oldest chunk. */
static void run_loop(struct side *side, const struct plan *plan)
{
	struct pier_work works[MAX_RAILS * MAX_WINDOW];
	uint64_t count = (plan->length + plan->chunk - 1) / plan->chunk;
	uint64_t flying = (uint64_t)plan->rails * plan->window;
	struct pier_result result;

	for (uint64_t i = 0; i < count + flying; i++) {
		if (i >= flying && i - flying < count &&
		    (pier_work_wait(side->channels[(i - flying) % plan->rails],
				    works[i % flying], 30000, &result) != 1 ||
		     result.error))
			die("waiting for a write");
		if (i < count)
			post(side, plan, i, &works[i % flying]);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
	qsort(values, count, sizeof(*values), compare);
	return values[count / 2];
}

static double rate(struct side *side, const struct plan *plan, bool transfer)
{
	double start = now();

	if (transfer || plan->digest)
		run_transfer(side, plan, transfer && plan->digest);
	else
		run_loop(side, plan);
	return (double)plan->length / (now() - start);
}

static void measure(struct side *side, const struct plan *plan)
{
	double *transfers = calloc(3 * (size_t)plan->rounds, sizeof(*transfers));
	double *loops = transfers + plan->rounds, *ratios = loops + plan->rounds;

	if (!transfers)
		die("memory");
	for (uint32_t i = 0; i < plan->rounds; i++) {
		if (i & 1)
			loops[i] = rate(side, plan, false);
		transfers[i] = rate(side, plan, true);
		if (!(i & 1))
			loops[i] = rate(side, plan, false);
		ratios[i] = transfers[i] / loops[i];
	}
	printf("%.0f %.0f", median(transfers, plan->rounds), median(loops, plan->rounds));
	printf(" %.3f\n", median(ratios, plan->rounds));
	fflush(stdout);
	free(transfers);
}

static void run_side(const struct plan *plan, int fd, int first)
{
	struct side side;
	char done = 0, peer_done;

	open_side(&side, plan, fd);
	if (first)
		measure(&side, plan);
	/* The target sleeps here: one-sided writes need nothing from it. */
	exchange(fd, &done, &peer_done, 1);
	close_side(&side, plan);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
	uint64_t value = strtoull(text, NULL, 0);

	if (value < least || value > most) {
		fprintf(stderr, "pier-transfer-perf: %s is not in %llu to %llu\n", text,
			(unsigned long long)least, (unsigned long long)most);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	struct plan plan;

	if (argc != 8 && argc != 9) {
		fprintf(stderr,
			"usage: pier-transfer-perf DEVICE MEMORY LENGTH CHUNK RAILS "
			"WINDOW ROUNDS [write|read]\n");
		return 2;
	}
	plan = (struct plan){
		.device = argv[1],
		.memory = argv[2],
		.length = number(argv[3], 1, UINT64_MAX),
		.chunk = (uint32_t)number(argv[4], 1, 1u << 30),
		.rails = (uint32_t)number(argv[5], 1, MAX_RAILS),
		.window = (uint32_t)number(argv[6], 1, MAX_WINDOW),
		.rounds = (uint32_t)number(argv[7], 1, 1000),
		.direction = argc == 9 && strcmp(argv[8], "read") == 0
				     ? PIER_TRANSFER_READ
				     : PIER_TRANSFER_WRITE,
		.digest = argc == 9,
	};
	return run_pair(&plan, run_side);
}
