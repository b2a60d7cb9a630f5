/* SPDX-License-Identifier: BSD-3-Clause */
#include "crew.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <pier/backend.h>

#include "memory_of.h"
#include "random.h"

int64_t crew_milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A group of 16 in one process needs more fds than the default limit. */
static void allow_many_fds(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int open_memory(struct crew_member *member, const char *backend, uint64_t seed)
{
	struct test_random random = { seed + member->rank + 1 };
	int error = test_buffer_alloc(member->device, backend, CREW_AREA,
				      &member->buffer);

	member->image = malloc(CREW_AREA);
	if (error || !member->image)
		return error ? error : -ENOMEM;
	for (size_t i = 0; i < CREW_AREA; i++)
		member->image[i] = (uint8_t)(test_random_next(&random) >> 56);
	error = pier_buffer_copy_to(member->buffer, 0, member->image, CREW_AREA);
	if (!error)
		error = pier_mr_reg_buffer(member->pd, member->buffer, 0, CREW_AREA,
					   PIER_ACCESS_SHARED, PIER_POLICY_DIRECT,
					   &member->mr);
	return error;
}

static int open_member(struct crew_member *member, const char *device,
		       const char *backend, const struct pier_group_attr *attr,
		       uint64_t seed)
{
	uint32_t size = member->crew->size;
	int error = pier_device_open(device, &member->device);

	if (!error)
		error = pier_pd_alloc(member->device, &member->pd);
	if (!error)
		error = open_memory(member, backend, seed);
	if (!error)
		error = pier_group_create(member->pd, member->rank, size, attr,
					  &member->group);
	member->mine = calloc(size, PIER_GROUP_BLOB_SIZE);
	member->theirs = calloc(size, PIER_GROUP_BLOB_SIZE);
	return error ? error : member->mine && member->theirs ? 0 : -ENOMEM;
}

int crew_open(struct crew *crew, uint32_t size, const char *device,
	      const char *odd_device, const char *backend,
	      const struct pier_group_attr *attr, uint64_t seed)
{
	int error = 0;

	allow_many_fds();
	*crew = (struct crew){ .size = size, .timeout_ms = CREW_PATIENT };
	for (uint32_t rank = 0; rank < size && !error; rank++) {
		crew->members[rank].crew = crew;
		crew->members[rank].rank = rank;
		error = open_member(&crew->members[rank], rank % 2 ? odd_device : device,
				    backend, attr, seed);
	}
	return error;
}

int crew_exchange(struct crew *crew)
{
	size_t blob = PIER_GROUP_BLOB_SIZE;
	int error = 0;

	for (uint32_t from = 0; from < crew->size && !error; from++) {
		struct crew_member *member = &crew->members[from];

		error = pier_group_endpoints(member->group, member->mine,
					     crew->size * blob);
		for (uint32_t to = 0; to < crew->size && !error; to++)
			memcpy(crew->members[to].theirs + from * blob,
			       member->mine + to * blob, blob);
	}
	return error;
}

static int connect_member(struct crew_member *member)
{
	return pier_group_connect(member->group, member->theirs,
				  (size_t)member->crew->size * PIER_GROUP_BLOB_SIZE,
				  member->crew->timeout_ms);
}

int crew_connect(struct crew *crew)
{
	return crew_run(crew, connect_member);
}

static void *run_member(void *argument)
{
	struct crew_member *member = argument;
	int64_t start = crew_milliseconds();

	member->error = member->body(member);
	member->took_ms = crew_milliseconds() - start;
	snprintf(member->sentence, sizeof(member->sentence), "%s", pier_error_message());
	return NULL;
}

int crew_run_some(struct crew *crew, uint32_t mask,
		  int (*body)(struct crew_member *member))
{
	int first = 0;

	for (uint32_t rank = 0; rank < crew->size; rank++) {
		struct crew_member *member = &crew->members[rank];

		member->error = 0;
		member->body = body;
		if ((mask >> rank & 1) &&
		    pthread_create(&member->thread, NULL, run_member, member) != 0)
			abort();
	}
	for (uint32_t rank = 0; rank < crew->size; rank++) {
		struct crew_member *member = &crew->members[rank];

		if (!(mask >> rank & 1))
			continue;
		pthread_join(member->thread, NULL);
		if (member->error && !first)
			first = pier_fail(-member->error, "rank %u: %s", rank,
					  member->sentence);
	}
	return first;
}

int crew_run(struct crew *crew, int (*body)(struct crew_member *member))
{
	return crew_run_some(crew, UINT32_MAX, body);
}

static void keep_first(int *first, int error)
{
	if (!*first)
		*first = error;
}

int crew_close_member(struct crew_member *member)
{
	struct crew *crew = member->crew;
	uint32_t rank = member->rank;
	int error = 0;

	keep_first(&error, pier_group_destroy(member->group));
	keep_first(&error, pier_mr_dereg(member->mr));
	keep_first(&error, pier_buffer_free(member->buffer));
	keep_first(&error, pier_pd_dealloc(member->pd));
	keep_first(&error, pier_device_close(member->device));
	free(member->image);
	free(member->mine);
	free(member->theirs);
	*member = (struct crew_member){ .crew = crew, .rank = rank };
	return error;
}

int crew_close(struct crew *crew)
{
	int error = 0;

	for (uint32_t rank = 0; rank < crew->size; rank++)
		keep_first(&error, crew_close_member(&crew->members[rank]));
	return error;
}

long crew_compare(const struct crew_member *member)
{
	uint8_t *now = malloc(CREW_AREA);
	long different = -1;

	if (!now || pier_buffer_copy_from(member->buffer, 0, now, CREW_AREA) != 0)
		different = 0;
	for (long i = 0; different < 0 && i < CREW_AREA; i++) {
		if (now[i] != member->image[i])
			different = i;
	}
	free(now);
	return different;
}

int crew_differs(const struct crew *crew)
{
	for (uint32_t rank = 0; rank < crew->size; rank++) {
		if (crew->members[rank].buffer && crew_compare(&crew->members[rank]) >= 0)
			return (int)rank;
	}
	return -1;
}

int crew_gather(const struct crew_member *member, size_t offset, size_t length,
		struct pier_gather *ret_element)
{
	return pier_mr_gather(member->mr, pier_mr_iova(member->mr) + offset, length,
			      ret_element);
}

int crew_scatter(const struct crew_member *member, size_t offset, size_t length,
		 struct pier_scatter *ret_element)
{
	return pier_mr_scatter(member->mr, pier_mr_iova(member->mr) + offset, length,
			       ret_element);
}

int crew_remote(const struct crew_member *member, size_t offset, size_t length,
		struct pier_remote *ret_remote)
{
	struct pier_remote whole;
	int error = pier_mr_remote(member->mr, &whole);

	return error ? error : pier_remote_sub(&whole, offset, length, ret_remote);
}
