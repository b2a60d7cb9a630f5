/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef VM_STRANGER_WORDS_H
#define VM_STRANGER_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	WORDS_MAX = 16,
};

/*
 * A line of words "key=value". Who asks for what is not there, or is no number,
 * ends the program: its lines come from a test, which then is wrong.
 */
struct words {
	char *word[WORDS_MAX];
	int count;
};

/* The words are pieces of the line, which is changed. */
void words_split(char *line, struct words *ret_words);

/* The value, or NULL. */
const char *words_find(const struct words *words, const char *key);

const char *words_text(const struct words *words, const char *key);
uint64_t words_number(const struct words *words, const char *key);
uint64_t words_number_or(const struct words *words, const char *key, uint64_t otherwise);

/* Pairs of hexadecimal digits; returns the number of bytes. */
size_t words_bytes(const struct words *words, const char *key, uint8_t *ret_bytes,
		   size_t size);
void print_bytes(FILE *file, const uint8_t *bytes, size_t size);

/* Says it on standard error and ends the program, with status 2. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
