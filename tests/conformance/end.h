/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef CONFORMANCE_END_H
#define CONFORMANCE_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pier/pier.h>

/*
 * One end of a connection: its own device, a channel, and an area of memory of the
 * backend under test. Nothing here asserts, because it also runs in child processes,
 * where cmocka does not. Failures are returned as -errno, with the sentence in
 * pier_error_message().
 */

enum {
	/* Many times a port's MTU, and a multiple of nothing. */
	AREA_LENGTH = 200 * 1024 + 13,
	/* For events that must happen: far longer than they take. In milliseconds. */
	PATIENT = 30000,
	/* For events that must not happen. */
	BRIEF = 30,
};

/* A buffer and a region of all of it. The image has the expected bytes. */
struct area {
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	uint8_t *image;
};

struct end {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_channel *channel;
	struct area area;
};

/* What is tested, from the command line or the environment. */
extern const char *test_device, *test_backend;
/* The device of the other end: the same one, or one that is connected with it. */
extern const char *test_peer_device;
/* The device does not distinguish all errors. */
extern bool test_vague;

/*
 * Attributes for tests, with which a dead peer and a missing receive are detected soon.
 */
struct pier_channel_attr test_attr(void);

/* `device`: test_device or test_peer_device. */
int end_open(struct end *end, const char *device);
int end_prepare(struct end *end, const struct pier_channel_attr *attr);
/* Closes all that is open and returns the first error. */
int end_close(struct end *end);

int area_open(struct area *area, struct pier_pd *pd, int access);
int area_close(struct area *area);

/* The iova of the byte at that offset. */
uint64_t area_at(const struct area *area, size_t offset);

/* Returns the offset of the first byte that differs from the image, or -1. */
long area_compare(const struct area *area);

/* Connect two ends of this process to each other. */
int ends_connect(struct end *a, struct end *b);

#endif
