/* SPDX-License-Identifier: BSD-3-Clause */

/* The table in docs/design/tools.md: what each frame does in each state. */

#include <stdlib.h>
#include <string.h>

#include "cp/party.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"

enum {
	STAYS = 100, /* the state */
	FAILS,	     /* with an unexpected message */
	READS,	     /* the message, which is invalid */
};

static const struct expectation {
	enum connection_state state;
	int setup, ready, relink, end, done, file;
} expectations[] = {
	{ CONNECTION_OPENING, FAILS, FAILS, FAILS, FAILS, FAILS, READS },
	{ CONNECTION_FLOWING, READS, FAILS, CONNECTION_BROKEN, CONNECTION_ENDED, FAILS,
	  READS },
	{ CONNECTION_BROKEN, READS, STAYS, CONNECTION_BROKEN, CONNECTION_ENDED, FAILS,
	  READS },
	{ CONNECTION_CALLED, FAILS, STAYS, CONNECTION_BROKEN, CONNECTION_ENDED, FAILS,
	  READS },
	{ CONNECTION_OFFERED, READS, STAYS, CONNECTION_BROKEN, CONNECTION_ENDED, FAILS,
	  READS },
	{ CONNECTION_CONNECTED, READS, CONNECTION_FLOWING, CONNECTION_BROKEN,
	  CONNECTION_ENDED, FAILS, READS },
	{ CONNECTION_REPORTED, STAYS, STAYS, CONNECTION_BROKEN, CONNECTION_ENDED, FAILS,
	  READS },
	{ CONNECTION_ENDED, STAYS, STAYS, STAYS, FAILS, FAILS, FAILS },
	{ CONNECTION_IDLE, STAYS, STAYS, STAYS, FAILS, CONNECTION_DONE, FAILS },
	{ CONNECTION_DONE, STAYS, STAYS, STAYS, FAILS, FAILS, FAILS },
};

static struct cp_settings settings = { .chain = true, .timeout_ms = 60000 };
static struct failure failure;
static struct outbox outbox;
static struct control control = { .protocol = &cp_protocol,
				  .in = -1,
				  .out = -1,
				  .signal_fd = -1,
				  .failure = &failure,
				  .outbox = &outbox };

/* The frame has no payload. Returns the state that follows, FAILS or READS. */
static int effect_of(uint32_t type, enum cp_role role, enum connection_state state)
{
	struct party party = { .state = state,
			       .role = role,
			       .settings = &settings,
			       .control = &control,
			       .failure = &failure };
	struct frame frame = { .type = type };

	failure = (struct failure){ 0 };
	begin_party(&party);
	if (take_frame(&party.connection, &frame) == 0)
		return (int)party.state;
	return strstr(failure.text, "unexpected control message") ? FAILS : READS;
}

static void check_effect(uint32_t type, enum cp_role role, enum connection_state state,
			 int expected)
{
	int effect = effect_of(type, role, state);

	if (effect != (expected == STAYS ? (int)state : expected))
		fail_msg("frame %u in state %d: %d, not %d (%s)", type, state, effect,
			 expected, failure.text);
}

static void a_frame_does_what_its_state_says(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(expectations) / sizeof(expectations[0]); i++) {
		const struct expectation *expected = &expectations[i];

		check_effect(FRAME_SETUP, CP_SENDER, expected->state, expected->setup);
		check_effect(FRAME_SETUP, CP_RECEIVER, expected->state, expected->setup);
		check_effect(FRAME_READY, CP_SENDER, expected->state, expected->ready);
		check_effect(FRAME_READY, CP_RECEIVER, expected->state, expected->ready);
		check_effect(FRAME_RELINK, CP_SENDER, expected->state, expected->relink);
		check_effect(FRAME_RELINK, CP_RECEIVER, expected->state,
			     expected->relink);
		check_effect(FRAME_END, CP_SENDER, expected->state, FAILS);
		check_effect(FRAME_END, CP_RECEIVER, expected->state, expected->end);
		check_effect(FRAME_DONE, CP_SENDER, expected->state, expected->done);
		check_effect(FRAME_DONE, CP_RECEIVER, expected->state, FAILS);
		check_effect(FRAME_FILE, CP_RECEIVER, expected->state, expected->file);
		check_effect(FRAME_KEEPALIVE, CP_SENDER, expected->state, STAYS);
		check_effect(FRAME_RAILS, CP_SENDER, expected->state, FAILS);
	}
}

/* A connection that breaks again and again must end at its time limit. */
static void keepalives_count_once_bytes_have_moved(void **state)
{
	struct connection connection = { .state = CONNECTION_FLOWING,
					 .role = CP_SENDER,
					 .settings = &settings,
					 .control = &control,
					 .failure = &failure };
	struct frame frame = { .type = FRAME_KEEPALIVE };

	(void)state;
	assert_int_equal(take_frame(&connection, &frame), 0);
	assert_true(connection.deadline_ns == 0);
	connection.is_proven = true;
	assert_int_equal(take_frame(&connection, &frame), 0);
	assert_true(connection.deadline_ns > 0);
	connection.deadline_ns = 0;
	connection.state = CONNECTION_BROKEN;
	assert_int_equal(take_frame(&connection, &frame), 0);
	assert_true(connection.deadline_ns == 0);
}

static void nobody_is_linked_again_without_a_chain(void **state)
{
	(void)state;
	settings.chain = false;
	check_effect(FRAME_RELINK, CP_SENDER, CONNECTION_FLOWING, FAILS);
	settings.chain = true;
}

/* Of a hostile server; the sentences of an honest one have been in its memory. */
static void sentences_of_a_dry_run_are_limited(void **state)
{
	struct cp_settings dry_run = {
		.tree = true, .dry_run = true, .chunk = CP_MEMORY_MAX - 65536, .depth = 1
	};
	struct party party = { .role = CP_RECEIVER,
			       .settings = &dry_run,
			       .control = &control,
			       .failure = &failure };
	struct wire_writer writer = { .length = 0 };
	struct frame frame = { .type = FRAME_FILE };
	char sentence[1001];
	int count = 0;

	(void)state;
	failure = (struct failure){ 0 };
	memset(sentence, 'x', sizeof(sentence) - 1);
	sentence[sizeof(sentence) - 1] = '\0';
	put_u32(&writer, NOTICE_OF_NO_FILE);
	put_string(&writer, sentence);
	memcpy(frame.payload, writer.data, writer.length);
	frame.length = (uint32_t)writer.length;
	begin_party(&party);
	while (count < 1000 && take_frame(&party.connection, &frame) == 0)
		count++;
	assert_in_range(count, 50, 65);
	assert_non_null(strstr(failure.text, "invalid number of files"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_frame_does_what_its_state_says),
		cmocka_unit_test(keepalives_count_once_bytes_have_moved),
		cmocka_unit_test(nobody_is_linked_again_without_a_chain),
		cmocka_unit_test(sentences_of_a_dry_run_are_limited),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	free(outbox.data);
	return failed;
}
