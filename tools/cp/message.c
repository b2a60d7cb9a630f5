/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pier/error.h>

#include "message.h"
#include "path.h"

const struct control_protocol cp_protocol = {
	.command = "cp",
	.name = "copy",
	.task = "the copy",
	.magic = { 0x89, 'P', 'I', 'E', 'R', 'C', 'P', '\n' },
	.version = CP_PROTOCOL_VERSION,
};

struct control cp_control(uint32_t timeout_ms, struct failure *failure)
{
	return (struct control){ .protocol = &cp_protocol,
				 .in = -1,
				 .out = -1,
				 .signal_fd = -1,
				 .timeout_ms = timeout_ms,
				 .failure = failure };
}

#define PASS_STRING(wire, array) pass_string(wire, array, sizeof(array))

struct codec {
	struct wire wire;
	bool refused; /* a part of the message, by the library */
};

static void pass_request(struct codec *codec, void *message)
{
	struct request *request = message;
	struct cp_settings *settings = &request->settings;
	struct wire *wire = &codec->wire;
	bool *const flags[] = {
		&settings->verify,  &settings->direct, &settings->preserve,
		&settings->ipc,	    &settings->tree,   &settings->dry_run,
		&settings->partial, &settings->chain,  &settings->skip_same,
	};
	uint32_t role = request->role;

	pass_u32(wire, &role);
	pass_u64(wire, &settings->chunk);
	pass_u64(wire, &settings->rate);
	pass_u32(wire, &settings->depth);
	pass_u32(wire, &settings->threads);
	pass_u32(wire, &settings->timeout_ms);
	pass_bools(wire, flags, sizeof(flags) / sizeof(flags[0]));
	pass_bytes(wire, settings->secret, sizeof(settings->secret));
	PASS_STRING(wire, settings->channel);
	PASS_STRING(wire, request->side.path);
	PASS_STRING(wire, request->side.memory);
	PASS_STRING(wire, request->side.device);
	require_value(wire, (role == CP_SENDER || role == CP_RECEIVER) &&
				    settings->chunk >= CP_CHUNK_MIN &&
				    settings->chunk <= CP_CHUNK_MAX &&
				    settings->chunk % CP_CHUNK_MIN == 0 &&
				    settings->depth >= 1 &&
				    settings->depth <= CP_DEPTH_MAX &&
				    settings->chunk * settings->depth <= CP_MEMORY_MAX &&
				    settings->threads <= CP_THREADS_MAX &&
				    settings->timeout_ms > 0 &&
				    settings->timeout_ms <= INT32_MAX);
	request->role = (enum cp_role)role;
}

static void pass_chain(struct codec *codec, void *message)
{
	struct chain_message *chain = message;

	pass_bools(&codec->wire, (bool *const[]){ &chain->passes_on }, 1);
	PASS_STRING(&codec->wire, chain->addresses);
}

static void pass_source(struct codec *codec, void *message)
{
	struct source_message *source = message;
	struct wire *wire = &codec->wire;
	bool *const flags[] = { &source->sparse, &source->tree, &source->several,
				&source->contents, &source->in_memory };

	pass_u64(wire, &source->size);
	pass_bools(wire, flags, sizeof(flags) / sizeof(flags[0]));
	pass_u32(wire, &source->mode);
	pass_u64(wire, &source->mtime_seconds);
	pass_u32(wire, &source->mtime_nanoseconds);
	PASS_STRING(wire, source->name);
	pass_bytes(wire, source->identity, sizeof(source->identity));
	for (int i = 0; i < LOSSES; i++)
		pass_u32(wire, &source->losses.files[i]);
	/* The name is used as a component of a path. */
	require_value(wire,
		      (source->size <= INT64_MAX || (source->size == CP_SIZE_UNKNOWN &&
						     !source->sparse && !source->tree)) &&
			      source->mode <= CP_MODE_BITS &&
			      source->mtime_nanoseconds < 1000000000 &&
			      !has_no_name(source->name) && !strchr(source->name, '/') &&
			      source->several + source->contents <= source->tree);
}

static void pass_ipc(struct codec *codec, void *message)
{
	struct ipc_message *ipc = message;

	pass_bools(&codec->wire, (bool *const[]){ &ipc->ready }, 1);
	PASS_STRING(&codec->wire, ipc->reason);
	pass_bytes(&codec->wire, ipc->handle, sizeof(ipc->handle));
}

static void pass_endpoint(struct codec *codec, struct pier_endpoint *endpoint)
{
	uint8_t bytes[PIER_ENDPOINT_WIRE_MAX] = { 0 };
	struct wire *wire = &codec->wire;
	uint32_t length = sizeof(bytes);
	int packed;

	if (wire->writer) {
		packed = pier_endpoint_pack(endpoint, bytes, sizeof(bytes));
		codec->refused |= packed < 0;
		length = packed < 0 ? 0 : (uint32_t)packed;
	}
	pass_u32(wire, &length);
	if (wire->writer) {
		pass_bytes(wire, bytes, length);
	} else {
		const uint8_t *read = get_bytes(&wire->reader, length);

		codec->refused |= read && !codec->refused &&
				  pier_endpoint_unpack(read, length, endpoint) < 0;
	}
}

static void pass_remote(struct codec *codec, struct pier_remote *remote)
{
	uint8_t bytes[PIER_REMOTE_WIRE_SIZE];
	struct wire *wire = &codec->wire;

	if (wire->writer)
		pier_remote_pack(remote, bytes);
	pass_bytes(wire, bytes, sizeof(bytes));
	codec->refused |= !wire->writer && !wire->reader.bad && !codec->refused &&
			  pier_remote_unpack(bytes, sizeof(bytes), remote) < 0;
}

static void pass_setup(struct codec *codec, void *message)
{
	struct setup_message *setup = message;
	struct wire *wire = &codec->wire;

	pass_u32(wire, &setup->rail_count);
	if (setup->rail_count < 1 || setup->rail_count > CP_RAILS_MAX) {
		require_value(wire, false);
		return;
	}
	for (uint32_t i = 0; i < setup->rail_count; i++) {
		pass_endpoint(codec, &setup->endpoints[i]);
		pass_remote(codec, &setup->remotes[i]);
	}
	pass_u64(wire, &setup->next);
	PASS_STRING(wire, setup->report.device);
	PASS_STRING(wire, setup->report.memory);
	PASS_STRING(wire, setup->report.path);
	PASS_STRING(wire, setup->report.reason);
}

static void pass_file_notice(struct codec *codec, void *message)
{
	struct file_notice *notice = message;

	pass_u32(&codec->wire, &notice->number);
	PASS_STRING(&codec->wire, notice->sentence);
}

static const struct form {
	const char *name; /* for the error message */
	void (*pass)(struct codec *codec, void *message);
} forms[] = {
	[FRAME_REQUEST] = { "request", pass_request },
	[FRAME_SOURCE] = { "description of the file", pass_source },
	[FRAME_SETUP] = { "set-up", pass_setup },
	[FRAME_IPC] = { "handle of its memory", pass_ipc },
	[FRAME_FILE] = { "sentence about a file", pass_file_notice },
	[FRAME_CHAIN] = { "place in the chain", pass_chain },
};

int send_message(struct control *control, enum cp_frame type, const void *message)
{
	struct wire_writer writer = { .length = 0 };
	struct codec codec = { .wire.writer = &writer };

	forms[type].pass(&codec, (void *)message);
	return codec.refused ? fail_pier(control->failure, EXIT_DEVICE)
			     : control_send(control, type, &writer);
}

int parse_message(struct control *control, const struct frame *frame, void *ret_message)
{
	const struct form *form = &forms[frame->type];
	struct codec codec = { .wire.reader = read_frame(frame) };

	form->pass(&codec, ret_message);
	if (codec.refused)
		return fail_pier(control->failure, EXIT_PEER);
	return wire_complete(&codec.wire.reader)
		       ? 0
		       : control_fail_invalid(control, form->name);
}

int expect_message(struct control *control, enum cp_frame type, void *ret_message)
{
	struct frame frame;

	return control_expect(control, type, &frame) < 0
		       ? -1
		       : parse_message(control, &frame, ret_message);
}

enum {
	WORD_OPERAND = 1,
	WORD_PATTERN = 2,
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
	for (uint32_t i = 0; i < words->count; i++) {
		struct wire_writer writer = { .length = 0 };

		put_u32(&writer, kind);
		put_string(&writer, words->all[i]);
		if (control_send(control, FRAME_WORDS, &writer) < 0)
			return -1;
	}
	return 0;
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
