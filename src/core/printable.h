/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_PRINTABLE_H
#define PIER_CORE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/*
 * Text from a peer, and names of files and devices, must not steer the user's terminal or
 * pass for a line of their own. The program pier includes this header, too: it needs
 * nothing of the library.
 */

enum {
	PIER_PIECE_MAX = 5 /* with its NUL */
};

/* The length, from the first byte, and the range of the second: Unicode, table 3-7. */
static inline size_t pier_sequence_length(const unsigned char *s, unsigned char *ret_low,
					  unsigned char *ret_high)
{
	*ret_low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
	*ret_high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		return 2;
	if (s[0] >= 0xe0 && s[0] <= 0xef)
		return 3;
	return s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
}

/*
 * Decode the first character of the string. Returns its length in bytes, or 0 if the
 * string is empty or does not begin with valid UTF-8.
 */
static inline size_t pier_decode_utf8(const char *text, uint32_t *ret_code)
{
	const unsigned char *s = (const unsigned char *)text;
	unsigned char low, high;
	size_t length, i;
	uint32_t code;

	*ret_code = s[0];
	if (s[0] < 0x80)
		return s[0] != '\0';
	length = pier_sequence_length(s, &low, &high);
	code = s[0] & (0x7fu >> length);
	/* The terminating NUL is out of range, so the loop stops there. */
	for (i = 1; i < length; i++, low = 0x80, high = 0xbf) {
		if (s[i] < low || s[i] > high)
			return 0;
		code = code << 6 | (s[i] & 0x3fu);
	}
	*ret_code = code;
	return length;
}

/*
 * False for control and format characters that a terminal may act on (C0, DEL, C1,
 * direction marks, line separators, the byte order mark, tags) and for noncharacters.
 */
static inline bool pier_is_printable(uint32_t code)
{
	static const struct {
		uint32_t first, last;
	} refused[] = {
		{ 0x0, 0x1f },	      { 0x7f, 0x9f },	  { 0x61c, 0x61c },
		{ 0x200b, 0x200f },   { 0x2028, 0x202e }, { 0x2060, 0x206f },
		{ 0xfdd0, 0xfdef },   { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb },
		{ 0xe0000, 0xe0fff },
	};
	size_t i;

	for (i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (code >= refused[i].first && code <= refused[i].last)
			return false;
	/* The last two codes of every plane are noncharacters. */
	return (code & 0xfffe) != 0xfffe;
}

/*
 * Write the first character of a string that is not empty, or its first byte as \xNN if
 * that begins no printable character, and advance the string. Returns the length.
 */
static inline size_t pier_escape_next(const char **text, char ret_piece[PIER_PIECE_MAX])
{
	uint32_t code;
	size_t length = pier_decode_utf8(*text, &code);

	if (!length || !pier_is_printable(code))
		return (size_t)sprintf(ret_piece, "\\x%02x", (unsigned char)*(*text)++);
	memcpy(ret_piece, *text, length);
	*text += length;
	return length;
}

#endif
