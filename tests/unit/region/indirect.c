/* SPDX-License-Identifier: BSD-3-Clause */
/* One key over the keys of several parts, and each call of the device that makes it. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <pier/element.h>
#include <pier/remote.h>

#include "core/deadline.h"
#include "core/page.h"
#include "device/loop.h"
#include "provider/provider.h"
#include "region/mr.h"

enum {
	RANGES = 3,
	PAGES = 4,
	SKIPPED = 100, /* bytes of the first page of each range */
};

static struct {
	struct pier_device *device;
	struct pier_pd *pd;
	struct test_census before;
	uint64_t page;
	uint8_t *memory[RANGES]; /* PAGES pages each; the second is a buffer's */
	struct pier_buffer *buffer;
	struct pier_mr_range ranges[RANGES];
	uint64_t length; /* of all ranges */
	uint8_t *bytes;	 /* a copy of them */
	uint8_t *peer;
	struct pier_mr *peer_mr;
} fixture;

static void describe_ranges(void)
{
	uint64_t length = PAGES * fixture.page - SKIPPED - 7;
	uint8_t value = 1;

	fixture.ranges[0] = pier_mr_range_host(fixture.memory[0] + SKIPPED, length);
	fixture.ranges[1] = pier_mr_range_buffer(fixture.buffer, SKIPPED, length);
	fixture.ranges[2] = pier_mr_range_host(fixture.memory[2] + SKIPPED, length);
	fixture.length = RANGES * length;
	fixture.bytes = malloc(fixture.length);
	fixture.peer = calloc(1, fixture.length);
	assert_non_null(fixture.bytes);
	assert_non_null(fixture.peer);
	for (uint64_t i = 0; i < fixture.length; i++) {
		value = (uint8_t)(value * 5 + 3 + i / 251);
		fixture.bytes[i] = value;
		fixture.memory[i / length][SKIPPED + i % length] = value;
	}
}

static void open_device(const char *name)
{
	expect_ok(pier_device_open(name, &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	expect_ok(pier_mr_reg(fixture.pd, fixture.peer, fixture.length,
			      PIER_ACCESS_SHARED, &fixture.peer_mr));
}

/* A protection domain that is still in use cannot be deallocated. */
static void close_device(void)
{
	expect_ok(pier_mr_dereg(fixture.peer_mr));
	expect_ok(pier_pd_dealloc(fixture.pd));
	expect_ok(pier_device_close(fixture.device));
}

static int setup(void **state)
{
	void *pointer;

	(void)state;
	memset(&fixture, 0, sizeof(fixture));
	fixture.before = test_take_census();
	fixture.page = pier_host_page();
	expect_ok(pier_buffer_alloc("memfd", PAGES * fixture.page, &fixture.buffer));
	expect_ok(pier_buffer_map(fixture.buffer, &pointer));
	for (int i = 0; i < RANGES; i++) {
		fixture.memory[i] = i == 1 ? pointer
					   : mmap(NULL, PAGES * fixture.page,
						  PROT_READ | PROT_WRITE,
						  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(fixture.memory[i], MAP_FAILED);
	}
	describe_ranges();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	munmap(fixture.memory[0], PAGES * fixture.page);
	munmap(fixture.memory[2], PAGES * fixture.page);
	free(fixture.bytes);
	free(fixture.peer);
	test_assert_census(&fixture.before);
	return 0;
}

static struct pier_mr_attr one_key(void)
{
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = fixture.ranges;
	attr.range_count = RANGES;
	attr.access = PIER_ACCESS_SHARED;
	attr.addressing = PIER_ADDRESSING_ZERO_BASED;
	attr.split = PIER_SPLIT_NEVER;
	return attr;
}

static struct pier_mr *reg(const struct pier_mr_attr *attr)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_attr(fixture.pd, attr, &mr));
	return mr;
}

static void refuse(const struct pier_mr_attr *attr, int error, const char *sentence)
{
	struct pier_mr *mr = (void *)1;
	struct test_census before = test_take_census();

	expect_result(pier_mr_reg_attr(fixture.pd, attr, &mr), error);
	test_assert_sentence(sentence);
	assert_ptr_equal(mr, (void *)1);
	test_assert_census(&before);
}

static void move(enum ibv_wr_opcode opcode, struct ibv_sge local, uint64_t remote,
		 uint32_t rkey)
{
	struct pier_loop *loop;

	expect_ok(pier_loop_create(fixture.device, fixture.pd->pd, pier_deadline(30000),
				   &loop));
	expect_ok(
		pier_loop_run(loop, opcode, &local, remote, rkey, pier_deadline(30000)));
	pier_loop_destroy(loop);
}

static struct ibv_sge peer_element(void)
{
	return (struct ibv_sge){ (uintptr_t)fixture.peer, (uint32_t)fixture.length,
				 pier_mr_lkey(fixture.peer_mr) };
}

/* A peer reads and writes all bytes by one key, and so does a local element. */
static void check_bytes(const struct pier_mr *mr)
{
	uint64_t length = fixture.ranges[0].length;
	struct pier_remote remote;
	struct pier_gather element;

	expect_ok(pier_mr_remote(mr, &remote));
	assert_int_equal(remote.length, fixture.length);
	assert_int_equal(remote.rkey, pier_mr_rkey(mr));
	move(IBV_WR_RDMA_READ, peer_element(), remote.addr, remote.rkey);
	assert_memory_equal(fixture.peer, fixture.bytes, fixture.length);
	for (uint64_t i = 0; i < fixture.length; i++)
		fixture.peer[i] = fixture.bytes[i] ^= 0x5a;
	move(IBV_WR_RDMA_WRITE, peer_element(), remote.addr, remote.rkey);
	for (int i = 0; i < RANGES; i++)
		assert_memory_equal(fixture.memory[i] + SKIPPED,
				    fixture.bytes + i * length, length);
	/* Across all seams. */
	memset(fixture.peer, 0, fixture.length);
	expect_ok(pier_mr_gather(mr, pier_mr_iova(mr) + 5, fixture.length - 5, &element));
	move(IBV_WR_RDMA_WRITE,
	     (struct ibv_sge){ element.addr, element.length, element.lkey },
	     (uintptr_t)fixture.peer, pier_mr_rkey(fixture.peer_mr));
	assert_memory_equal(fixture.peer, fixture.bytes + 5, fixture.length - 5);
}

static void one_key_covers_all_ranges(void **state)
{
	struct pier_mr_attr attr = one_key();
	struct pier_mr *mr;

	(void)state;
	open_device("soft0");
	mr = reg(&attr);
	assert_int_equal(mr->beneath_count, RANGES);
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_int_equal(pier_mr_iova(mr), 0);
	assert_int_equal(mr->lkey, pier_mr_lkey(mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_MIXED);
	check_bytes(mr);
	expect_ok(pier_mr_dereg(mr));
	close_device();
}

static void a_key_must_be_asked_for(void **state)
{
	struct pier_mr_attr attr = one_key();
	struct pier_mr *mr;

	(void)state;
	open_device("soft0");
	attr.split = PIER_SPLIT_SEAMS;
	mr = reg(&attr);
	assert_int_equal(pier_mr_parts(mr), RANGES);
	expect_ok(pier_mr_dereg(mr));
	/* One part has one key as it is. */
	attr.split = PIER_SPLIT_NEVER;
	attr.range_count = 1;
	mr = reg(&attr);
	assert_int_equal(pier_mr_parts(mr), 1);
	assert_int_equal(pier_mr_iova(mr), SKIPPED);
	assert_null(mr->beneath);
	expect_ok(pier_mr_dereg(mr));
	close_device();
}

static void names_what_prevents_the_key(void **state)
{
	static const char sentence[] = "3 ranges under one key: soft0 does not join them "
				       "with this addressing, access or hint";
	struct pier_mr_attr attr = one_key();

	(void)state;
	open_device("soft0");
	attr.access |= PIER_ACCESS_MW_BIND;
	refuse(&attr, -EOPNOTSUPP, sentence);
	attr.access = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_ON_DEMAND;
	refuse(&attr, -EOPNOTSUPP, sentence);
	attr = one_key();
	attr.tph = PIER_TPH_TARGET;
	refuse(&attr, -EOPNOTSUPP, sentence);
	/* Other addresses than those of the key. */
	attr = one_key();
	attr.addressing = PIER_ADDRESSING_VIRTUAL;
	refuse(&attr, -EOPNOTSUPP, sentence);
	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = SKIPPED;
	refuse(&attr, -EOPNOTSUPP, sentence);
	close_device();
	open_device("fault:like=bnxt_re:soft0");
	attr = one_key();
	refuse(&attr, -EOPNOTSUPP,
	       "3 ranges under one key: fault:soft0 does not join them, and");
	close_device();
}

static void one_request_limits_the_parts(void **state)
{
	struct pier_mr_range ranges[PIER_JOIN_PARTS + 1];
	struct pier_mr_attr attr = one_key();
	struct pier_device_attr device;
	struct pier_mr *mr;

	(void)state;
	open_device("soft0");
	expect_ok(pier_device_query(fixture.device, &device, sizeof(device)));
	assert_int_equal(device.max_joined_ranges, PIER_JOIN_PARTS);
	for (uint32_t i = 0; i <= PIER_JOIN_PARTS; i++)
		ranges[i] = pier_mr_range_host(fixture.memory[0] + 10 * i, 7);
	attr.ranges = ranges;
	attr.range_count = PIER_JOIN_PARTS + 1;
	refuse(&attr, -EOPNOTSUPP,
	       "53 parts under one key: soft0 has no room for them in one request");
	attr.range_count = PIER_JOIN_PARTS;
	mr = reg(&attr);
	assert_int_equal(mr->beneath_count, PIER_JOIN_PARTS);
	expect_ok(pier_mr_dereg(mr));
	close_device();
}

/* The region of the peer's bytes is the first reg_mr(), the host ranges are the others.
 */
static void failures_leave_nothing(void **state)
{
	static const struct {
		const char *rule;
		int error;
		const char *sentence;
	} failures[] = {
		{ "reg_mr@2=EIO", -EIO, "reg_mr@2" },
		{ "reg_dmabuf_mr@1=EIO", -EIO, "reg_dmabuf_mr@1" },
		{ "reg_mr@3=EIO", -EIO, "reg_mr@3" },
		{ "query_port@1=EIO", -EOPNOTSUPP,
		  "3 parts under one key: query a port" },
		{ "create_cq@1=ENOMEM", -EOPNOTSUPP,
		  "3 parts under one key: create a completion queue" },
		{ "create_qp@1=ENOMEM", -EOPNOTSUPP,
		  "3 parts under one key: create a queue pair" },
		{ "modify_qp@1=EIO", -EOPNOTSUPP,
		  "3 parts under one key: bring a queue pair to INIT" },
		{ "get_qp_address@1=EIO", -EOPNOTSUPP,
		  "3 parts under one key: address a queue pair" },
		{ "set_qp_address@1=EIO", -EOPNOTSUPP,
		  "3 parts under one key: address a queue pair" },
		{ "modify_qp@3=EIO", -EOPNOTSUPP,
		  "3 parts under one key: connect a queue pair to itself" },
		{ "join_mrs@1=EOPNOTSUPP", -EOPNOTSUPP,
		  "3 parts under one key: create an indirect key" },
		{ "poll_cq@1=EIO", -EOPNOTSUPP,
		  "3 parts under one key: poll the completion queue" },
		{ "wc@1=REM_OP_ERR", -EOPNOTSUPP,
		  "3 parts under one key: a request to itself completes with the error" },
	};
	struct pier_mr_attr attr = one_key();
	char name[64];

	(void)state;
	for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
		struct pier_mr *mr;

		snprintf(name, sizeof(name), "fault:%s:soft0", failures[i].rule);
		open_device(name);
		refuse(&attr, failures[i].error, failures[i].sentence);
		mr = reg(&attr);
		check_bytes(mr);
		expect_ok(pier_mr_dereg(mr));
		close_device();
	}
}

/* A queue pair that is not destroyed at once is destroyed with the protection domain. */
static void queues_are_destroyed_in_the_end(void **state)
{
	static const char *const devices[] = { "fault:destroy_qp@1=EBUSY:soft0",
					       "fault:destroy_cq@1=EBUSY:soft0" };
	struct pier_mr_attr attr = one_key();

	(void)state;
	for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
		struct pier_mr *mr;

		open_device(devices[i]);
		mr = reg(&attr);
		assert_non_null(fixture.pd->left_loops);
		check_bytes(mr);
		expect_ok(pier_mr_dereg(mr));
		close_device();
	}
}

/* If a step fails, the rest of the region stays, and the next call goes on from there. */
static void deregistration_can_be_repeated(void **state)
{
	struct pier_mr_attr attr = one_key();
	struct pier_mr *mr;

	(void)state;
	open_device("fault:unjoin_mrs@1=EBUSY,dereg_mr@1=EBUSY,dereg_mr@3=EBUSY:soft0");
	mr = reg(&attr);
	expect_result(pier_mr_dereg(mr), -EBUSY);
	assert_int_equal(mr->beneath_count, RANGES);
	assert_non_null(mr->beneath);
	check_bytes(mr);
	expect_result(pier_mr_dereg(mr), -EBUSY);
	assert_null(mr->beneath);
	assert_int_equal(mr->part_count, RANGES);
	expect_result(pier_mr_dereg(mr), -EBUSY);
	assert_int_equal(mr->part_count, RANGES - 1);
	expect_ok(pier_mr_dereg(mr));
	close_device();
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(one_key_covers_all_ranges),
		CASE(a_key_must_be_asked_for),
		CASE(names_what_prevents_the_key),
		CASE(one_request_limits_the_parts),
		CASE(failures_leave_nothing),
		CASE(queues_are_destroyed_in_the_end),
		CASE(deregistration_can_be_repeated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
