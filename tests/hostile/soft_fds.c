/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"

/*
 * Peers that send fds over the Unix socket where the protocol has none, to use up the fds
 * of the process.
 */

static const struct fixture_options stepped = { .stepped = 1 };

/* Each byte of a hello with two fds, for which a buffer for one has room. */
static void fds_with_a_hello_are_refused(void **state)
{
	struct fake fake;
	struct soft_fixture fixture;
	int socket, before;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	before = fixture_count_fds();
	socket = fake_dial(&fixture);
	for (int i = 0; i < SOFT_HELLO_SIZE; i++) {
		if (peer_send(socket, "p", 1, STDIN_FILENO, 2) < 0)
			break;
	}
	assert_true(fake_hangs_up(socket));
	close(socket);
	peer_expect_fds(before);
	fixture_close(&fixture);
}

static void send_proof(const struct fake *fake, int socket, const uint8_t *transcript,
		       int count)
{
	uint8_t proof[SOFT_PROOF_SIZE];
	struct soft_address its;

	assert_int_equal(pier_soft_unpack_address(fake->to_fixture.blob,
						  fake->to_fixture.blob_length, &its),
			 0);
	pier_soft_prove(its.secret, SOFT_CALLER_PROVES, transcript, proof);
	pier_soft_prove(fake->address.secret, SOFT_CALLER_IDENTITY, transcript,
			proof + SOFT_MAC_SIZE);
	peer_send(socket, proof, sizeof(proof), STDIN_FILENO, count);
}

/* A proof has one fd at most. */
static void fds_with_a_proof_are_refused(void **state)
{
	const int counts[] = { 2, 3, PEER_MAX_FDS };

	(void)state;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		uint8_t transcript[SOFT_MAC_SIZE];
		struct fake fake;
		struct soft_fixture fixture;
		int socket, before;

		fixture_open(&fixture, NULL);
		fake_make(&fake, &fixture);
		before = fixture_count_fds();
		socket = fake_dial(&fixture);
		fake_say_hello(&fake, socket, transcript);
		send_proof(&fake, socket, transcript, counts[i]);
		assert_true(fake_hangs_up(socket));
		close(socket);
		peer_expect_fds(before);
		fixture_close(&fixture);
	}
}

/* An fd that is no shared memory is closed, and the link does without. */
static void foreign_fd_with_a_proof_is_closed(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE], welcome[SOFT_WELCOME_SIZE];
	struct fake fake;
	struct soft_fixture fixture;
	int socket, before;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	before = fixture_count_fds();
	socket = fake_dial(&fixture);
	fake_say_hello(&fake, socket, transcript);
	send_proof(&fake, socket, transcript, 1);
	fixture_read_all(socket, welcome, sizeof(welcome));
	/* Ours, and the one that waits for the queue pair. */
	peer_expect_fds(before + 2);
	close(socket);
	fixture_close(&fixture);
}

/* One fd with each byte of a proof that does not hold. */
static void fds_with_a_false_proof_do_not_pile_up(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE];
	struct fake fake;
	struct soft_fixture fixture;
	int socket, before;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	before = fixture_count_fds();
	socket = fake_dial(&fixture);
	fake_say_hello(&fake, socket, transcript);
	for (int i = 0; i < SOFT_PROOF_SIZE; i++) {
		if (peer_send(socket, "p", 1, STDIN_FILENO, 1) < 0)
			break;
	}
	assert_true(fake_hangs_up(socket));
	close(socket);
	peer_expect_fds(before);
	fixture_close(&fixture);
}

/* More fds than a grant has pieces, with messages of a peer that knows the secret. */
static void fds_with_control_messages_do_not_pile_up(void **state)
{
	const uint8_t wake[] = { 1 }, grant[40] = { 5, 255 };
	const struct {
		const void *bytes;
		size_t length;
	} messages[] = {
		{ wake, 1 }, { grant, sizeof(grant) }, { grant, 30 }, { grant, 1 }
	};

	(void)state;
	for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
		int before = fixture_count_fds();
		struct soft_fixture a, b;

		fixture_open_pair(&a, &b, &stepped);
		assert_int_equal(fixture_post_recv(&b, 11, 0, 8), 0);
		for (int k = 0; k < 3; k++)
			peer_send(peer_qp(&a)->link.tx_fd, messages[i].bytes,
				  messages[i].length, STDIN_FILENO, PEER_MAX_FDS);
		fixture_expect(&b, b.recv_cq, NULL, 11, IBV_WC_WR_FLUSH_ERR);
		fixture_close(&a);
		fixture_close(&b);
		assert_int_equal(fixture_count_fds(), before);
	}
}

enum {
	STEPS = 1000,
	SENDS = 1000,
	/* A step that takes all there is ends only then. */
	FLOOD_MS = 30000
};

struct flood {
	int socket;
	atomic_int sends;
	atomic_bool over, waited_for;
};

static void *send_grant_requests(void *argument)
{
	struct flood *flood = argument;
	uint64_t end = fixture_milliseconds() + FLOOD_MS;
	static uint8_t asks[1 << 20];

	for (size_t i = 0; i < sizeof(asks); i += 8)
		asks[i] = 2;
	while (!atomic_load(&flood->over) && fixture_milliseconds() < end) {
		send(flood->socket, asks, sizeof(asks), MSG_NOSIGNAL | MSG_DONTWAIT);
		atomic_fetch_add(&flood->sends, 1);
	}
	atomic_store(&flood->waited_for, !atomic_load(&flood->over));
	return NULL;
}

/* A peer that sends without end does not keep the engine from the others. */
static void endless_control_messages_do_not_stop_the_engine(void **state)
{
	struct flood flood;
	pthread_t thread;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	flood.socket = peer_qp(&a)->link.tx_fd;
	atomic_init(&flood.sends, 0);
	atomic_init(&flood.over, false);
	atomic_init(&flood.waited_for, false);
	assert_int_equal(pthread_create(&thread, NULL, send_grant_requests, &flood), 0);
	for (int i = 0; (i < STEPS || atomic_load(&flood.sends) < SENDS) &&
			!atomic_load(&flood.waited_for);
	     i++)
		fixture_step(&b, NULL);
	atomic_store(&flood.over, true);
	pthread_join(thread, NULL);
	assert_false(atomic_load(&flood.waited_for));
	fixture_close(&a);
	fixture_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fds_with_a_hello_are_refused),
		cmocka_unit_test(fds_with_a_proof_are_refused),
		cmocka_unit_test(foreign_fd_with_a_proof_is_closed),
		cmocka_unit_test(fds_with_a_false_proof_do_not_pile_up),
		cmocka_unit_test(fds_with_control_messages_do_not_pile_up),
		cmocka_unit_test(endless_control_messages_do_not_stop_the_engine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
