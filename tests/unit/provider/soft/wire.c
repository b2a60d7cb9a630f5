/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "soft_fake.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/link.h"
#include "provider/soft/queues/qp.h"

/* Everything from the network is treated as hostile. */

static void header_survives_a_round_trip(void **state)
{
	struct soft_header header = {
		.opcode = SOFT_WRITE_IMM,
		.flags = SOFT_FLAG_SOLICITED,
		.msn = 0x01020304,
		.length = SOFT_MAX_MESSAGE,
		.key = 0xcafebabe,
		.address = UINT64_C(0x1122334455667788),
		.immediate = 0x99aabbcc,
	}, again = { 0 };
	uint8_t bytes[SOFT_HEADER_SIZE];

	(void)state;
	pier_soft_pack_header(&header, bytes);
	assert_int_equal(bytes[4], 4); /* little-endian */
	assert_int_equal(bytes[16], 0x88);
	assert_true(pier_soft_unpack_header(bytes, &again));
	assert_memory_equal(&header, &again, sizeof(header));
}

static void rejects_invalid_headers(void **state)
{
	const struct {
		int at;
		uint8_t value;
	} changes[] = {
		{ 0, 0 }, { 0, 9 }, { 0, 15 }, { 0, 20 },    { 0, 255 },
		{ 1, 2 }, { 2, 1 }, { 3, 1 },  { 11, 0x41 }, { 28, 1 },
	};
	struct soft_header header = { .opcode = SOFT_SEND, .length = 5 }, again;
	uint8_t bytes[SOFT_HEADER_SIZE];

	(void)state;
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		pier_soft_pack_header(&header, bytes);
		assert_true(pier_soft_unpack_header(bytes, &again));
		bytes[changes[i].at] = changes[i].value;
		assert_false(pier_soft_unpack_header(bytes, &again));
	}
	header = (struct soft_header){ .opcode = SOFT_ACK, .length = 1 };
	pier_soft_pack_header(&header, bytes);
	assert_false(pier_soft_unpack_header(bytes, &again));
	header = (struct soft_header){ .opcode = SOFT_FETCH_ADD, .length = 16 };
	pier_soft_pack_header(&header, bytes);
	assert_false(pier_soft_unpack_header(bytes, &again));
	header.length = 8;
	pier_soft_pack_header(&header, bytes);
	assert_true(pier_soft_unpack_header(bytes, &again));
	assert_int_equal(pier_soft_payload_length(&header), SOFT_OPERANDS_SIZE);
	header = (struct soft_header){ .opcode = SOFT_ATOMIC_RESPONSE };
	pier_soft_pack_header(&header, bytes);
	assert_false(pier_soft_unpack_header(bytes, &again));
	header = (struct soft_header){ .opcode = SOFT_NAK, .syndrome = 9 };
	pier_soft_pack_header(&header, bytes);
	assert_false(pier_soft_unpack_header(bytes, &again));
}

static void checks_address_blobs(void **state)
{
	struct soft_address address = { .port = 1234, .count = 2 }, again;
	uint8_t bytes[PIER_PROVIDER_ADDRESS_MAX];
	int length;

	(void)state;
	memset(address.secret, 7, sizeof(address.secret));
	address.addresses[0].s6_addr[0] = 0xfd;
	address.addresses[1].s6_addr[0] = 0x20;
	assert_int_equal(pier_soft_pack_address(&address, bytes, 10), -ENOSPC);
	length = pier_soft_pack_address(&address, bytes, sizeof(bytes));
	assert_true(length > 0);
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), 0);
	assert_memory_equal(&again, &address, sizeof(address));
	for (int cut = 0; cut < length; cut++)
		assert_int_equal(pier_soft_unpack_address(bytes, cut, &again), -EINVAL);
	bytes[0] = 3; /* of versions that encrypt another way */
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again),
			 -EPROTONOSUPPORT);
	bytes[0] = 4;
	bytes[1] = 255;
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), -EINVAL);
	bytes[1] = 2;
	bytes[2] = bytes[3] = 0; /* port 0 */
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), -EINVAL);
	bytes[2] = 1;
	bytes[20] = 0xff; /* multicast */
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), -EINVAL);
	memset(bytes + 20, 0, 16);
	bytes[30] = bytes[31] = 0xff;
	bytes[32] = 10; /* 10.0.0.0 is an address like any other */
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), 0);
	bytes[32] = 0; /* 0.0.0.0 is this host */
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), -EINVAL);
	bytes[32] = 224; /* multicast */
	assert_int_equal(pier_soft_unpack_address(bytes, length, &again), -EINVAL);
}

static void valid_frames_are_accepted(void **state)
{
	uint8_t bytes[SOFT_HEADER_SIZE];
	struct soft_header answer;
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fd = fake_call(&fake, &fixture); /* before RTR: it waits */
	fake_connect(&fixture, &fake);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_WRITE,
					    .length = 4,
					    .key = fake.to_fixture.rkey,
					    .address = fake.to_fixture.address });
	fixture_write_all(fd, "abcd", 4);
	fixture_read_all(fd, bytes, sizeof(bytes));
	assert_true(pier_soft_unpack_header(bytes, &answer));
	assert_int_equal(answer.opcode, SOFT_ACK);
	assert_int_equal(answer.msn, 1);
	assert_memory_equal(fixture.memory, "abcd", 5);
	close(fd);
	fixture_close(&fixture);
}

static void check_nonsense(struct soft_header header)
{
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_call(&fake, &fixture);
	assert_int_equal(fixture_post_recv(&fixture, 1, 0, 8), 0);
	fake_send(fd, header);
	assert_true(fake_hangs_up(fd));
	fixture_expect(&fixture, fixture.recv_cq, NULL, 1, IBV_WC_WR_FLUSH_ERR);
	close(fd);
	fixture_close(&fixture);
}

static void rejects_invalid_frames(void **state)
{
	(void)state;
	check_nonsense((struct soft_header){ .opcode = 99 });
	check_nonsense((struct soft_header){ .opcode = SOFT_WRITE, .msn = 1 });
	check_nonsense((struct soft_header){ .opcode = SOFT_WRITE, .length = 2u << 30 });
	check_nonsense((struct soft_header){ .opcode = SOFT_ACK, .msn = 1 });
	check_nonsense((struct soft_header){ .opcode = SOFT_ACK, .msn = UINT32_MAX });
	check_nonsense((struct soft_header){ .opcode = SOFT_NAK, .syndrome = 1 });
	check_nonsense((struct soft_header){ .opcode = SOFT_READ_RESPONSE });
	check_nonsense((struct soft_header){ .opcode = SOFT_READ_RESPONSE, .length = 9 });
}

/* Answers to a real request, all of them invalid. */
static void check_wrong_answer(struct soft_header header)
{
	uint8_t bytes[SOFT_HEADER_SIZE];
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_call(&fake, &fixture);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_READ, 5, 0, 100,
				      &fake.to_fixture, 0, 0),
			 0);
	fixture_read_all(fd, bytes, sizeof(bytes));
	fake_send(fd, header);
	fixture_expect(&fixture, fixture.send_cq, NULL, 5, IBV_WC_BAD_RESP_ERR);
	assert_true(fake_hangs_up(fd));
	close(fd);
	fixture_close(&fixture);
}

static void rejects_wrong_answers(void **state)
{
	(void)state;
	check_wrong_answer((struct soft_header){ .opcode = SOFT_ACK, .msn = 1 });
	check_wrong_answer((struct soft_header){ .opcode = SOFT_ACK, .msn = 2 });
	check_wrong_answer((struct soft_header){
		.opcode = SOFT_NAK, .msn = 1, .syndrome = SOFT_NAK_ACCESS });
	check_wrong_answer(
		(struct soft_header){ .opcode = SOFT_READ_RESPONSE, .length = 99 });
	check_wrong_answer(
		(struct soft_header){ .opcode = SOFT_READ_RESPONSE, .length = 101 });
	check_wrong_answer((struct soft_header){
		.opcode = SOFT_READ_RESPONSE, .msn = 1, .length = 100 });
}

/* On the wire: a fenced request is held back until the READ before it has completed. */
static void fence_holds_requests_back(void **state)
{
	struct fixture_options options = { .stepped = 1, .max_rd_atomic = 2 };
	struct pollfd waited = { .events = POLLIN };
	struct fake fake;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, &options);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	waited.fd = fake_call_stepped(&fake, &fixture);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_READ, i, 0, 4,
					      &fake.to_fixture, 0, IBV_SEND_SIGNALED),
				 0);
	assert_int_equal(
		fixture_post(&fixture, IBV_WR_SEND, 3, 0, 0, NULL, 0, IBV_SEND_FENCE), 0);
	fake_step(&fixture);
	/* Two READs, the limit of max_rd_atomic, and no more. */
	assert_int_equal(fake_next(waited.fd).opcode, SOFT_READ);
	assert_int_equal(fake_next(waited.fd).opcode, SOFT_READ);
	assert_int_equal(poll(&waited, 1, 0), 0);
	for (uint32_t i = 0; i < 3; i++) {
		fake_send(waited.fd, (struct soft_header){ .opcode = SOFT_READ_RESPONSE,
							   .msn = i,
							   .length = 4 });
		fixture_write_all(waited.fd, "data", 4);
		fake_step(&fixture);
		if (i == 0)
			assert_int_equal(fake_next(waited.fd).opcode, SOFT_READ);
		if (i < 2)
			assert_int_equal(poll(&waited, 1, 0), 0);
	}
	assert_int_equal(fake_next(waited.fd).opcode, SOFT_SEND);
	assert_memory_equal(fixture.memory, "data", 5);
	close(waited.fd);
	fixture_close(&fixture);
}

/* The caller sets only the members that the opcode uses; the others are not disclosed. */
static void headers_disclose_no_unused_members(void **state)
{
	const struct {
		enum ibv_wr_opcode opcode;
		bool immediate, key, address;
	} cases[] = {
		{ IBV_WR_SEND, false, false, false },
		{ IBV_WR_SEND_WITH_IMM, true, false, false },
		{ IBV_WR_SEND_WITH_INV, false, true, false },
		{ IBV_WR_RDMA_WRITE, false, true, true },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, true, true, true },
		{ IBV_WR_RDMA_READ, false, true, true },
	};
	struct ibv_send_wr wr, *bad;
	struct fake fake;
	struct soft_fixture fixture;
	struct soft_header header;
	int fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_call(&fake, &fixture);
	memset(&wr, 0xa5, sizeof(wr));
	wr.next = NULL;
	wr.num_sge = 0;
	wr.send_flags = 0;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		wr.opcode = cases[i].opcode;
		assert_int_equal(ibv_post_send(fixture.qp, &wr, &bad), 0);
		header = fake_next(fd);
		assert_int_equal(header.immediate, cases[i].immediate ? 0xa5a5a5a5 : 0);
		assert_int_equal(header.key, cases[i].key ? 0xa5a5a5a5 : 0);
		assert_int_equal(header.address,
				 cases[i].address ? UINT64_C(0xa5a5a5a5a5a5a5a5) : 0);
	}
	close(fd);
	fixture_close(&fixture);
}

static unsigned int chosen_seed(void)
{
	const char *given = getenv("PIER_SEED");
	unsigned int seed = given ? (unsigned int)strtoul(given, NULL, 0)
				  : (unsigned int)time(NULL);

	print_message("PIER_SEED=%u\n", seed);
	return seed;
}

/* Plausible headers with random fields, then silence. */
static void survives_random_frames(void **state)
{
	const uint8_t opcodes[] = { SOFT_SEND,	       SOFT_WRITE,
				    SOFT_READ,	       SOFT_ACK,
				    SOFT_NAK,	       SOFT_READ_RESPONSE,
				    SOFT_COMPARE_SWAP, SOFT_FETCH_ADD,
				    SOFT_SEND_INV,     SOFT_ATOMIC_RESPONSE };
	unsigned int seed = chosen_seed();

	(void)state;
	for (int round = 0; round < 60; round++) {
		uint8_t bytes[SOFT_HEADER_SIZE * 20];
		struct fake fake;
		struct soft_fixture fixture;
		int fd;

		fixture_open(&fixture, NULL);
		fake_make(&fake, &fixture);
		fake_connect(&fixture, &fake);
		fd = fake_call(&fake, &fixture);
		fixture_post_recv(&fixture, 1, 0, 64);
		fixture_post(&fixture, IBV_WR_RDMA_READ, 2, 0, 32, &fake.to_fixture, 0,
			     0);
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)(rand_r(&seed) >> 8);
		for (uint32_t i = 0; i < 20; i++) {
			struct soft_header header = {
				.opcode = opcodes[rand_r(&seed) % sizeof(opcodes)],
				.msn = rand_r(&seed) % 3,
				.length = rand_r(&seed) % 40,
				.key = fake.to_fixture.rkey,
				.address = fake.to_fixture.address + rand_r(&seed) % 100,
			};

			pier_soft_pack_header(&header, bytes + i * SOFT_HEADER_SIZE);
		}
		send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
		shutdown(fd, SHUT_WR);
		assert_true(fake_hangs_up(fd));
		for (int i = 64 + 160; i < FIXTURE_MEMORY; i++)
			assert_int_equal(fixture.memory[i], 0);
		close(fd);
		fixture_close(&fixture);
	}
}

static void rejects_a_wrong_secret(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE];
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	fd = fake_dial(&fixture);
	fake.to_fixture.blob[4] ^= 1; /* the listener's secret */
	fake_say_hello(&fake, fd, transcript);
	fake_prove(&fake, fd, transcript);
	assert_true(fake_hangs_up(fd));
	close(fd);
	fake.to_fixture.blob[4] ^= 1;
	/* Knows the listener's secret, but is not the peer that it claims to be. */
	fake.address.secret[0] ^= 1;
	fd = fake_call(&fake, &fixture);
	assert_true(fake_hangs_up(fd));
	close(fd);
	/* The queue pair is not affected. */
	fake.address.secret[0] ^= 1;
	fd = fake_call(&fake, &fixture);
	assert_int_equal(fixture_post(&fixture, IBV_WR_RDMA_WRITE, 1, 0, 0, NULL, 0,
				      IBV_SEND_SIGNALED),
			 0);
	fixture_read_all(fd, transcript, SOFT_HEADER_SIZE);
	fake_send(fd, (struct soft_header){ .opcode = SOFT_ACK, .msn = 1 });
	fixture_expect(&fixture, fixture.send_cq, NULL, 1, IBV_WC_SUCCESS);
	close(fd);
	fixture_close(&fixture);
}

/* A peer of version 2, which does not state whether it seals the link. */
static void rejects_another_version(void **state)
{
	uint8_t bytes[SOFT_HELLO_SIZE] = "piersof\2";
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fd = fake_dial(&fixture);
	memcpy(bytes + 56, fake.to_fixture.gid.raw, 16);
	bytes[76] = (uint8_t)fake.to_fixture.qpn;
	fixture_write_all(fd, bytes, sizeof(bytes));
	assert_true(fake_hangs_up(fd));
	close(fd);
	fixture_close(&fixture);
}

static void rejects_replayed_messages(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE], other[SOFT_MAC_SIZE];
	struct fake fake;
	struct soft_fixture fixture;
	int first, second;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	first = fake_dial(&fixture);
	second = fake_dial(&fixture);
	fake_say_hello(&fake, first, transcript);
	fake_say_hello(&fake, second, other);
	assert_memory_not_equal(transcript, other, SOFT_MAC_SIZE);
	fake_prove(&fake, second, transcript); /* valid on the first link */
	assert_true(fake_hangs_up(second));
	close(first);
	close(second);
	fixture_close(&fixture);
}

/* More strangers than there are places, which send little or nothing. */
static void survives_a_crowd_of_strangers(void **state)
{
	int before = fixture_count_fds(), strangers[100];
	struct fake fake;
	struct soft_fixture fixture;
	int fd;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	fake_connect(&fixture, &fake);
	for (int i = 0; i < 100; i++) {
		strangers[i] = fake_dial(&fixture);
		send(strangers[i], "GET / HTTP/1.0\r\n\r\n", i % 20, MSG_NOSIGNAL);
	}
	fd = fake_call(&fake, &fixture);
	close(fd);
	for (int i = 0; i < 100; i++) {
		assert_true(fake_hangs_up(strangers[i]));
		close(strangers[i]);
	}
	fd = fake_dial(&fixture);
	for (int i = 0; i < 10; i++)
		send(fd, "0123456789012345678901234567890123456789", 40, MSG_NOSIGNAL);
	assert_true(fake_hangs_up(fd));
	close(fd);
	fixture_close(&fixture);
	assert_int_equal(fixture_count_fds(), before);
}

/* As if it had connected that much earlier. */
static void wait_for_caller(struct soft_fixture *fixture, uint64_t seconds)
{
	struct soft_context *context = soft_context(fixture->context);

	for (int i = 0; i < SOFT_MAX_PENDING; i++)
		context->node.listeners.pending[i].deadline -= seconds * 1000000000;
	context->engine.deadline = 0;
	fake_step(fixture);
}

/* It may have got no processor meanwhile; it gives up after 5 s by itself. */
static void listener_waits_longer_than_a_caller(void **state)
{
	const struct fixture_options stepped = { .stepped = 1 };
	struct soft_fixture fixture;
	char byte;
	int fd;

	(void)state;
	fixture_open(&fixture, &stepped);
	fd = fake_dial(&fixture);
	fake_step(&fixture);
	wait_for_caller(&fixture, 5);
	assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	wait_for_caller(&fixture, 5);
	assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), 0);
	close(fd);
	fixture_close(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_survives_a_round_trip),
		cmocka_unit_test(rejects_invalid_headers),
		cmocka_unit_test(checks_address_blobs),
		cmocka_unit_test(valid_frames_are_accepted),
		cmocka_unit_test(rejects_invalid_frames),
		cmocka_unit_test(rejects_wrong_answers),
		cmocka_unit_test(fence_holds_requests_back),
		cmocka_unit_test(headers_disclose_no_unused_members),
		cmocka_unit_test(survives_random_frames),
		cmocka_unit_test(rejects_a_wrong_secret),
		cmocka_unit_test(rejects_another_version),
		cmocka_unit_test(rejects_replayed_messages),
		cmocka_unit_test(survives_a_crowd_of_strangers),
		cmocka_unit_test(listener_waits_longer_than_a_caller),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
