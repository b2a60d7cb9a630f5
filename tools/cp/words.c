/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"

enum {
	WORD_OPERAND = 1,
	WORD_PATTERN = 2,
	WORD_MAX = 4 + 2 + PATH_MAX,
};

int add_word(struct words *words, const char *word, uint32_t most)
{
	char **larger;

	if (words->count == most)
		return -1;
	larger = realloc(words->all, (words->count + 1) * sizeof(words->all[0]));
	if (!larger)
		return -1;
	words->all = larger;
	words->all[words->count] = strdup(word);
	return words->all[words->count] ? (words->count++, 0) : -1;
}

void free_words(struct words *words)
{
	for (uint32_t i = 0; i < words->count; i++)
		free(words->all[i]);
	free(words->all);
	words->all = NULL;
	words->count = 0;
}

static int send_kind(struct control *control, uint32_t kind, const struct words *words)
{
	struct wire_writer writer = { .length = 0 };

	for (uint32_t i = 0; i < words->count; i++) {
		if (writer.length > WIRE_MAX - WORD_MAX) {
			if (control_send(control, FRAME_WORDS, &writer) < 0)
				return -1;
			writer.length = 0;
		}
		put_u32(&writer, kind);
		put_string(&writer, words->all[i]);
	}
	return writer.length ? control_send(control, FRAME_WORDS, &writer) : 0;
}

int send_words(struct control *control, const struct words *operands,
	       const struct words *patterns)
{
	if (send_kind(control, WORD_OPERAND, operands) < 0 ||
	    send_kind(control, WORD_PATTERN, patterns) < 0)
		return -1;
	return control_send(control, FRAME_WORDS, NULL);
}

static int take_word(struct wire_reader *reader, struct words *operands,
		     struct words *patterns)
{
	char word[PATH_MAX];
	uint32_t kind = get_u32(reader);

	get_string(reader, word, sizeof(word));
	if (reader->bad || !word[0])
		return -1;
	if (kind == WORD_OPERAND)
		return add_word(operands, word, CP_OPERANDS_MAX);
	return kind == WORD_PATTERN ? add_word(patterns, word, CP_PATTERNS_MAX) : -1;
}

int receive_words(struct control *control, struct words *ret_operands,
		  struct words *ret_patterns)
{
	struct frame frame;

	for (;;) {
		struct wire_reader reader;

		if (control_expect(control, FRAME_WORDS, &frame) < 0)
			return -1;
		reader = read_frame(&frame);
		if (frame.length == 0 && ret_operands->count > 0)
			return 0;
		do {
			if (take_word(&reader, ret_operands, ret_patterns) < 0)
				return control_fail_invalid(control, "list of sources");
		} while (reader.left > 0);
	}
}

int send_file_notice(struct control *control, uint32_t number, const char *sentence)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, number);
	put_string(&writer, sentence);
	return control_send(control, FRAME_FILE, &writer);
}

int read_file_notice(struct control *control, const struct frame *frame,
		     uint32_t *ret_number, char *ret_sentence, size_t size)
{
	struct wire_reader reader = read_frame(frame);

	*ret_number = get_u32(&reader);
	get_string(&reader, ret_sentence, size);
	return wire_complete(&reader)
		       ? 0
		       : control_fail_invalid(control, "sentence about a file");
}
