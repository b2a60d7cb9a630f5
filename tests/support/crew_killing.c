/* SPDX-License-Identifier: BSD-3-Clause */
#include "crew_killing.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/backend.h>

enum {
	CONNECTED = 'c', /* message from a child */
	ENTERS = 'e',
	MEET = 'm', /* message to a child */
};

/* A child's report of a barrier. */
struct outcome {
	int error, culprit;
	int64_t took_ms;
	char sentence[512];
};

static int write_all(int fd, const void *bytes, size_t length)
{
	const char *from = bytes;

	while (length > 0) {
		ssize_t count = send(fd, from, length, MSG_NOSIGNAL);

		if (count <= 0)
			return -EPIPE;
		from += count;
		length -= (size_t)count;
	}
	return 0;
}

static int read_all(int fd, void *ret_bytes, size_t length)
{
	char *to = ret_bytes;

	while (length > 0) {
		struct pollfd readable = { .fd = fd, .events = POLLIN };
		ssize_t count;

		if (poll(&readable, 1, 2 * CREW_PATIENT) != 1)
			return pier_fail(ETIME, "a process of a crew says nothing");
		count = read(fd, to, length);
		if (count <= 0)
			return pier_fail(EPIPE, "a process of a crew is gone");
		to += count;
		length -= (size_t)count;
	}
	return 0;
}

/* Runs in the child. */

static int exchange_blobs(struct pier_group *group, uint32_t size, int stream)
{
	size_t length = (size_t)size * PIER_GROUP_BLOB_SIZE;
	uint8_t *blobs = malloc(length);
	char word = CONNECTED;
	int error = blobs ? pier_group_endpoints(group, blobs, length) : -ENOMEM;

	if (!error)
		error = write_all(stream, blobs, length);
	if (!error)
		error = read_all(stream, blobs, length);
	if (!error)
		error = pier_group_connect(group, blobs, length, CREW_PATIENT);
	free(blobs);
	return error ? error : write_all(stream, &word, 1);
}

static int meet(struct pier_group *group, const struct crew_killing *killing, int stream)
{
	struct outcome outcome = { 0 };
	char word = ENTERS;
	int64_t start = crew_milliseconds();
	int error = write_all(stream, &word, 1);

	if (error)
		return error;
	outcome.error = pier_group_barrier_of(group, killing->algorithm, NULL, 0,
					      killing->timeout_ms);
	outcome.took_ms = crew_milliseconds() - start;
	outcome.culprit = pier_group_failed_rank(group);
	snprintf(outcome.sentence, sizeof(outcome.sentence), "%s", pier_error_message());
	return write_all(stream, &outcome, sizeof(outcome));
}

static int live(const struct crew_killing *killing, uint32_t rank, int stream)
{
	struct pier_device *device = NULL;
	struct pier_pd *pd = NULL;
	struct pier_group *group = NULL;
	char word;
	int error = pier_device_open(rank % 2 ? killing->odd_device : killing->device,
				     &device);

	if (!error)
		error = pier_pd_alloc(device, &pd);
	if (!error)
		error = pier_group_create(pd, rank, killing->size, NULL, &group);
	if (!error)
		error = exchange_blobs(group, killing->size, stream);
	while (!error && read(stream, &word, 1) == 1)
		error = meet(group, killing, stream);
	if (!error)
		error = pier_group_destroy(group);
	if (!error)
		error = pier_pd_dealloc(pd);
	if (!error)
		error = pier_device_close(device);
	if (error)
		fprintf(stderr, "rank %u: %s\n", rank, pier_error_message());
	return error;
}

/* State of the parent, which launches the children. */

struct process {
	pid_t id;
	int stream;
};

static int start(const struct crew_killing *killing, uint32_t rank,
		 struct process *processes)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
		return pier_fail(errno, "no socket pair");
	fflush(NULL);
	processes[rank].id = fork();
	if (processes[rank].id == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint32_t i = 0; i < rank; i++)
			close(processes[i].stream);
		close(fds[0]);
		_exit(live(killing, rank, fds[1]) != 0);
	}
	close(fds[1]);
	processes[rank].stream = fds[0];
	return processes[rank].id < 0 ? pier_fail(errno, "no process") : 0;
}

static int introduce(const struct crew_killing *killing, const struct process *processes)
{
	size_t blob = PIER_GROUP_BLOB_SIZE, all = killing->size * blob;
	uint8_t *blobs = malloc(killing->size * all);
	char word;
	int error = blobs ? 0 : -ENOMEM;

	for (uint32_t from = 0; from < killing->size && !error; from++)
		error = read_all(processes[from].stream, blobs + from * all, all);
	for (uint32_t to = 0; to < killing->size; to++) {
		for (uint32_t from = 0; from < killing->size && !error; from++)
			error = write_all(processes[to].stream,
					  blobs + from * all + to * blob, blob);
	}
	for (uint32_t rank = 0; rank < killing->size && !error; rank++)
		error = read_all(processes[rank].stream, &word, 1);
	free(blobs);
	return error;
}

/* Returns when the child reports that it enters the barrier. */
static int send_in(const struct process *process)
{
	char word = MEET;
	int error = write_all(process->stream, &word, 1);

	return error ? error : read_all(process->stream, &word, 1);
}

static int hear(const struct process *process, struct outcome *ret_outcome)
{
	return read_all(process->stream, ret_outcome, sizeof(*ret_outcome));
}

static int meet_once(const struct crew_killing *killing, const struct process *processes)
{
	struct outcome outcome = { 0 };
	int error = 0;

	for (uint32_t rank = 0; rank < killing->size && !error; rank++)
		error = send_in(&processes[rank]);
	for (uint32_t rank = 0; rank < killing->size && !error; rank++) {
		error = hear(&processes[rank], &outcome);
		if (!error && outcome.error)
			error = pier_fail(-outcome.error, "rank %u: %s", rank,
					  outcome.sentence);
	}
	return error;
}

static int meet_and_kill(struct crew_killing *killing, const struct process *processes)
{
	int error = 0;

	for (uint32_t rank = 0; rank < killing->size && !error; rank++) {
		if (rank != killing->late)
			error = send_in(&processes[rank]);
	}
	if (!error && kill(processes[killing->victim].id, SIGKILL) != 0)
		error = pier_fail(errno, "could not kill");
	return error ? error : send_in(&processes[killing->late]);
}

static int hear_all(struct crew_killing *killing, const struct process *processes,
		    bool first)
{
	int error = 0;

	for (uint32_t rank = 0; rank < killing->size && !error; rank++) {
		struct crew_report *report = &killing->reports[rank];
		struct outcome outcome = { 0 };

		if (rank == killing->victim)
			continue;
		error = hear(&processes[rank], &outcome);
		if (first)
			report->first_error = outcome.error;
		else
			report->error = outcome.error;
		report->culprit = outcome.culprit;
		if (outcome.took_ms > report->took_ms)
			report->took_ms = outcome.took_ms;
		if (!report->sentence[0] && outcome.error)
			snprintf(report->sentence, sizeof(report->sentence), "%s",
				 outcome.sentence);
	}
	return error;
}

static int meet_again(struct crew_killing *killing, const struct process *processes)
{
	int error = 0;

	for (uint32_t rank = 0; rank < killing->size && !error; rank++) {
		if (rank != killing->victim)
			error = send_in(&processes[rank]);
	}
	return error ? error : hear_all(killing, processes, false);
}

/*
 * Children exit when their streams are closed. All except the victim must exit normally.
 */
static int end(const struct crew_killing *killing, const struct process *processes)
{
	int error = 0, status = 0;

	for (uint32_t rank = 0; rank < killing->size; rank++) {
		if (processes[rank].id > 0)
			close(processes[rank].stream);
	}
	for (uint32_t rank = 0; rank < killing->size; rank++) {
		if (processes[rank].id <= 0)
			continue;
		waitpid(processes[rank].id, &status, 0);
		if (rank != killing->victim && status != 0 && !error)
			error = pier_fail(ECHILD, "rank %u ended with status %#x", rank,
					  status);
	}
	return error;
}

int crew_kill(struct crew_killing *killing)
{
	struct process processes[CREW_MAX] = { 0 };
	int error = 0, ended;

	for (uint32_t rank = 0; rank < killing->size && !error; rank++)
		error = start(killing, rank, processes);
	if (!error)
		error = introduce(killing, processes);
	if (!error)
		error = meet_once(killing, processes);
	if (!error)
		error = meet_and_kill(killing, processes);
	if (!error)
		error = hear_all(killing, processes, true);
	if (!error)
		error = meet_again(killing, processes);
	ended = end(killing, processes);
	return error ? error : ended;
}
