/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <pier/error.h>

#include "message.h"

const struct control_protocol cp_protocol = {
	.command = "cp",
	.name = "copy",
	.task = "the copy",
	.magic = { 0x89, 'P', 'I', 'E', 'R', 'C', 'P', '\n' },
	.version = CP_PROTOCOL_VERSION,
};

enum {
	FLAG_VERIFY = 1,
	FLAG_DIRECT = 2,
	FLAG_PRESERVE = 4,
	FLAG_IPC = 8,
	FLAG_TREE = 16,
	FLAG_DRY_RUN = 32,
	FLAG_PARTIAL = 64,
	FLAG_CHAIN = 128,
	FLAGS = 255,
};

enum {
	SOURCE_SPARSE = 1,
	SOURCE_TREE = 2,
	SOURCE_SEVERAL = 4,
	SOURCE_CONTENTS = 8,
	SOURCE_IN_MEMORY = 16,
	SOURCE_FLAGS = 31,
};

int send_request(struct control *control, const struct request *request)
{
	const struct cp_settings *settings = &request->settings;
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, request->role);
	put_u64(&writer, settings->chunk);
	put_u64(&writer, settings->rate);
	put_u32(&writer, settings->depth);
	put_u32(&writer, settings->threads);
	put_u32(&writer, settings->timeout_ms);
	put_u32(&writer, (settings->verify ? FLAG_VERIFY : 0) |
				 (settings->direct ? FLAG_DIRECT : 0) |
				 (settings->preserve ? FLAG_PRESERVE : 0) |
				 (settings->ipc ? FLAG_IPC : 0) |
				 (settings->tree ? FLAG_TREE : 0) |
				 (settings->dry_run ? FLAG_DRY_RUN : 0) |
				 (settings->partial ? FLAG_PARTIAL : 0) |
				 (settings->chain ? FLAG_CHAIN : 0));
	put_bytes(&writer, settings->secret, sizeof(settings->secret));
	put_string(&writer, settings->channel);
	put_string(&writer, request->side.path);
	put_string(&writer, request->side.memory);
	put_string(&writer, request->side.device);
	return control_send(control, FRAME_REQUEST, &writer);
}

static bool settings_valid(const struct cp_settings *settings)
{
	return settings->chunk >= CP_CHUNK_MIN && settings->chunk <= CP_CHUNK_MAX &&
	       settings->chunk % CP_CHUNK_MIN == 0 && settings->depth >= 1 &&
	       settings->depth <= CP_DEPTH_MAX &&
	       settings->chunk * settings->depth <= CP_MEMORY_MAX &&
	       settings->threads <= CP_THREADS_MAX && settings->timeout_ms > 0 &&
	       settings->timeout_ms <= INT32_MAX;
}

static void get_settings(struct wire_reader *reader, struct cp_settings *ret_settings)
{
	const uint8_t *secret;
	uint32_t flags;

	ret_settings->chunk = get_u64(reader);
	ret_settings->rate = get_u64(reader);
	ret_settings->depth = get_u32(reader);
	ret_settings->threads = get_u32(reader);
	ret_settings->timeout_ms = get_u32(reader);
	flags = get_u32(reader);
	ret_settings->verify = flags & FLAG_VERIFY;
	ret_settings->direct = flags & FLAG_DIRECT;
	ret_settings->preserve = flags & FLAG_PRESERVE;
	ret_settings->ipc = flags & FLAG_IPC;
	ret_settings->tree = flags & FLAG_TREE;
	ret_settings->dry_run = flags & FLAG_DRY_RUN;
	ret_settings->partial = flags & FLAG_PARTIAL;
	ret_settings->chain = flags & FLAG_CHAIN;
	secret = get_bytes(reader, sizeof(ret_settings->secret));
	if (secret)
		memcpy(ret_settings->secret, secret, sizeof(ret_settings->secret));
	get_string(reader, ret_settings->channel, sizeof(ret_settings->channel));
	if (flags > FLAGS || !settings_valid(ret_settings))
		reader->bad = true;
}

int receive_request(struct control *control, struct request *ret_request)
{
	struct wire_reader reader;
	struct frame frame;
	uint32_t role;

	if (control_expect(control, FRAME_REQUEST, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	role = get_u32(&reader);
	get_settings(&reader, &ret_request->settings);
	get_string(&reader, ret_request->side.path, sizeof(ret_request->side.path));
	get_string(&reader, ret_request->side.memory, sizeof(ret_request->side.memory));
	get_string(&reader, ret_request->side.device, sizeof(ret_request->side.device));
	if (!wire_complete(&reader) || (role != CP_SENDER && role != CP_RECEIVER))
		return control_fail_invalid(control, "request");
	ret_request->role = (enum cp_role)role;
	return 0;
}

int send_chain(struct control *control, const struct chain_message *chain)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, chain->passes_on);
	put_string(&writer, chain->addresses);
	return control_send_if_open(control, FRAME_CHAIN, &writer);
}

int receive_chain(struct control *control, struct chain_message *ret_chain)
{
	struct wire_reader reader;
	struct frame frame;
	uint32_t passes_on;

	if (control_expect(control, FRAME_CHAIN, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	passes_on = get_u32(&reader);
	get_string(&reader, ret_chain->addresses, sizeof(ret_chain->addresses));
	if (!wire_complete(&reader) || passes_on > 1)
		return control_fail_invalid(control, "place in the chain");
	ret_chain->passes_on = passes_on;
	return 0;
}

int send_source(struct control *control, const struct source_message *source)
{
	struct wire_writer writer = { .length = 0 };

	put_u64(&writer, source->size);
	put_u32(&writer, (source->sparse ? SOURCE_SPARSE : 0) |
				 (source->tree ? SOURCE_TREE : 0) |
				 (source->several ? SOURCE_SEVERAL : 0) |
				 (source->contents ? SOURCE_CONTENTS : 0) |
				 (source->in_memory ? SOURCE_IN_MEMORY : 0));
	put_u32(&writer, source->mode);
	put_u64(&writer, source->mtime_seconds);
	put_u32(&writer, source->mtime_nanoseconds);
	put_string(&writer, source->name);
	put_bytes(&writer, source->identity, sizeof(source->identity));
	for (int i = 0; i < LOSSES; i++)
		put_u32(&writer, source->losses.files[i]);
	return control_send(control, FRAME_SOURCE, &writer);
}

static bool source_flags_valid(uint32_t flags)
{
	uint32_t kinds = flags & (SOURCE_SEVERAL | SOURCE_CONTENTS);

	return flags <= SOURCE_FLAGS && (!kinds || (flags & SOURCE_TREE)) &&
	       kinds != (SOURCE_SEVERAL | SOURCE_CONTENTS);
}

/* The name is used as a component of a path. */
static bool name_valid(const char *name)
{
	return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 &&
	       strcmp(name, "..") != 0;
}

int receive_source(struct control *control, struct source_message *ret_source)
{
	struct wire_reader reader;
	const uint8_t *identity;
	struct frame frame;
	uint32_t flags;

	if (control_expect(control, FRAME_SOURCE, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	ret_source->size = get_u64(&reader);
	flags = get_u32(&reader);
	ret_source->mode = get_u32(&reader);
	ret_source->mtime_seconds = get_u64(&reader);
	ret_source->mtime_nanoseconds = get_u32(&reader);
	get_string(&reader, ret_source->name, sizeof(ret_source->name));
	identity = get_bytes(&reader, sizeof(ret_source->identity));
	for (int i = 0; i < LOSSES; i++)
		ret_source->losses.files[i] = get_u32(&reader);
	if (!wire_complete(&reader) || ret_source->size > INT64_MAX ||
	    !source_flags_valid(flags) || ret_source->mode > CP_MODE_BITS ||
	    ret_source->mtime_nanoseconds >= 1000000000 || !name_valid(ret_source->name))
		return control_fail_invalid(control, "description of the file");
	ret_source->sparse = flags & SOURCE_SPARSE;
	ret_source->tree = flags & SOURCE_TREE;
	ret_source->several = flags & SOURCE_SEVERAL;
	ret_source->contents = flags & SOURCE_CONTENTS;
	ret_source->in_memory = flags & SOURCE_IN_MEMORY;
	memcpy(ret_source->identity, identity, sizeof(ret_source->identity));
	return 0;
}

int send_ipc(struct control *control, const struct ipc_message *ipc)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, ipc->ready);
	put_string(&writer, ipc->reason);
	put_bytes(&writer, ipc->handle, sizeof(ipc->handle));
	return control_send(control, FRAME_IPC, &writer);
}

int receive_ipc(struct control *control, struct ipc_message *ret_ipc)
{
	struct wire_reader reader;
	const uint8_t *handle;
	struct frame frame;
	uint32_t ready;

	if (control_expect(control, FRAME_IPC, &frame) < 0)
		return -1;
	reader = read_frame(&frame);
	ready = get_u32(&reader);
	get_string(&reader, ret_ipc->reason, sizeof(ret_ipc->reason));
	handle = get_bytes(&reader, sizeof(ret_ipc->handle));
	if (!wire_complete(&reader) || ready > 1)
		return control_fail_invalid(control, "handle of its memory");
	ret_ipc->ready = ready;
	memcpy(ret_ipc->handle, handle, sizeof(ret_ipc->handle));
	return 0;
}

static int put_rail(struct wire_writer *writer, const struct setup_message *setup,
		    uint32_t rail)
{
	uint8_t endpoint[PIER_ENDPOINT_WIRE_MAX], remote[PIER_REMOTE_WIRE_SIZE];
	int length = pier_endpoint_pack(&setup->endpoints[rail], endpoint,
					sizeof(endpoint));

	if (length < 0)
		return length;
	pier_remote_pack(&setup->remotes[rail], remote);
	put_u32(writer, (uint32_t)length);
	put_bytes(writer, endpoint, (size_t)length);
	put_bytes(writer, remote, sizeof(remote));
	return 0;
}

int send_setup(struct control *control, const struct setup_message *setup)
{
	struct wire_writer writer = { .length = 0 };

	put_u32(&writer, setup->rail_count);
	for (uint32_t i = 0; i < setup->rail_count; i++)
		if (put_rail(&writer, setup, i) < 0)
			return fail_pier(control->failure, EXIT_DEVICE);
	put_u64(&writer, setup->next);
	put_string(&writer, setup->report.device);
	put_string(&writer, setup->report.memory);
	put_string(&writer, setup->report.path);
	put_string(&writer, setup->report.reason);
	return control_send(control, FRAME_SETUP, &writer);
}

/* Returns 0, or the library's error. */
static int get_rail(struct wire_reader *reader, struct setup_message *ret_setup,
		    uint32_t rail)
{
	uint32_t length = get_u32(reader);
	const uint8_t *endpoint = get_bytes(reader, length);
	const uint8_t *remote = get_bytes(reader, PIER_REMOTE_WIRE_SIZE);
	int error;

	if (!remote)
		return 0;
	error = pier_endpoint_unpack(endpoint, length, &ret_setup->endpoints[rail]);
	return error ? error
		     : pier_remote_unpack(remote, PIER_REMOTE_WIRE_SIZE,
					  &ret_setup->remotes[rail]);
}

int read_setup(struct control *control, const struct frame *frame,
	       struct setup_message *ret_setup)
{
	struct cp_report *report = &ret_setup->report;
	struct wire_reader reader = read_frame(frame);

	ret_setup->rail_count = get_u32(&reader);
	if (ret_setup->rail_count < 1 || ret_setup->rail_count > CP_RAILS_MAX)
		return control_fail_invalid(control, "set-up");
	for (uint32_t i = 0; i < ret_setup->rail_count; i++)
		if (get_rail(&reader, ret_setup, i) < 0)
			return fail_pier(control->failure, EXIT_PEER);
	ret_setup->next = get_u64(&reader);
	get_string(&reader, report->device, sizeof(report->device));
	get_string(&reader, report->memory, sizeof(report->memory));
	get_string(&reader, report->path, sizeof(report->path));
	get_string(&reader, report->reason, sizeof(report->reason));
	return wire_complete(&reader) ? 0 : control_fail_invalid(control, "set-up");
}

int receive_setup(struct control *control, struct setup_message *ret_setup)
{
	struct frame frame;

	if (control_expect(control, FRAME_SETUP, &frame) < 0)
		return -1;
	return read_setup(control, &frame, ret_setup);
}

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
