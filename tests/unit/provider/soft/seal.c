/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/regions/vector.h"
#include "provider/soft/connect/node.h"
#include "soft_fixture.h"

/* The encrypted stream alone: two ends and a socket pair. */

struct stage {
	struct soft_session session;
	struct soft_extent staging;
	struct soft_seal *caller, *listener;
	int fds[2];
};

static void open_stage(struct stage *stage)
{
	memset(stage, 0, sizeof(*stage));
	assert_true(pier_soft_init_sodium());
	assert_true(pier_soft_random(&stage->session, sizeof(stage->session)));
	stage->staging.fd = -1;
	stage->caller = pier_soft_create_seal(&stage->session, true, &stage->staging);
	stage->listener = pier_soft_create_seal(&stage->session, false, &stage->staging);
	assert_non_null(stage->caller);
	assert_non_null(stage->listener);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stage->fds),
			 0);
}

static void close_stage(struct stage *stage)
{
	pier_soft_free_seal(stage->caller);
	pier_soft_free_seal(stage->listener);
	pier_soft_close_staging(&stage->staging);
	close(stage->fds[0]);
	close(stage->fds[1]);
}

/* Memory that may vanish, as the vector declares it. */
static struct soft_vector one_part(void *memory, size_t length, bool writes)
{
	struct soft_vector vector;

	pier_soft_vector_init(&vector, writes);
	pier_soft_vector_add(&vector, memory, length);
	vector.steady = false;
	return vector;
}

static ssize_t send_part(struct stage *stage, void *memory, size_t length)
{
	struct soft_vector vector = one_part(memory, length, false);

	return pier_soft_seal_send(stage->caller, &vector, stage->fds[0]);
}

static ssize_t receive_part(struct stage *stage, void *memory, size_t length)
{
	struct soft_vector vector = one_part(memory, length, true);

	return pier_soft_seal_receive(stage->listener, &vector, stage->fds[1]);
}

/* More than one key may encrypt, in records of all sizes. */
static void changes_keys_after_many_bytes(void **state)
{
	enum {
		TOTAL = 40 << 20
	};
	uint8_t *source = malloc(TOTAL), *target = calloc(1, TOTAL);
	size_t sent = 0, received = 0, piece = 1;
	struct stage stage;

	(void)state;
	open_stage(&stage);
	for (size_t i = 0; i < TOTAL; i++)
		source[i] = (uint8_t)(i * 7 + i / 65537);
	while (received < TOTAL) {
		size_t left = TOTAL - sent;
		ssize_t moved = left ? send_part(&stage, source + sent,
						 piece < left ? piece : left)
				     : pier_soft_seal_flush(stage.caller, stage.fds[0]);

		if (moved < 0)
			assert_int_equal(errno, EAGAIN);
		else
			sent += (size_t)moved;
		moved = receive_part(&stage, target + received, piece * 3 % 100000 + 1);
		if (moved < 0)
			assert_int_equal(errno, EAGAIN);
		else
			received += (size_t)moved;
		piece = piece * 5 % 70001 + 1;
	}
	assert_memory_equal(source, target, TOTAL);
	close_stage(&stage);
	free(source);
	free(target);
}

static void resumes_after_a_full_socket(void **state)
{
	static uint8_t source[SOFT_MAX_RECORD], target[SOFT_MAX_RECORD];
	uint64_t sent = 0, received = 0;
	struct stage stage;
	ssize_t moved;

	(void)state;
	open_stage(&stage);
	while ((moved = send_part(&stage, source, sizeof(source))) > 0)
		sent += (uint64_t)moved;
	assert_int_equal(errno, EAGAIN);
	/* Part of a record has been sent, and the rest is not lost. */
	assert_int_equal(pier_soft_seal_flush(stage.caller, stage.fds[0]), -1);
	while (received < sent) {
		moved = receive_part(&stage, target, sizeof(target));
		if (moved > 0)
			received += (uint64_t)moved;
		else
			assert_int_equal(pier_soft_seal_flush(stage.caller, stage.fds[0]),
					 0);
	}
	assert_int_equal(receive_part(&stage, target, 1), -1);
	assert_int_equal(errno, EAGAIN);
	close_stage(&stage);
}

static void check_hole(uint8_t *memory, size_t page)
{
	uint8_t target[100] = { 0 };
	struct stage stage;

	open_stage(&stage);
	assert_int_equal(send_part(&stage, memory, page + 50), -1);
	assert_int_equal(errno, EFAULT);
	/* Nothing of it is left, and the stream is as before. */
	memory[page - 1] = 'x';
	assert_int_equal(send_part(&stage, memory + page - 50, 50), 50);
	/* Across the hole: the bytes before it arrive, the rest waits. */
	assert_int_equal(receive_part(&stage, memory + page - 20, 50), 20);
	assert_int_equal(receive_part(&stage, memory + page, 30), -1);
	assert_int_equal(errno, EFAULT);
	assert_int_equal(receive_part(&stage, target, 100), 30);
	assert_int_equal(target[29], 'x');
	close_stage(&stage);
}

static void survives_unmapped_memory(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_true(memory != MAP_FAILED);
	assert_int_equal(munmap(memory + page, page), 0);
	check_hole(memory, page);
	munmap(memory, page);
}

/* A load would raise SIGBUS. */
static void survives_a_truncated_file(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("truncated", MFD_CLOEXEC);
	uint8_t *memory;

	(void)state;
	assert_int_equal(ftruncate(fd, (off_t)(2 * page)), 0);
	memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(memory != MAP_FAILED);
	assert_int_equal(ftruncate(fd, (off_t)page), 0);
	check_hole(memory, page);
	munmap(memory, 2 * page);
	close(fd);
}

/* Every input of the keys matters, and so does the direction. */
static void derives_keys_from_every_input(void **state)
{
	struct soft_session session = { 0 }, other;
	uint8_t key[SOFT_KEY_SIZE], again[SOFT_KEY_SIZE];

	(void)state;
	pier_soft_derive_key(&session, true, key);
	pier_soft_derive_key(&session, true, again);
	assert_memory_equal(key, again, sizeof(key));
	pier_soft_derive_key(&session, false, again);
	assert_memory_not_equal(key, again, sizeof(key));
	for (size_t i = 0; i < sizeof(session); i++) {
		other = session;
		((uint8_t *)&other)[i] ^= 1;
		pier_soft_derive_key(&other, true, again);
		assert_memory_not_equal(key, again, sizeof(key));
	}
}

/* Public keys of low order, for which anyone knows the shared secret (RFC 7748, 6.1). */
static void rejects_weak_public_keys(void **state)
{
	uint8_t weak[SOFT_SHARE_SIZE] = { 0 }, agreed[SOFT_SHARE_SIZE];
	struct soft_share share = { .wanted = true };

	(void)state;
	assert_true(pier_soft_init_sodium());
	for (uint8_t first = 0; first < 2; first++) {
		weak[0] = first;
		memset(&share, 0x77, sizeof(share));
		share.wanted = true;
		assert_false(pier_soft_agree(&share, weak, agreed));
	}
	assert_int_equal(share.scalar[0], 0); /* and it is wiped */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_keys_after_many_bytes),
		cmocka_unit_test(resumes_after_a_full_socket),
		cmocka_unit_test(survives_unmapped_memory),
		cmocka_unit_test(survives_a_truncated_file),
		cmocka_unit_test(derives_keys_from_every_input),
		cmocka_unit_test(rejects_weak_public_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
