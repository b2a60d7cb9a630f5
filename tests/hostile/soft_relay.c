/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/provider/soft/soft_fixture.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/link/seal.h"
#include "../support/random.h"
#include "relay.h"

/*
 * Two processes with a relay on the path between them, which reads, changes, repeats,
 * reorders, withholds or cuts. It must not read anything, and no request may complete
 * with bytes that were not sent.
 */

enum {
	MESSAGES = 40,
	LENGTH = 5000,
	/* In the receiver's memory: two slots, and what is read from it. */
	SLOTS = 2,
	CONSTANT_AT = SLOTS * LENGTH,
	/* In the sender's. */
	LANDING_AT = LENGTH,
};

static const char needle[] = "nobody on the way may read this";

static void fill(uint8_t *memory, int number)
{
	for (int i = 0; i < LENGTH; i++)
		memory[i] = (uint8_t)(needle[i % sizeof(needle)] +
				      (i > 100 ? number : 0));
}

static bool is_filled(const uint8_t *memory, int number)
{
	uint8_t wanted[LENGTH];

	fill(wanted, number);
	return memcmp(memory, wanted, LENGTH) == 0;
}

static void post_recv(struct soft_fixture *fixture, int number)
{
	/* A queue pair that is broken takes it, too, and flushes it. */
	memset(fixture->memory + number % SLOTS * LENGTH, 0, LENGTH);
	assert_int_equal(fixture_post_recv(fixture, (uint64_t)number,
					   number % SLOTS * LENGTH, LENGTH),
			 0);
}

/* How many messages arrived before the link broke. All of them must be right. */
static int receive_messages(struct soft_fixture *fixture)
{
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_wc wc = fixture_wait(fixture, fixture->recv_cq, NULL);

		if (wc.status != IBV_WC_SUCCESS) {
			assert_int_equal(wc.status, IBV_WC_WR_FLUSH_ERR);
			return i;
		}
		assert_int_equal(wc.wr_id, i);
		assert_true(is_filled(fixture->memory + i % SLOTS * LENGTH, i));
		if (i + SLOTS < MESSAGES)
			post_recv(fixture, i + SLOTS);
	}
	return MESSAGES;
}

static void receiver_body(int fd)
{
	struct fixture_options options = { .rnr_retry = 7, .max_rd_atomic = 4 };
	struct fixture_endpoint mine, its;
	struct soft_fixture fixture;
	int arrived;
	char word;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fixture_open(&fixture, &options);
	fill(fixture.memory + CONSTANT_AT, 99);
	fixture_describe(&fixture, &mine);
	fixture_exchange(fd, &mine, &its);
	fixture_connect(&fixture, &its);
	for (int i = 0; i < SLOTS; i++)
		post_recv(&fixture, i);
	fixture_write_all(fd, "r", 1);
	arrived = receive_messages(&fixture);
	fixture_write_all(fd, &arrived, sizeof(arrived));
	fixture_read_all(fd, &word, 1);
	fixture_close(&fixture);
	_exit(0);
}

static bool complete(struct soft_fixture *fixture, uint64_t wr_id)
{
	struct ibv_wc wc = fixture_wait(fixture, fixture->send_cq, NULL);

	assert_int_equal(wc.wr_id, wr_id);
	if (wc.status == IBV_WC_SUCCESS)
		return true;
	assert_true(wc.status == IBV_WC_RETRY_EXC_ERR ||
		    wc.status == IBV_WC_WR_FLUSH_ERR);
	return false;
}

/* A message and a read at once, again and again until the link breaks. */
static int send_messages(struct soft_fixture *fixture, const struct fixture_endpoint *its)
{
	for (int i = 0; i < MESSAGES; i++) {
		fill(fixture->memory, i);
		assert_int_equal(fixture_post(fixture, IBV_WR_SEND, i, 0, LENGTH, NULL, 0,
					      IBV_SEND_SIGNALED),
				 0);
		memset(fixture->memory + LANDING_AT, 0, LENGTH);
		assert_int_equal(fixture_post(fixture, IBV_WR_RDMA_READ, 1000 + i,
					      LANDING_AT, LENGTH, its, CONSTANT_AT,
					      IBV_SEND_SIGNALED),
				 0);
		if (!complete(fixture, i) || !complete(fixture, 1000 + i))
			return i;
		assert_true(is_filled(fixture->memory + LANDING_AT, 99));
	}
	return MESSAGES;
}

/* Puts the relay's port in the place of an end's; returns that of the end. */
static uint16_t reroute(struct fixture_endpoint *endpoint, uint16_t port)
{
	struct soft_address address;
	uint16_t real;

	assert_int_equal(
		pier_soft_unpack_address(endpoint->blob, endpoint->blob_length, &address),
		0);
	real = address.port;
	address.port = port;
	assert_int_equal(
		pier_soft_pack_address(&address, endpoint->blob, sizeof(endpoint->blob)),
		endpoint->blob_length);
	return real;
}

struct outcome {
	int sent, arrived;
};

static struct outcome play(struct relay *relay)
{
	struct fixture_options options = { .rnr_retry = 7, .max_rd_atomic = 4 };
	struct fixture_endpoint mine, its, passed;
	struct outcome outcome;
	struct soft_fixture fixture;
	uint16_t ports[2];
	int fds[2], status;
	pid_t child;
	char word;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		receiver_body(fds[1]);
	close(fds[1]);
	relay_listen(relay, ports);
	fixture_open(&fixture, &options);
	fixture_describe(&fixture, &mine);
	passed = mine;
	relay->targets[0] = reroute(&passed, ports[0]);
	fixture_exchange(fds[0], &passed, &its);
	relay->targets[1] = reroute(&its, ports[1]);
	relay_start(relay);
	fixture_connect(&fixture, &its);
	fixture_read_all(fds[0], &word, 1);
	outcome.sent = send_messages(&fixture, &its);
	if (outcome.sent < MESSAGES) /* its end learns of it at once */
		assert_int_equal(fixture_to(&fixture, IBV_QPS_ERR), 0);
	fixture_read_all(fds[0], &outcome.arrived, sizeof(outcome.arrived));
	fixture_write_all(fds[0], "x", 1);
	fixture_close(&fixture);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	relay_join(relay);
	close(fds[0]);
	return outcome;
}

static void test_relay_reads_nothing(void **state)
{
	struct relay *relay = calloc(1, sizeof(*relay));
	struct outcome outcome;

	(void)state;
	assert_non_null(relay);
	relay->needle = needle;
	outcome = play(relay);
	assert_int_equal(outcome.sent, MESSAGES);
	assert_int_equal(outcome.arrived, MESSAGES);
	assert_false(relay->found);
	free(relay);
}

static void check_broken(enum relay_attack attack, bool from_caller, uint64_t at,
			 unsigned int bit)
{
	struct relay *relay = calloc(1, sizeof(*relay));
	struct outcome outcome;

	assert_non_null(relay);
	relay->attack = attack;
	relay->from_caller = from_caller;
	relay->at = at;
	relay->bit = bit;
	outcome = play(relay);
	if (!relay->attacked || outcome.sent == MESSAGES)
		fail_msg("attack %d at %llu bit %u of the %s: %s", attack,
			 (unsigned long long)at, bit, from_caller ? "caller" : "listener",
			 relay->attacked ? "the link did not break" : "never came to it");
	free(relay);
}

static void test_one_bit_flipped(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int i = 0; i < 16; i++)
		check_broken(RELAY_FLIP, i % 2, test_random_below(&random, 100000),
			     (unsigned int)test_random_below(&random, 8));
	/* The length of the first record, and its first bytes. */
	for (int i = 0; i < SOFT_RECORD_LENGTH_SIZE + 4; i++)
		check_broken(RELAY_FLIP, i % 2, (uint64_t)i,
			     (unsigned int)test_random_below(&random, 8));
}

static void test_stream_cut(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int i = 0; i < 6; i++)
		check_broken(RELAY_CUT, i % 2, test_random_below(&random, 100000), 0);
}

static void check_records(enum relay_attack attack)
{
	check_broken(attack, true, 0, 0);
	check_broken(attack, true, 7, 0);
	check_broken(attack, false, 5, 0);
}

static void test_record_replayed(void **state)
{
	(void)state;
	check_records(RELAY_REPLAY);
}

static void test_records_reordered(void **state)
{
	(void)state;
	check_records(RELAY_REORDER);
}

static void test_record_dropped(void **state)
{
	(void)state;
	check_records(RELAY_DROP);
}

static void test_stream_truncated_between_records(void **state)
{
	(void)state;
	check_records(RELAY_TRUNCATE);
}

static void test_record_reflected(void **state)
{
	(void)state;
	check_records(RELAY_REFLECT);
}

static void test_record_too_long(void **state)
{
	(void)state;
	check_records(RELAY_LENGTHEN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_relay_reads_nothing),
		cmocka_unit_test(test_one_bit_flipped),
		cmocka_unit_test(test_stream_cut),
		cmocka_unit_test(test_record_replayed),
		cmocka_unit_test(test_records_reordered),
		cmocka_unit_test(test_record_dropped),
		cmocka_unit_test(test_stream_truncated_between_records),
		cmocka_unit_test(test_record_reflected),
		cmocka_unit_test(test_record_too_long),
	};

	setenv("PIER_SOFT_UNIX", "off", 1);
	setenv("PIER_SOFT_ADDRESS", "127.0.0.1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
