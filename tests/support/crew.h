/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_CREW_H
#define TESTS_SUPPORT_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

/*
 * All members of a group in one process, each with a device, memory and a thread of its
 * own. Nothing here asserts, since cmocka's assertions belong to the main thread:
 * failures are -errno, with the sentence in pier_error_message().
 */

enum {
	CREW_MAX = 16,
	CREW_AREA = 40000,
	CREW_PATIENT = 30000, /* for what must come, in milliseconds */
	CREW_BRIEF = 150,     /* for what must not */
};

struct crew_member {
	struct crew *crew;
	uint32_t rank;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	uint8_t *image; /* what must be in the buffer */
	struct pier_group *group;
	uint8_t *mine, *theirs; /* blobs */
	/* Of the last crew_run(). */
	int (*body)(struct crew_member *member);
	pthread_t thread;
	int error;
	char sentence[512];
	int64_t took_ms;
};

struct crew {
	uint32_t size;
	int timeout_ms; /* for bodies */
	void *argument; /* for bodies */
	struct crew_member members[CREW_MAX];
};

/* Devices, memory of random bytes and groups; even ranks on one device, odd on another.
 */
int crew_open(struct crew *crew, uint32_t size, const char *device,
	      const char *odd_device, const char *backend,
	      const struct pier_group_attr *attr, uint64_t seed);
/* Blobs to where they belong. */
int crew_exchange(struct crew *crew);
/* All members connect, each in its thread; the first error. */
int crew_connect(struct crew *crew);
/* Closes what there is; the first error. */
int crew_close(struct crew *crew);
int crew_close_member(struct crew_member *member);

/*
 * Run a body in a thread for each member, and wait for all of them; the first error, by
 * rank, with its sentence. Or of some members, by a mask of ranks.
 */
int crew_run(struct crew *crew, int (*body)(struct crew_member *member));
int crew_run_some(struct crew *crew, uint32_t mask,
		  int (*body)(struct crew_member *member));

/* -1: all bytes of the member are those of its image; or the offset of the first else. */
long crew_compare(const struct crew_member *member);
/* That for all: the first rank that differs, or -1. */
int crew_differs(const struct crew *crew);

int crew_gather(const struct crew_member *member, size_t offset, size_t length,
		struct pier_gather *ret_element);
int crew_scatter(const struct crew_member *member, size_t offset, size_t length,
		 struct pier_scatter *ret_element);
int crew_remote(const struct crew_member *member, size_t offset, size_t length,
		struct pier_remote *ret_remote);

int64_t crew_milliseconds(void);

#endif
