/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transfers between two processes whose memory no NIC reaches, as a benchmark:
 *
 *	PIER_BACKEND_PATH=FOLDER pier-bounce-perf DEVICE LENGTH CHUNK WINDOW ROUNDS
 *
 * FOLDER has gpu.so of the unit tests. Each round moves LENGTH bytes from memory that is
 * registered directly to such memory, then from bounce buffer to bounce buffer with
 * WINDOW chunks in flight, and then with one, so that nothing flies while something is
 * copied. Until all has landed. soft0 moves bytes where they are posted, by the same
 * processor that copies: a NIC that works beside it is "fault:late@1+=1ms:soft0", whose
 * completions take that long. Prints bytes per second of the three, then the ratios of
 * the second to the first and to the third: medians.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <pier/pier.h>

#include "../unit/plugins/gpu.h"

#define PROGRAM "pier-bounce-perf"
#include "bench.h"
#include "pair.h"

enum {
	DIRECT,
	BOUNCED,
	IN_TURN,
	WAYS,
};

struct plan {
	const char *device;
	uint64_t length;
	uint32_t chunk, window, rounds;
};

/* One end: its memory and its regions. */
struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_channel *channel;
	struct pier_mr *mrs[2];
	struct pier_remote remotes[2]; /* the peer's */
	struct pier_receiver *receiver;
};

static struct gpu_control *find_control(void)
{
	struct gpu_control *control;
	char path[PATH_MAX];
	void *object;

	snprintf(path, sizeof(path), "%s/gpu.so", getenv("PIER_BACKEND_PATH"));
	object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	control = object ? dlsym(object, GPU_CONTROL_SYMBOL) : NULL;
	if (!control)
		die("gpu.so in PIER_BACKEND_PATH");
	return control;
}

static void open_memory(struct side *side, const struct plan *plan)
{
	uint8_t *bytes = malloc(plan->length);
	struct gpu_control *control;

	if (!bytes || pier_buffer_alloc("gpu", plan->length, &side->buffer))
		die("memory");
	memset(bytes, 1, plan->length);
	/* Touch all pages before measuring. */
	if (pier_buffer_copy_to(side->buffer, 0, bytes, plan->length))
		die("copy");
	free(bytes);
	control = find_control();
	for (int i = 0; i < 2; i++) {
		control->export_error = i == BOUNCED ? EPERM : 0;
		if (pier_mr_reg_buffer(side->pd, side->buffer, 0, plan->length,
				       PIER_ACCESS_SHARED, PIER_POLICY_BOUNCE,
				       &side->mrs[i]))
			die("region");
	}
}

static void tell_memory(struct side *side, int fd)
{
	for (int i = 0; i < 2; i++) {
		uint8_t mine[PIER_REMOTE_WIRE_SIZE], theirs[PIER_REMOTE_WIRE_SIZE];
		struct pier_remote remote;

		if (pier_mr_remote(side->mrs[i], &remote))
			die("remote");
		pier_remote_pack(&remote, mine);
		exchange(fd, mine, theirs, sizeof(mine));
		if (pier_remote_unpack(theirs, sizeof(theirs), &side->remotes[i]))
			die("remote");
	}
}

static void open_side(struct side *side, const struct plan *plan, int fd)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = attr.max_recv_wr = plan->window + 1;
	attr.rnr_retry_count = 7;
	if (pier_device_open(plan->device, &side->device) ||
	    pier_pd_alloc(side->device, &side->pd))
		die("device");
	open_memory(side, plan);
	if (pier_channel_create(side->pd, &attr, &side->channel) ||
	    pier_channel_handshake(side->channel, fd, fd, 10000))
		die("channel");
	tell_memory(side, fd);
}

static void close_side(struct side *side)
{
	if (pier_receiver_destroy(side->receiver) ||
	    pier_channel_destroy(side->channel) || pier_mr_dereg(side->mrs[0]) ||
	    pier_mr_dereg(side->mrs[1]) || pier_buffer_free(side->buffer) ||
	    pier_pd_dealloc(side->pd) || pier_device_close(side->device))
		die("closing");
}

static void synchronise(int fd)
{
	char mine = 0, theirs;

	exchange(fd, &mine, &theirs, 1);
}

static void land(struct side *side, const struct plan *plan, int way, int fd)
{
	struct pier_receiver_rail rail = { .channel = side->channel,
					   .mr = side->mrs[way != DIRECT] };
	struct pier_receiver_attr attr;
	int error;

	pier_receiver_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = plan->length;
	if (side->receiver)
		error = pier_receiver_next(side->receiver, &rail, 1, plan->length);
	else
		error = pier_receiver_create(&attr, &side->receiver);
	synchronise(fd);
	if (error || pier_receiver_wait(side->receiver, 60000) != 1)
		die("receiver");
	synchronise(fd);
}

static double send_all(struct side *side, const struct plan *plan, int way, int fd)
{
	struct pier_rail rail = { .channel = side->channel,
				  .mr = side->mrs[way != DIRECT],
				  .parts = &side->remotes[way != DIRECT],
				  .count = 1 };
	struct pier_transfer_attr attr;
	double start;

	pier_transfer_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = plan->length;
	attr.chunk = plan->chunk;
	attr.window = way == IN_TURN ? 1 : plan->window;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	synchronise(fd);
	start = now();
	if (pier_transfer_run(&attr, 60000))
		die("transfer");
	synchronise(fd);
	return (double)plan->length / (now() - start);
}

static double median(double *values, uint32_t count)
{
	qsort(values, count, sizeof(*values), compare_times);
	return values[count / 2];
}

static void measure(struct side *side, const struct plan *plan, int fd)
{
	double *values[WAYS + 2];

	for (int i = 0; i < WAYS + 2; i++)
		if (!(values[i] = calloc(plan->rounds, sizeof(double))))
			die("memory");
	for (uint32_t round = 0; round < plan->rounds; round++) {
		for (int way = 0; way < WAYS; way++)
			values[way][round] = send_all(side, plan, way, fd);
		values[WAYS][round] = values[BOUNCED][round] / values[DIRECT][round];
		values[WAYS + 1][round] = values[BOUNCED][round] / values[IN_TURN][round];
	}
	for (int i = 0; i < WAYS + 2; i++) {
		printf(i < WAYS ? "%.0f " : "%.3f ", median(values[i], plan->rounds));
		free(values[i]);
	}
	printf("\n");
	fflush(stdout);
}

static void run_side(const struct plan *plan, int fd, int sends)
{
	struct side side = { NULL };

	open_side(&side, plan, fd);
	if (sends)
		measure(&side, plan, fd);
	for (uint32_t round = 0; !sends && round < plan->rounds; round++)
		for (int way = 0; way < WAYS; way++)
			land(&side, plan, way, fd);
	synchronise(fd);
	close_side(&side);
}

int main(int argc, char **argv)
{
	struct plan plan;

	if (argc != 6 || !getenv("PIER_BACKEND_PATH")) {
		fprintf(stderr, "usage: PIER_BACKEND_PATH=FOLDER " PROGRAM
				" DEVICE LENGTH CHUNK WINDOW ROUNDS\n");
		return 2;
	}
	plan = (struct plan){
		.device = argv[1],
		.length = strtoull(argv[2], NULL, 0),
		.chunk = (uint32_t)strtoul(argv[3], NULL, 0),
		.window = (uint32_t)strtoul(argv[4], NULL, 0),
		.rounds = (uint32_t)strtoul(argv[5], NULL, 0),
	};
	if (plan.length == 0 || plan.window == 0 || plan.rounds == 0) {
		fprintf(stderr, PROGRAM ": LENGTH, WINDOW and ROUNDS are more than 0\n");
		return 2;
	}
	return run_pair(&plan, run_side);
}
