/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many channels in one process, each connected with another of them:
 *
 *	pier-many DEVICE CHANNELS ROUNDS [shared]
 *
 * prints, separated by tabs: how many channels; bytes of memory that each takes
 * (resident, with what the device has for it); and seconds, medians of ROUNDS, of
 *
 *	poll     an empty pier_channel_poll() of one channel beside idle ones
 *	all      looking at all: an empty pier_channel_poll() of each of them
 *	write    a write of 64 bytes on one channel, polled until it is complete
 *	epoll    the same, found by epoll_wait() over the fds of all, all armed
 *	burst    a write on each channel, found and taken; divided by the channels
 *
 * With "shared" all channels share a completion queue; all, epoll and burst then use
 * pier_cq_poll() and the queue's fd.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <pier/pier.h>

#define PROGRAM "pier-many"
#include "bench.h"

enum {
	LENGTH = 64,
	POLLS = 1000, /* enough for the clock's resolution */
};

struct bench {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_remote remote;
	struct pier_channel **channels;
	struct pier_work *works;
	struct pier_cq *cq; /* NULL: each channel has its own */
	int count, rounds, epoll_fd;
};

static uint64_t resident(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long long pages = 0;

	if (!file || fscanf(file, "%*s %llu", &pages) != 1)
		die("/proc/self/statm");
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void watch_fd(struct bench *bench, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	if (epoll_ctl(bench->epoll_fd, EPOLL_CTL_ADD, fd, &event))
		die("epoll_ctl");
}

static void connect_pair(struct bench *bench, int first)
{
	struct pier_endpoint endpoints[2];
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.cq = bench->cq;
	for (int i = 0; i < 2; i++) {
		struct pier_channel **channel = &bench->channels[first + i];

		attr.context = &bench->works[first + i];
		if (pier_channel_create(bench->pd, &attr, channel) ||
		    pier_channel_endpoint(*channel, &endpoints[i]))
			die("channel");
		if (!bench->cq)
			watch_fd(bench, pier_channel_fd(*channel));
	}
	for (int i = 0; i < 2; i++) {
		if (pier_channel_connect(bench->channels[first + i], &endpoints[1 - i]))
			die("connect");
	}
}

/* Entries for the default attributes. */
static void create_queue(struct bench *bench)
{
	struct pier_cq_attr attr;

	pier_cq_attr_init(&attr);
	attr.depth = (uint32_t)bench->count * 32;
	if (pier_cq_create(bench->pd, &attr, &bench->cq))
		die("completion queue");
	watch_fd(bench, pier_cq_fd(bench->cq));
}

static uint64_t open_bench(struct bench *bench, const char *device, bool shared)
{
	struct rlimit files;
	uint64_t before;

	/* Each channel has several fds, and the usual limit is 1024. */
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	bench->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	bench->channels = calloc((size_t)bench->count, sizeof(*bench->channels));
	bench->works = calloc((size_t)bench->count, sizeof(*bench->works));
	if (bench->epoll_fd < 0 || !bench->channels || !bench->works)
		die("memory");
	if (pier_device_open(device, &bench->device) ||
	    pier_pd_alloc(bench->device, &bench->pd) ||
	    pier_buffer_alloc("memfd", 4096, &bench->buffer) ||
	    pier_mr_reg_buffer(bench->pd, bench->buffer, 0, 4096, PIER_ACCESS_SHARED,
			       PIER_POLICY_ANY, &bench->mr) ||
	    pier_mr_remote(bench->mr, &bench->remote))
		die("device");
	before = resident();
	if (shared)
		create_queue(bench);
	for (int i = 0; i + 1 < bench->count; i += 2)
		connect_pair(bench, i);
	return (resident() - before) / (uint64_t)bench->count;
}

static void close_bench(struct bench *bench)
{
	for (int i = 0; i < bench->count; i++) {
		if (pier_channel_destroy(bench->channels[i]))
			die("destroy");
	}
	if (pier_cq_destroy(bench->cq) || pier_mr_dereg(bench->mr) ||
	    pier_buffer_free(bench->buffer) || pier_pd_dealloc(bench->pd) ||
	    pier_device_close(bench->device))
		die("close");
	free(bench->channels);
	free(bench->works);
	close(bench->epoll_fd);
}

static void poll_one(struct bench *bench)
{
	for (int i = 0; i < POLLS; i++) {
		if (pier_channel_poll(bench->channels[0]) < 0)
			die("poll");
	}
}

static void poll_all(struct bench *bench)
{
	struct pier_channel *ready;

	if (bench->cq) {
		if (pier_cq_poll(bench->cq, &ready, 1) != 0)
			die("poll");
		return;
	}
	for (int i = 0; i < bench->count; i++) {
		if (pier_channel_poll(bench->channels[i]) < 0)
			die("poll");
	}
}

static struct pier_work post(struct bench *bench, struct pier_channel *channel)
{
	struct pier_work work = { 0 };
	struct pier_gather source;

	if (pier_mr_gather(bench->mr, pier_mr_iova(bench->mr), LENGTH, &source) ||
	    pier_channel_post_write(channel, &source, 1, &bench->remote, &work))
		die("write");
	return work;
}

static void write_polled(struct bench *bench)
{
	struct pier_result result;
	struct pier_work work = post(bench, bench->channels[0]);
	int done;

	do {
		done = pier_work_poll(bench->channels[0], work, &result);
	} while (done == 0);
	if (done < 0 || result.error)
		die("completion");
}

static void take(struct pier_channel *channel, struct pier_work work)
{
	struct pier_result result;

	if (pier_work_poll(channel, work, &result) != 1 || result.error)
		die("completion");
}

static void write_shared(struct bench *bench)
{
	struct pier_work work = post(bench, bench->channels[0]);
	struct pier_channel *ready;
	struct epoll_event event;
	int count = 0;

	while (count == 0) {
		int news = pier_cq_arm(bench->cq);

		if (news < 0 ||
		    (news == 0 && epoll_wait(bench->epoll_fd, &event, 1, 10000) != 1))
			die("epoll_wait");
		count = pier_cq_poll(bench->cq, &ready, 1);
	}
	if (ready != bench->channels[0])
		die("another channel");
	take(ready, work);
}

/* All others stay armed, because nothing completes on them. */
static void write_epoll(struct bench *bench)
{
	struct pier_channel *channel = bench->channels[0];
	struct pier_work work = post(bench, channel);
	struct pier_result result;
	struct epoll_event event;
	int done = 0;

	while (done == 0) {
		if (pier_channel_arm(channel) < 0)
			die("arm");
		done = pier_work_poll(channel, work, &result);
		if (done == 0 && epoll_wait(bench->epoll_fd, &event, 1, 10000) != 1)
			die("epoll_wait");
	}
	if (done < 0 || result.error)
		die("completion");
}

static int take_ready(struct bench *bench)
{
	struct pier_channel *ready[16];
	int count = pier_cq_poll(bench->cq, ready, 16);

	for (int i = 0; i < count; i++) {
		struct pier_work *work = pier_channel_context(ready[i]);

		take(ready[i], *work);
	}
	return count;
}

static int take_each(struct bench *bench)
{
	struct pier_result result;
	int taken = 0;

	for (int i = 0; i < bench->count; i++) {
		if (pier_channel_outstanding(bench->channels[i]) > 0)
			taken += pier_work_poll(bench->channels[i], bench->works[i],
						&result) == 1;
	}
	return taken;
}

static void burst(struct bench *bench)
{
	int left = bench->count;

	for (int i = 0; i < bench->count; i++)
		bench->works[i] = post(bench, bench->channels[i]);
	while (left > 0)
		left -= bench->cq ? take_ready(bench) : take_each(bench);
}

static double median(struct bench *bench, void (*run)(struct bench *))
{
	double *times = calloc((size_t)bench->rounds, sizeof(*times)), middle;

	if (!times)
		die("memory");
	run(bench);
	for (int i = 0; i < bench->rounds; i++) {
		double start = now();

		run(bench);
		times[i] = now() - start;
	}
	qsort(times, (size_t)bench->rounds, sizeof(*times), compare_times);
	middle = times[bench->rounds / 2];
	free(times);
	return middle;
}

int main(int argc, char **argv)
{
	struct bench bench = { 0 };
	bool shared = argc == 5 && strcmp(argv[4], "shared") == 0;
	uint64_t memory;

	if (argc != 4 + shared || (bench.count = atoi(argv[2])) < 2 ||
	    (bench.rounds = atoi(argv[3])) < 1) {
		fprintf(stderr, "usage: pier-many DEVICE CHANNELS ROUNDS [shared]\n");
		return 2;
	}
	bench.count &= ~1;
	memory = open_bench(&bench, argv[1], shared);
	for (int i = 1; i < bench.count && !shared; i++) {
		if (pier_channel_arm(bench.channels[i]) < 0)
			die("arm");
	}
	printf("%d\t%llu", bench.count, (unsigned long long)memory);
	printf("\t%.9f", median(&bench, poll_one) / POLLS);
	printf("\t%.9f", median(&bench, poll_all));
	printf("\t%.9f", median(&bench, write_polled));
	printf("\t%.9f", median(&bench, shared ? write_shared : write_epoll));
	printf("\t%.9f\n", median(&bench, burst) / bench.count);
	close_bench(&bench);
	return 0;
}
