/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two processes and one channel between them, as a benchmark:
 *
 *	pier-perf DEVICE MEMORY write_bw SIZE COUNT [DEPTH]   prints bytes per second
 *	pier-perf DEVICE MEMORY write_lat SIZE COUNT          prints seconds, one way
 *	pier-perf - - memcpy SIZE COUNT                       prints bytes per second
 *
 * write_bw keeps DEPTH one-sided writes outstanding, and its clock stops when
 * the last one has completed at the initiator, which is when the target has
 * it. write_lat bounces one write to and fro, each side polling the memory that
 * the other writes, and prints half of a round trip: as ucx_perftest's
 * ucp_put_bw and ucp_put_lat do.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pier/pier.h>

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
};

static void die(const char *step)
{
	fprintf(stderr, "pier-perf: %s: %s\n", step, pier_last_error());
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void exchange(int fd, const void *mine, void *theirs, size_t size)
{
	size_t got = 0;

	if (write(fd, mine, size) != (ssize_t)size)
		die("write");
	while (got < size) {
		ssize_t part = read(fd, (char *)theirs + got, size - got);

		if (part <= 0)
			die("the peer has gone");
		got += (size_t)part;
	}
}

static void open_side(struct side *side, const struct plan *plan, int fd)
{
	struct pier_channel_attr attr = PIER_CHANNEL_ATTR_INIT;
	uint8_t mine[PIER_REMOTE_WIRE_SIZE], theirs[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	void *memory = NULL;

	attr.max_send_wr = plan->depth;
	side->socket = fd;
	if (pier_open_device(plan->device, &side->device) ||
	    pier_alloc_pd(side->device, &side->pd))
		die("device");
	if (pier_alloc_buffer(plan->memory, 2 * plan->size, &side->buffer) ||
	    pier_map_buffer(side->buffer, &memory))
		die("memory");
	side->memory = memory;
	if (pier_reg_buffer_mr(side->pd, side->buffer, 0, 2 * plan->size,
			       PIER_ACCESS_SHARED, PIER_POLICY_ANY, &side->mr) ||
	    pier_mr_remote(side->mr, &remote))
		die("region");
	if (pier_prepare_channel(side->pd, &attr, &side->channel) ||
	    pier_handshake(side->channel, fd, fd, 10000))
		die("channel");
	pier_remote_pack(&remote, mine);
	exchange(fd, mine, theirs, sizeof(mine));
	if (pier_remote_unpack(theirs, sizeof(theirs), &side->remote))
		die("remote region");
}

static void close_side(struct side *side)
{
	if (pier_destroy_channel(side->channel) || pier_dereg_mr(side->mr) ||
	    pier_free_buffer(side->buffer) || pier_dealloc_pd(side->pd) ||
	    pier_close_device(side->device))
		die("closing");
}

static void wait_for(struct side *side, struct pier_work work)
{
	if (pier_wait(side->channel, work, PIER_TIMEOUT_DEFAULT, NULL))
		die("write");
}

/* Element and target of a write from the second half into the peer's first. */
static void aim(struct side *side, size_t size, struct pier_gather *ret_source,
		struct pier_remote *ret_target)
{
	uint64_t source = pier_buffer_address(side->buffer) + size;

	if (pier_gather(side->mr, source, size, ret_source) ||
	    pier_remote_sub(&side->remote, 0, size, ret_target))
		die("element");
}

static void bandwidth(struct side *side, const struct plan *plan)
{
	struct pier_work *window = calloc(plan->depth, sizeof(*window));
	struct pier_gather source;
	struct pier_remote target;
	double start;

	if (!window)
		die("memory");
	aim(side, plan->size, &source, &target);
	start = now();
	for (uint64_t i = 0; i < plan->count; i++) {
		if (i >= plan->depth)
			wait_for(side, window[i % plan->depth]);
		if (pier_post_write(side->channel, &source, 1, &target,
				    &window[i % plan->depth]))
			die("write");
	}
	for (uint64_t i = plan->count < plan->depth ? 0 : plan->count - plan->depth;
	     i < plan->count; i++)
		wait_for(side, window[i % plan->depth]);
	printf("%.0f\n", (double)plan->size * (double)plan->count / (now() - start));
	free(window);
}

/* The last byte of a message carries its number; what lies before it is there. */
static void bounce(struct side *side, const struct plan *plan, int first)
{
	struct pier_gather source;
	struct pier_remote target;
	struct pier_work work;
	double start = now();

	aim(side, plan->size, &source, &target);
	for (uint64_t i = 0; i < plan->count; i++) {
		uint8_t number = (uint8_t)(i % 250 + 1);

		while (!first && side->memory[plan->size - 1] != number)
			if (pier_poll(side->channel) < 0)
				die("poll");
		side->memory[2 * plan->size - 1] = number;
		if (pier_post_write(side->channel, &source, 1, &target, &work))
			die("write");
		while (first && side->memory[plan->size - 1] != number)
			if (pier_poll(side->channel) < 0)
				die("poll");
		wait_for(side, work);
	}
	if (first)
		printf("%.9f\n", (now() - start) / (double)plan->count / 2);
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
		/* Keep the compiler from dropping copies that nobody reads. */
		__asm__ volatile("" : : "r"(target) : "memory");
	}
	printf("%.0f\n", (double)plan->size * (double)plan->count / (now() - start));
	free(source);
	free(target);
}

static void run_side(const struct plan *plan, const char *test, int fd, int first)
{
	struct side side;
	char done = 0, peer_done;

	open_side(&side, plan, fd);
	if (strcmp(test, "write_lat") == 0)
		bounce(&side, plan, first);
	else if (first)
		bandwidth(&side, plan);
	fflush(stdout);
	/* The target sleeps here: one-sided writes need nothing from it. */
	exchange(fd, &done, &peer_done, 1);
	close_side(&side);
}

static int run_pair(const struct plan *plan, const char *test)
{
	int fds[2], status;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		die("socketpair");
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		run_side(plan, test, fds[1], 0);
		exit(0);
	}
	close(fds[1]);
	run_side(plan, test, fds[0], 1);
	if (waitpid(child, &status, 0) != child || status != 0)
		return 1;
	return 0;
}

int main(int argc, char **argv)
{
	struct plan plan = { .depth = 16 };

	if (argc < 6) {
		fprintf(stderr,
			"usage: pier-perf DEVICE MEMORY write_bw|write_lat|memcpy SIZE "
			"COUNT [DEPTH]\n");
		return 2;
	}
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
	return run_pair(&plan, argv[3]);
}
