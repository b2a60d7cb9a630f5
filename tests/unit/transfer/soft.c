/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes that transfers move over soft0. */
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_fixture.h"

static const uint64_t lengths[] = {
	0,
	1,
	CHUNK - 1,
	CHUNK,
	CHUNK + 1,
	3 * CHUNK,
	3 * CHUNK + 1,
	3 * CHUNK + 2,
	7 * CHUNK - 1,
	9 * CHUNK,
	LENGTH - 4095,
	LENGTH,
};

static void moves_any_length(void **state)
{
	static const uint32_t counts[] = { 1, 2, 4 };
	struct pair *pair = *state;

	for (size_t c = 0; c < 3; c++) {
		struct pier_transfer_attr attr = attr_of(pair, counts[c], 0);

		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			attr.length = lengths[i];
			shuffle(pair);
			attr.direction = PIER_TRANSFER_WRITE;
			expect_ok(pier_transfer_run(&attr, PATIENT));
			expect_moved(pair, lengths[i], false);
			shuffle(pair);
			attr.direction = PIER_TRANSFER_READ;
			expect_ok(pier_transfer_run(&attr, PATIENT));
			expect_moved(pair, lengths[i], true);
		}
	}
}

/* All rails are used; together they moved each byte once. */
static void uses_all_rails(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 4, LENGTH);
	struct pier_transfer *transfer;
	uint64_t sum = 0;

	expect_ok(pier_transfer_create(&attr, &transfer));
	expect_result(pier_transfer_wait(transfer, PATIENT), 1);
	for (uint32_t i = 0; i < 4; i++) {
		assert_true(rail_status(transfer, i).done >= CHUNK);
		assert_ptr_equal(rail_status(transfer, i).channel,
				 pair->rails[i].channel);
		sum += rail_status(transfer, i).done;
	}
	assert_int_equal(sum, LENGTH);
	expect_result(pier_transfer_query_rail(transfer, 4,
					       &(struct pier_rail_status){ 0 },
					       sizeof(struct pier_rail_status)),
		      -ERANGE);
	expect_ok(pier_transfer_destroy(transfer));
	expect_moved(pair, LENGTH, false);
}

/* By epoll, as the header documents. */
static void arm(const struct pair *pair, int epoll, bool *ret_look)
{
	struct epoll_event events[MAX_RAILS];
	int collected = 0;

	for (uint32_t i = 0; i < 2; i++) {
		int count = pier_channel_arm(pair->rails[i].channel);

		assert_true(count >= 0);
		collected += count;
	}
	*ret_look = collected > 0;
	if (!collected)
		assert_true(epoll_wait(epoll, events, MAX_RAILS, PATIENT) > 0);
}

static void can_be_driven_by_epoll(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 2, LENGTH);
	int epoll = epoll_create1(EPOLL_CLOEXEC), result;
	struct pier_transfer *transfer;
	bool look;

	for (uint32_t i = 0; i < 2; i++) {
		struct epoll_event event = { .events = EPOLLIN };

		assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD,
					   pier_channel_fd(pair->rails[i].channel),
					   &event),
				 0);
	}
	expect_ok(pier_transfer_create(&attr, &transfer));
	while ((result = pier_transfer_progress(transfer)) == 0)
		arm(pair, epoll, &look);
	assert_int_equal(result, 1);
	expect_ok(pier_transfer_destroy(transfer));
	close(epoll);
	expect_moved(pair, LENGTH, false);
}

/*
 * The first rail is dead, so the second one notifies the peer; all bytes are there by
 * then.
 */
static void notifies_the_peer(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 2, LENGTH);
	struct pier_work works[2];
	struct pier_result result;

	attr.flags = PIER_TRANSFER_NOTIFY;
	attr.immediate = 0xfeedf00d;
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_post_recv(pair->there.channels[i], NULL, 0,
						 &works[i]));
	expect_ok(pier_transfer_run(&attr, PATIENT));
	expect_ok(test_work_wait(pair->there.channels[0], works[0], PATIENT, &result));
	assert_int_equal(result.immediate, 0xfeedf00d);
	expect_moved(pair, LENGTH, false);
	shuffle(pair);
	expect_ok(pier_channel_destroy(pair->there.channels[0]));
	pair->there.channels[0] = NULL;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	expect_ok(test_work_wait(pair->there.channels[1], works[1], PATIENT, &result));
	assert_int_equal(result.immediate, 0xfeedf00d);
	expect_moved(pair, LENGTH, false);
}

/*
 * 4 GiB and more in little memory: a file of four slots is mapped repeatedly. Most
 * mappings use one slot. The slots around the border at 4 GiB, and the last one, are
 * mapped once, so misplaced bytes are missing there.
 */
#define SLOT   (UINT64_C(16) << 20)
#define BORDER (UINT64_C(4) << 30)
#define HUGE   (BORDER + 3 * SLOT)

static uint64_t slot_of(uint64_t at)
{
	if (at == BORDER - SLOT)
		return 1;
	if (at == BORDER)
		return 2;
	return at == HUGE - SLOT ? 3 : 0;
}

/* The sanitizer needs several bytes of shadow memory for each byte. */
#ifdef __SANITIZE_THREAD__
static const bool has_room_for_huge = false;
#else
static const bool has_room_for_huge = true;
#endif

static uint8_t *map_huge(int fd, uint8_t **ret_file)
{
	uint8_t *huge = mmap(NULL, HUGE, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_ptr_not_equal(huge, MAP_FAILED);
	assert_int_equal(ftruncate(fd, 4 * SLOT), 0);
	for (uint64_t at = 0; at < HUGE; at += SLOT)
		assert_ptr_not_equal(mmap(huge + at, SLOT, PROT_READ | PROT_WRITE,
					  MAP_SHARED | MAP_FIXED, fd,
					  (off_t)(slot_of(at) * SLOT)),
				     MAP_FAILED);
	*ret_file = mmap(NULL, 4 * SLOT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(*ret_file, MAP_FAILED);
	return huge;
}

static void moves_more_than_4_gib(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attr = attr_of(pair, 2, HUGE);
	uint8_t *files[2], *huge[2];
	struct pier_mr *mrs[2];
	struct pier_remote remote;
	int fds[2];

	if (!has_room_for_huge) {
		print_message("skipped: the thread sanitizer would need more memory\n");
		skip();
	}
	for (int i = 0; i < 2; i++) {
		struct pier_pd *pd = i ? pair->there.pd : pair->here.pd;

		fds[i] = memfd_create("huge", MFD_CLOEXEC);
		huge[i] = map_huge(fds[i], &files[i]);
		expect_ok(pier_mr_reg(pd, huge[i], HUGE, PIER_ACCESS_SHARED, &mrs[i]));
	}
	fill(&pair->random, files[0], 4 * SLOT);
	expect_ok(pier_mr_remote(mrs[1], &remote));
	for (int i = 0; i < 2; i++)
		pair->rails[i] = (struct pier_rail){ .channel = pair->rails[i].channel,
						     .mr = mrs[0],
						     .parts = &remote,
						     .count = 1 };
	attr.chunk = 0;
	expect_ok(pier_transfer_run(&attr, PATIENT));
	assert_memory_equal(files[0], files[1], 4 * SLOT);
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_mr_dereg(mrs[i]));
		munmap(huge[i], HUGE);
		munmap(files[i], 4 * SLOT);
		close(fds[i]);
	}
}

/* One transfer in each thread. */
static void *run_one(void *argument)
{
	const struct pier_transfer_attr *attr = argument;
	intptr_t failed = 0;

	for (int round = 0; round < 20 && !failed; round++)
		failed = pier_transfer_run(attr, PATIENT) != 0;
	return (void *)failed;
}

static void runs_in_threads(void **state)
{
	struct pair *pair = *state;
	struct pier_transfer_attr attrs[MAX_RAILS];
	pthread_t threads[MAX_RAILS];
	uint64_t share = LENGTH / MAX_RAILS;

	attrs[0] = attr_of(pair, MAX_RAILS, share);
	for (int i = 0; i < MAX_RAILS; i++) {
		attrs[i] = attrs[0];
		attrs[i].rails = &pair->rails[i];
		attrs[i].rail_count = 1;
		pair->rails[i].offset += (uint64_t)i * share;
		pair->rails[i].remote_offset += (uint64_t)i * share;
		assert_int_equal(pthread_create(&threads[i], NULL, run_one, &attrs[i]),
				 0);
	}
	for (int i = 0; i < MAX_RAILS; i++) {
		void *failed;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	expect_moved(pair, LENGTH, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		transfer_test(moves_any_length),       transfer_test(uses_all_rails),
		transfer_test(can_be_driven_by_epoll), transfer_test(notifies_the_peer),
		transfer_test(moves_more_than_4_gib),  transfer_test(runs_in_threads),
	};

	return cmocka_run_group_tests_name("transfer_soft", tests, NULL, NULL);
}
