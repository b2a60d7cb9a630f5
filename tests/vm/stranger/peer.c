/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One end of a channel, for a peer that knows nothing of pier: it prints its
 * numbers, takes those of the peer, and does what lines on standard input say.
 * Only the public API is used. Every answer is one line:
 *
 *	ok key=value...
 *	error errno=N status=N says=SENTENCE
 *
 * Offsets are of the buffer. Ends with its input; status 0 when everything could
 * be given back, 77 after "skip: REASON" when the memory is not here.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../../support/requests.h"
#include "end.h"

static int say_numbers(struct end *end)
{
	struct pier_endpoint endpoint;
	struct pier_remote remote;
	int error = pier_channel_endpoint(end->channel, &endpoint);

	if (!error)
		error = pier_mr_remote(end->mr, &remote);
	if (error)
		return error;
	printf("ok qpn=%u psn=%u lid=%u link_layer=%d mtu=%u max_rd_atomic=%u gid=",
	       endpoint.qpn, endpoint.psn, endpoint.lid, (int)endpoint.link_layer,
	       endpoint.mtu, endpoint.max_rd_atomic);
	print_bytes(stdout, endpoint.gid, sizeof(endpoint.gid));
	printf(" addr=%" PRIu64 " length=%" PRIu64 " rkey=%u path=%s\n", remote.addr,
	       remote.length, remote.rkey, pier_path_name(pier_mr_path(end->mr)));
	return 0;
}

/* An endpoint that no pier packed: what is not named stays zero. */
static int do_connect(struct end *end, const struct words *words)
{
	struct pier_endpoint peer = {
		.qpn = (uint32_t)words_number(words, "qpn"),
		.psn = (uint32_t)words_number(words, "psn"),
		.lid = (uint16_t)words_number_or(words, "lid", 0),
		.link_layer = (enum pier_link_layer)words_number_or(words, "link_layer",
								    0),
		.mtu = (uint32_t)words_number_or(words, "mtu", 0),
		.max_rd_atomic = (uint8_t)words_number_or(words, "max_rd_atomic", 0),
	};
	int error;

	if (words_find(words, "gid") &&
	    words_bytes(words, "gid", peer.gid, sizeof(peer.gid)) != sizeof(peer.gid))
		die("a GID has %zu bytes", sizeof(peer.gid));
	error = pier_channel_connect(end->channel, &peer);
	if (!error)
		puts("ok");
	return error;
}

static int do_remote(struct end *end, const struct words *words)
{
	end->remote = (struct pier_remote){
		.addr = words_number(words, "addr"),
		.length = words_number(words, "length"),
		.rkey = (uint32_t)words_number(words, "rkey"),
	};
	puts("ok");
	return 0;
}

static int do_put(struct end *end, const struct words *words)
{
	size_t length = words_bytes(words, "bytes", end->bytes,
				    pier_buffer_length(end->buffer));
	int error = pier_buffer_copy_to(end->buffer, words_number(words, "offset"),
					end->bytes, length);

	if (!error)
		puts("ok");
	return error;
}

static int do_get(struct end *end, const struct words *words)
{
	size_t length = pier_buffer_length(end->buffer);
	int error = pier_buffer_copy_from(end->buffer, 0, end->bytes, length);

	(void)words;
	if (error)
		return error;
	fputs("ok bytes=", stdout);
	print_bytes(stdout, end->bytes, length);
	putchar('\n');
	return 0;
}

static uint64_t address_of(const struct end *end, const struct words *words)
{
	return pier_buffer_address(end->buffer) + words_number(words, "offset");
}

static int gather(const struct end *end, const struct words *words,
		  struct pier_gather *ret_element)
{
	return pier_mr_gather(end->mr, address_of(end, words),
			      words_number(words, "length"), ret_element);
}

static int scatter(const struct end *end, const struct words *words,
		   struct pier_scatter *ret_element)
{
	return pier_mr_scatter(end->mr, address_of(end, words),
			       words_number(words, "length"), ret_element);
}

/* The part of the peer's region that a write or a read is for. */
static int aim(const struct end *end, const struct words *words,
	       struct pier_remote *ret_remote)
{
	return pier_remote_sub(&end->remote, words_number(words, "at"),
			       words_number(words, "length"), ret_remote);
}

static struct pier_work *next_work(struct end *end)
{
	if (end->work_count == WORKS_MAX)
		die("more than %d requests", WORKS_MAX);
	return &end->works[end->work_count];
}

/* Answers with the number of the request that was posted. */
static int posted(struct end *end, int error)
{
	if (!error)
		printf("ok work=%d\n", end->work_count++);
	return error;
}

static int do_recv(struct end *end, const struct words *words)
{
	struct pier_scatter element;
	int error = scatter(end, words, &element);

	if (error)
		return error;
	return posted(end,
		      pier_channel_post_recv(end->channel, &element, 1, next_work(end)));
}

static int do_send(struct end *end, const struct words *words)
{
	struct pier_gather element;
	int error = gather(end, words, &element);

	if (error)
		return error;
	if (!words_find(words, "immediate"))
		return posted(end, pier_channel_post_send(end->channel, &element, 1,
							  next_work(end)));
	return posted(end, test_post_send_imm(end->channel, &element, 1,
					      (uint32_t)words_number(words, "immediate"),
					      next_work(end)));
}

static int do_write(struct end *end, const struct words *words)
{
	struct pier_gather element;
	struct pier_remote remote;
	int error = gather(end, words, &element);

	if (!error)
		error = aim(end, words, &remote);
	if (error)
		return error;
	if (!words_find(words, "immediate"))
		return posted(end, pier_channel_post_write(end->channel, &element, 1,
							   &remote, next_work(end)));
	return posted(end, test_post_write_imm(end->channel, &element, 1, &remote,
					       (uint32_t)words_number(words, "immediate"),
					       next_work(end)));
}

static int do_read(struct end *end, const struct words *words)
{
	struct pier_scatter element;
	struct pier_remote remote;
	int error = scatter(end, words, &element);

	if (!error)
		error = aim(end, words, &remote);
	if (error)
		return error;
	return posted(end, pier_channel_post_read(end->channel, &element, 1, &remote,
						  next_work(end)));
}

static const struct pier_work *work_of(const struct end *end, const struct words *words)
{
	uint64_t number = words_number(words, "work");

	if (number >= (uint64_t)end->work_count)
		die("no request %" PRIu64, number);
	return &end->works[number];
}

static void say_result(const struct pier_result *result)
{
	static const char *const names[] = {
		[PIER_OP_SEND] = "send",
		[PIER_OP_WRITE] = "write",
		[PIER_OP_READ] = "read",
		[PIER_OP_RECV] = "recv",
		[PIER_OP_RECV_WRITE_IMM] = "recv_write_imm",
	};

	printf("ok opcode=%s length=%u", names[result->opcode], result->byte_length);
	if (result->has_immediate)
		printf(" immediate=%u", result->immediate);
	putchar('\n');
}

static int do_wait(struct end *end, const struct words *words)
{
	struct pier_result result = { 0 };
	int error = test_work_wait(end->channel, *work_of(end, words),
				   (int)words_number(words, "ms"), &result);

	end->status = result.status;
	if (!error)
		say_result(&result);
	return error;
}

/* "ok" alone while the request is outstanding. */
static int do_poll(struct end *end, const struct words *words)
{
	struct pier_result result = { 0 };
	int done = pier_work_poll(end->channel, *work_of(end, words), &result);

	if (done < 0)
		return done;
	end->status = result.status;
	if (result.error)
		return result.error;
	if (done)
		say_result(&result);
	else
		puts("ok");
	return 0;
}

static const struct command {
	const char *name;
	int (*run)(struct end *end, const struct words *words);
} commands[] = {
	{ "connect", do_connect }, { "remote", do_remote }, { "put", do_put },
	{ "get", do_get },	   { "recv", do_recv },	    { "send", do_send },
	{ "write", do_write },	   { "read", do_read },	    { "wait", do_wait },
	{ "poll", do_poll },
};

static int run(struct end *end, const struct words *words)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (words->count && !strcmp(words->word[0], commands[i].name))
			return commands[i].run(end, words);
	}
	die("no such command: %s", words->count ? words->word[0] : "");
}

static void answer_error(const struct end *end, int error)
{
	if (error)
		printf("error errno=%d status=%u says=%s\n", error, end->status,
		       pier_error_message());
	fflush(stdout);
}

static void obey(struct end *end)
{
	char *line = NULL;
	size_t size = 0;

	while (getline(&line, &size, stdin) > 0) {
		struct words words;

		words_split(line, &words);
		end->status = 0;
		answer_error(end, run(end, &words));
	}
	free(line);
}

int main(int argc, char **argv)
{
	struct words options = { .count = 0 };
	struct end end;
	bool skip;
	int error;

	for (int i = 1; i < argc && i <= WORDS_MAX; i++)
		options.word[options.count++] = argv[i];
	error = end_open(&end, &options, &skip);
	if (skip)
		printf("skip: %s\n", pier_error_message());
	if (!error)
		error = say_numbers(&end);
	answer_error(&end, skip ? 0 : error);
	if (!error)
		obey(&end);
	if (end_close(&end))
		die("closing: %s", pier_error_message());
	return skip ? 77 : error ? 1 : 0;
}
