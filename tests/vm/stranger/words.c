/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "words.h"

void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("vm_peer: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(2);
}

void words_split(char *line, struct words *ret_words)
{
	char *rest = NULL, *word = strtok_r(line, " \n", &rest);

	ret_words->count = 0;
	for (; word; word = strtok_r(NULL, " \n", &rest)) {
		if (ret_words->count == WORDS_MAX)
			die("more than %d words in a line", WORDS_MAX);
		ret_words->word[ret_words->count++] = word;
	}
}

const char *words_find(const struct words *words, const char *key)
{
	size_t length = strlen(key);

	for (int i = 0; i < words->count; i++) {
		if (!strncmp(words->word[i], key, length) &&
		    words->word[i][length] == '=')
			return words->word[i] + length + 1;
	}
	return NULL;
}

const char *words_text(const struct words *words, const char *key)
{
	const char *value = words_find(words, key);

	if (!value)
		die("%s=... is missing", key);
	return value;
}

uint64_t words_number(const struct words *words, const char *key)
{
	const char *value = words_text(words, key);
	char *end;
	uint64_t number;

	errno = 0;
	number = strtoull(value, &end, 0);
	if (errno || end == value || *end)
		die("%s=%s is no number", key, value);
	return number;
}

uint64_t words_number_or(const struct words *words, const char *key, uint64_t otherwise)
{
	return words_find(words, key) ? words_number(words, key) : otherwise;
}

static uint8_t digit(char character)
{
	if (character >= '0' && character <= '9')
		return (uint8_t)(character - '0');
	if (character >= 'a' && character <= 'f')
		return (uint8_t)(character - 'a' + 10);
	die("'%c' is no hexadecimal digit", character);
}

size_t words_bytes(const struct words *words, const char *key, uint8_t *ret_bytes,
		   size_t size)
{
	const char *text = words_text(words, key);
	size_t count = strlen(text) / 2;

	if (strlen(text) % 2 || count > size)
		die("%s has %zu digits; at most %zu fit", key, strlen(text), 2 * size);
	for (size_t i = 0; i < count; i++)
		ret_bytes[i] = (uint8_t)(digit(text[2 * i]) << 4 |
					 digit(text[2 * i + 1]));
	return count;
}

void print_bytes(FILE *file, const uint8_t *bytes, size_t size)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < size; i++) {
		putc_unlocked(digits[bytes[i] >> 4], file);
		putc_unlocked(digits[bytes[i] & 15], file);
	}
}
