/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_CREW_H
#define TESTS_SUPPORT_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

/*
 * All members of a group in one process, each with its own device, memory and thread.
 * Nothing here asserts, because cmocka's assertions belong to the main thread. Failures
 * are returned as -errno, with the sentence in pier_error_message().
 */

enum {
	CREW_MAX = 16,
	CREW_AREA = 40000,
	CREW_PATIENT = 30000, /* for events that must happen, in milliseconds */
	CREW_BRIEF = 150,     /* for events that must not happen */
};

struct crew_member {
	struct crew *crew;
	uint32_t rank;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	uint8_t *image; /* the expected bytes of the buffer */
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

/*
 * Opens devices, memory of random bytes and groups. Even ranks use one device, odd ranks
 * another.
 */
int crew_open(struct crew *crew, uint32_t size, const char *device,
	      const char *odd_device, const char *backend,
	      const struct pier_group_attr *attr, uint64_t seed);
/* Delivers the blobs. */
int crew_exchange(struct crew *crew);
/* Connects all members, each in its thread. Returns the first error. */
int crew_connect(struct crew *crew);
/* Closes all that is open and returns the first error. */
int crew_close(struct crew *crew);
int crew_close_member(struct crew_member *member);

/*
 * Runs a body in a thread for each member, or for a mask of ranks, and waits for all of
 * them. Returns the error of the lowest failing rank, with its sentence.
 */
int crew_run(struct crew *crew, int (*body)(struct crew_member *member));
int crew_run_some(struct crew *crew, uint32_t mask,
		  int (*body)(struct crew_member *member));

/* Returns the offset of the first byte that differs from the member's image, or -1. */
long crew_compare(const struct crew_member *member);
/* Compares all members. Returns the first rank that differs, or -1. */
int crew_differs(const struct crew *crew);

int crew_gather(const struct crew_member *member, size_t offset, size_t length,
		struct pier_gather *ret_element);
int crew_scatter(const struct crew_member *member, size_t offset, size_t length,
		 struct pier_scatter *ret_element);
int crew_remote(const struct crew_member *member, size_t offset, size_t length,
		struct pier_remote *ret_remote);

int64_t crew_milliseconds(void);

#endif
