/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_WIRE_H
#define PIER_TOOLS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Numbers and strings in messages between two processes. Numbers are little-endian;
 * a string is a 16-bit length followed by its bytes. Neither side trusts the other, so
 * every step checks its bounds. Errors are sticky: check once, after the last step.
 */

enum {
	WIRE_MAX = 16384
};

struct wire_writer {
	uint8_t data[WIRE_MAX];
	size_t length;
	bool overflow;
};

struct wire_reader {
	const uint8_t *data;
	size_t left;
	bool bad; /* too short, or an invalid string */
};

void put_bytes(struct wire_writer *writer, const void *bytes, size_t length);
void put_u32(struct wire_writer *writer, uint32_t value);
void put_u64(struct wire_writer *writer, uint64_t value);
void put_string(struct wire_writer *writer, const char *string);

const uint8_t *get_bytes(struct wire_reader *reader, size_t length);
uint32_t get_u32(struct wire_reader *reader);
uint64_t get_u64(struct wire_reader *reader);
/* A string longer than size - 1, or one that contains a NUL, is an error. */
void get_string(struct wire_reader *reader, char *ret_string, size_t size);
/* Returns whether no step failed and all bytes were consumed. */
bool wire_complete(const struct wire_reader *reader);

/*
 * A message that is written or read. One function passes its members in both directions,
 * so that the two sides cannot disagree.
 */
struct wire {
	struct wire_writer *writer; /* NULL: it is read */
	struct wire_reader reader;
};

void pass_bytes(struct wire *wire, void *bytes, size_t length);
void pass_u32(struct wire *wire, uint32_t *value);
void pass_u64(struct wire *wire, uint64_t *value);
/* In the bits of one number. */
void pass_bools(struct wire *wire, bool *const *values, uint32_t count);
void pass_string(struct wire *wire, char *string, size_t size);
/* Of a message that is read. */
void require_value(struct wire *wire, bool valid);

#endif
