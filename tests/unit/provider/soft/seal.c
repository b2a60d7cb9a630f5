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
#include "provider/soft/link/crypto.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/regions/vector.h"
#include "soft_fixture.h"

/* The encrypted stream alone: two ends and a socket pair. */

static enum soft_cipher aes = SOFT_AES, chacha20 = SOFT_CHACHA20;

struct stage {
	struct soft_session session;
	struct soft_seal *caller, *listener;
	int fds[2];
};

static void open_stage(struct stage *stage, enum soft_cipher cipher)
{
	memset(stage, 0, sizeof(*stage));
	assert_int_equal(pier_soft_open_crypto(), 0);
	assert_true(pier_soft_random(&stage->session, sizeof(stage->session)));
	stage->session.cipher = cipher;
	stage->caller = pier_soft_create_seal(&stage->session, true);
	stage->listener = pier_soft_create_seal(&stage->session, false);
	assert_non_null(stage->caller);
	assert_non_null(stage->listener);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stage->fds),
			 0);
}

static void close_stage(struct stage *stage)
{
	pier_soft_free_seal(stage->caller);
	pier_soft_free_seal(stage->listener);
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

	open_stage(&stage, *(enum soft_cipher *)*state);
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

	open_stage(&stage, *(enum soft_cipher *)*state);
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

static void check_hole(uint8_t *memory, size_t page, enum soft_cipher cipher)
{
	uint8_t target[100] = { 0 };
	struct stage stage;

	open_stage(&stage, cipher);
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

	assert_true(memory != MAP_FAILED);
	assert_int_equal(munmap(memory + page, page), 0);
	check_hole(memory, page, *(enum soft_cipher *)*state);
	munmap(memory, page);
}

/* A load would raise SIGBUS. */
static void survives_a_truncated_file(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("truncated", MFD_CLOEXEC);
	uint8_t *memory;

	assert_int_equal(ftruncate(fd, (off_t)(2 * page)), 0);
	memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(memory != MAP_FAILED);
	assert_int_equal(ftruncate(fd, (off_t)page), 0);
	check_hole(memory, page, *(enum soft_cipher *)*state);
	munmap(memory, 2 * page);
	close(fd);
}

/* Each bit of a record: its length, its ciphertext and its tag. */
static void changed_record_is_refused(void **state)
{
	uint8_t byte = 'p', record[SOFT_RECORD_LENGTH_SIZE + 1 + SOFT_RECORD_TAG_SIZE];
	struct stage stage;

	for (size_t i = 0; i < 8 * sizeof(record); i++) {
		open_stage(&stage, *(enum soft_cipher *)*state);
		assert_int_equal(send_part(&stage, &byte, 1), 1);
		assert_int_equal(read(stage.fds[1], record, sizeof(record)),
				 sizeof(record));
		record[i / 8] ^= (uint8_t)(1 << i % 8);
		assert_int_equal(write(stage.fds[0], record, sizeof(record)),
				 sizeof(record));
		/* Of a length that grew, the rest never comes. */
		assert_int_equal(receive_part(&stage, &byte, 1), -1);
		assert_true(errno == EBADMSG || (i < 32 && errno == EAGAIN));
		close_stage(&stage);
	}
}

static void lowest_common_cipher_is_chosen(void **state)
{
	uint8_t own;

	(void)state;
	assert_int_equal(pier_soft_open_crypto(), 0);
	own = pier_soft_offered_ciphers();
	assert_true(own & SOFT_CHACHA20 && own & SOFT_AES);
	assert_int_equal(
		pier_soft_choose_cipher(SOFT_AES_FAST | SOFT_CHACHA20 | SOFT_AES),
		own & SOFT_AES_FAST ? SOFT_AES_FAST : SOFT_CHACHA20);
	/* A peer whose processor has no instructions for AES. */
	assert_int_equal(pier_soft_choose_cipher(SOFT_CHACHA20 | SOFT_AES),
			 SOFT_CHACHA20);
	/* Its libcrypto has no ChaCha20-Poly1305. */
	assert_int_equal(pier_soft_choose_cipher(SOFT_AES), SOFT_AES);
	assert_int_equal(pier_soft_choose_cipher(SOFT_CHACHA20), SOFT_CHACHA20);
	assert_int_equal(pier_soft_choose_cipher(0), SOFT_PLAIN);
	assert_int_equal(pier_soft_choose_cipher(0xf8), SOFT_PLAIN);
}

static void only_an_offered_cipher_is_accepted(void **state)
{
	(void)state;
	for (unsigned int offered = 0; offered < 8; offered++) {
		for (unsigned int choice = 0; choice < 256; choice++) {
			bool is_one = choice == 1 || choice == 2 || choice == 4;
			bool accepted = pier_soft_may_choose((uint8_t)offered,
							     (uint8_t)choice);

			/* A caller that offers none wants a plain link. */
			assert_int_equal(accepted, offered ? is_one && choice & offered
							   : choice == SOFT_PLAIN);
		}
	}
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
	for (size_t i = 0; i < offsetof(struct soft_session, cipher); i++) {
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
	assert_int_equal(pier_soft_open_crypto(), 0);
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
		cmocka_unit_test_prestate(changes_keys_after_many_bytes, &aes),
		cmocka_unit_test_prestate(changes_keys_after_many_bytes, &chacha20),
		cmocka_unit_test_prestate(resumes_after_a_full_socket, &aes),
		cmocka_unit_test_prestate(resumes_after_a_full_socket, &chacha20),
		cmocka_unit_test_prestate(survives_unmapped_memory, &aes),
		cmocka_unit_test_prestate(survives_a_truncated_file, &aes),
		cmocka_unit_test_prestate(changed_record_is_refused, &aes),
		cmocka_unit_test_prestate(changed_record_is_refused, &chacha20),
		cmocka_unit_test(lowest_common_cipher_is_chosen),
		cmocka_unit_test(only_an_offered_cipher_is_accepted),
		cmocka_unit_test(derives_keys_from_every_input),
		cmocka_unit_test(rejects_weak_public_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
