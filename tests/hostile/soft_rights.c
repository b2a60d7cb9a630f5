/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "soft_peer.h"
#include "core/wire.h"
#include "provider/soft/link/link.h"

/*
 * An initiator on the same host that requests the memory of keys which give it fewer
 * rights. It opens an fd that it gets again for writing, and writes to bytes that no
 * region has.
 */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct fixture_options stepped = { .stepped = 1 };

enum {
	SIZE = 65536,
	FINAL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	BOTH = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
};

/* Segments of the last answer. */
static uint32_t segments;

/* The fd that the owner sends for a key; -1: none. */
static int request_fd(struct soft_fixture *attacker, struct soft_fixture *owner,
		      uint32_t key)
{
	uint8_t message[SOFT_MAX_CONTROL];
	int fd;

	assert_true(pier_soft_send_grant_request(&peer_qp(attacker)->link, key, true));
	for (int i = 0; i < 20; i++)
		fixture_step(owner, NULL);
	assert_true(peer_receive(peer_qp(attacker)->link.rx_fd, message, sizeof(message),
				 &fd) >= SOFT_CONTROL_GRANT_SIZE);
	segments = pier_get_le32(message + 20);
	return fd;
}

/* What an attacker does with an fd, however it was opened. */
static bool can_write_outside(int fd, uint64_t offset)
{
	char path[32], byte = 'x';
	int again;
	bool written;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return false;
	written = pwrite(again, &byte, 1, (off_t)offset) == 1;
	close(again);
	return written;
}

static void expect_no_fd(struct soft_fixture *attacker, struct soft_fixture *owner,
			 uint32_t key, int file, uint64_t outside)
{
	int fd = request_fd(attacker, owner, key);
	char byte = 0;

	if (fd >= 0) {
		print_message("an fd came; outside of the key's rights it can%s write\n",
			      can_write_outside(fd, outside) ? "" : "not");
		close(fd);
	}
	assert_int_equal(pread(file, &byte, 1, (off_t)outside), 1);
	assert_int_equal(byte, 0);
	assert_int_equal(fd, -1);
}

static void expect_region_without_fd(uint64_t offset, uint64_t length, int access,
				     int seals, uint64_t outside)
{
	int file = peer_memfd(SIZE, 0, seals), before = fixture_count_fds();
	struct soft_fixture attacker, owner;
	struct ibv_mr *mr;

	fixture_open_pair(&attacker, &owner, &stepped);
	mr = soft->reg_dmabuf_mr(owner.pd, offset, length, offset, file, access);
	assert_non_null(mr);
	expect_no_fd(&attacker, &owner, mr->rkey, file, outside);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&attacker);
	fixture_close(&owner);
	assert_int_equal(fixture_count_fds(), before);
	close(file);
}

static void key_with_one_right_gives_no_fd(void **state)
{
	(void)state;
	expect_region_without_fd(0, SIZE, IBV_ACCESS_REMOTE_READ, FINAL, 0);
	expect_region_without_fd(
		0, SIZE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE, FINAL, 0);
	expect_region_without_fd(0, SIZE, IBV_ACCESS_LOCAL_WRITE, FINAL, 0);
}

static void key_of_a_part_gives_no_fd(void **state)
{
	(void)state;
	expect_region_without_fd(0, SIZE - 1, BOTH, FINAL, SIZE - 1);
	expect_region_without_fd(0, 4096, BOTH, FINAL, 4096);
	expect_region_without_fd(4096, SIZE - 4096, BOTH, FINAL, 0);
	expect_region_without_fd(0, 4096, IBV_ACCESS_REMOTE_READ, FINAL, 4096);
}

/* The owner could make the file longer, and the rest belongs to nobody else. */
static void key_of_a_growing_file_gives_no_fd(void **state)
{
	(void)state;
	expect_region_without_fd(0, SIZE, BOTH, F_SEAL_SHRINK, 0);
	expect_region_without_fd(0, SIZE, BOTH, F_SEAL_SHRINK | F_SEAL_SEAL, 0);
	/* Without the last seal the peer could add one against the owner's writes. */
	expect_region_without_fd(0, SIZE, BOTH, F_SEAL_SHRINK | F_SEAL_GROW, 0);
}

static void queue_pair_with_one_right_gives_no_fd(void **state)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	int file = peer_memfd(SIZE, 0, FINAL);
	struct soft_fixture attacker, owner;
	struct ibv_mr *mr;

	(void)state;
	fixture_open_pair(&attacker, &owner, &stepped);
	mr = soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	assert_int_equal(soft->modify_qp(owner.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	expect_no_fd(&attacker, &owner, mr->rkey, file, 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&attacker);
	fixture_close(&owner);
	close(file);
}

/* Keys that are not this queue pair's: of another domain, of a window, of nothing. */
static void key_of_something_else_gives_no_fd(void **state)
{
	int file = peer_memfd(SIZE, 0, FINAL);
	struct soft_fixture attacker, owner;
	struct ibv_pd *other;
	struct ibv_mr *mr;
	struct ibv_mw *mw;

	(void)state;
	fixture_open_pair(&attacker, &owner, &stepped);
	other = soft->alloc_pd(owner.context);
	assert_non_null(other);
	mr = soft->reg_dmabuf_mr(other, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	mw = soft->alloc_mw(owner.pd, IBV_MW_TYPE_2);
	assert_non_null(mw);
	expect_no_fd(&attacker, &owner, mr->rkey, file, 0);
	expect_no_fd(&attacker, &owner, mw->rkey, file, 0);
	expect_no_fd(&attacker, &owner, 0xabcdef01, file, 0);
	assert_int_equal(soft->dealloc_mw(mw), 0);
	assert_int_equal(soft->dereg_mr(mr), 0);
	assert_int_equal(soft->dealloc_pd(other), 0);
	fixture_close(&attacker);
	fixture_close(&owner);
	close(file);
}

static void key_without_rights_gives_no_addresses(void **state)
{
	const struct {
		bool other_domain;
		int access;
		bool given;
	} keys[] = {
		{ false, BOTH, true },
		{ true, BOTH, false },
		{ false, IBV_ACCESS_LOCAL_WRITE, false },
		{ false, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC, false },
	};
	struct soft_fixture attacker, owner;
	struct ibv_pd *other;

	(void)state;
	fixture_open_pair(&attacker, &owner, &stepped);
	other = soft->alloc_pd(owner.context);
	assert_non_null(other);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		struct ibv_pd *pd = keys[i].other_domain ? other : owner.pd;
		struct ibv_mr *mr = soft->reg_mr(pd, owner.memory, FIXTURE_MEMORY, 0,
						 keys[i].access);

		assert_non_null(mr);
		assert_int_equal(request_fd(&attacker, &owner, mr->rkey), -1);
		assert_int_equal(segments, keys[i].given);
		assert_int_equal(soft->dereg_mr(mr), 0);
		/* Without the message that revokes the grant. */
		fixture_step(&attacker, NULL);
	}
	assert_int_equal(soft->dealloc_pd(other), 0);
	fixture_close(&attacker);
	fixture_close(&owner);
}

/* The peer's fd has flags of its own: the application's stay as they are. */
static void key_of_a_whole_file_gives_its_fd(void **state)
{
	int file = peer_memfd(SIZE, 0, FINAL), fd;
	struct soft_fixture attacker, owner;
	struct ibv_mr *mr;

	(void)state;
	fixture_open_pair(&attacker, &owner, &stepped);
	mr = soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file, BOTH);
	assert_non_null(mr);
	fd = request_fd(&attacker, &owner, mr->rkey);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
	assert_int_equal(fcntl(file, F_GETFL) & O_APPEND, 0);
	assert_int_equal(lseek(fd, 100, SEEK_SET), 100);
	assert_int_equal(lseek(file, 0, SEEK_CUR), 0);
	close(fd);
	assert_int_equal(soft->dereg_mr(mr), 0);
	fixture_close(&attacker);
	fixture_close(&owner);
	close(file);
}

/* Sealed against new writers, a whole file gives an fd that only reads. */
static void key_of_a_sealed_file_gives_an_fd_that_only_reads(void **state)
{
	const int seals[] = { F_SEAL_FUTURE_WRITE, F_SEAL_WRITE };

	(void)state;
	for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
		int file = peer_memfd(SIZE, 0, FINAL | seals[i]), fd;
		struct soft_fixture attacker, owner;
		struct ibv_mr *mr;

		fixture_open_pair(&attacker, &owner, &stepped);
		mr = soft->reg_dmabuf_mr(owner.pd, 0, SIZE, 0, file,
					 IBV_ACCESS_REMOTE_READ);
		assert_non_null(mr);
		fd = request_fd(&attacker, &owner, mr->rkey);
		assert_true(fd >= 0);
		assert_false(can_write_outside(fd, 0));
		assert_ptr_equal(
			mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
			MAP_FAILED);
		assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
		close(fd);
		assert_int_equal(soft->dereg_mr(mr), 0);
		fixture_close(&attacker);
		fixture_close(&owner);
		close(file);
	}
	/* The seal takes no other right from the rule. */
	expect_region_without_fd(0, SIZE - 1, IBV_ACCESS_REMOTE_READ,
				 FINAL | F_SEAL_FUTURE_WRITE, SIZE - 1);
	expect_region_without_fd(0, SIZE, 0, FINAL | F_SEAL_FUTURE_WRITE, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(key_with_one_right_gives_no_fd),
		cmocka_unit_test(key_of_a_part_gives_no_fd),
		cmocka_unit_test(key_of_a_growing_file_gives_no_fd),
		cmocka_unit_test(queue_pair_with_one_right_gives_no_fd),
		cmocka_unit_test(key_of_something_else_gives_no_fd),
		cmocka_unit_test(key_without_rights_gives_no_addresses),
		cmocka_unit_test(key_of_a_whole_file_gives_its_fd),
		cmocka_unit_test(key_of_a_sealed_file_gives_an_fd_that_only_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
