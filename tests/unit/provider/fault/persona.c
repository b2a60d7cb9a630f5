/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <pier/pier.h>

#include "device/device.h"
#include "provider/fault/persona.h"

/* The refusals of drivers that the personas copy. Their sources are in persona.c. */

static const struct pier_persona *persona_of(const char *name)
{
	const struct pier_persona *persona = pier_persona_find(name, strlen(name));

	assert_non_null(persona);
	return persona;
}

/* The errno of creating an RC queue pair of these sizes. */
static int create(const char *name, struct ibv_qp_cap cap)
{
	const struct ibv_qp_init_attr attr = { .cap = cap, .qp_type = IBV_QPT_RC };

	return pier_persona_check_qp(persona_of(name), &attr);
}

static int create_sends(const char *name, uint32_t wr, uint32_t sge, uint32_t inlined)
{
	return create(name, (struct ibv_qp_cap){ .max_send_wr = wr,
						 .max_recv_wr = 1,
						 .max_send_sge = sge,
						 .max_recv_sge = 1,
						 .max_inline_data = inlined });
}

static int create_receives(const char *name, uint32_t wr, uint32_t sge)
{
	return create(name, (struct ibv_qp_cap){ .max_send_wr = 1,
						 .max_recv_wr = wr,
						 .max_send_sge = 1,
						 .max_recv_sge = sge });
}

static int change_state(const char *name, enum ibv_qp_state from, bool spent,
			enum ibv_qp_state to)
{
	const struct ibv_qp_attr attr = { .qp_state = to };

	return pier_persona_check_transition(persona_of(name), from, spent, &attr,
					     IBV_QP_STATE);
}

static struct pier_device *open_as(const char *plan)
{
	struct pier_device *device;
	char name[64];

	snprintf(name, sizeof(name), "fault:%s:soft0", plan);
	expect_ok(pier_device_open(name, &device));
	return device;
}

static void unknown_persona_lists_those_that_exist(void **state)
{
	struct pier_device *device;

	(void)state;
	expect_result(pier_device_open("fault:like=mlx6:soft0", &device), -EINVAL);
	test_assert_sentence("like=mlx6");
	test_assert_sentence("mlx5, efa, irdma, qedr, ionic, bnxt_re, siw, erdma, rxe");
	expect_result(pier_device_open("fault:like=:soft0", &device), -EINVAL);
	expect_result(pier_device_open("fault:like=mlx5,like=efa:soft0", &device),
		      -EINVAL);
	test_assert_sentence("already");
}

static void persona_and_faults_share_a_plan(void **state)
{
	struct pier_device *device = open_as("alloc_pd@1=EACCES,like=qedr");
	struct pier_device_attr attr;
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_device_query(device, &attr, sizeof(attr)));
	assert_int_equal(attr.max_sge, 4);
	expect_result(pier_pd_alloc(device, &pd), -EACCES);
	expect_ok(pier_device_close(device));
}

/* No NIC has these, and a program that is tested with a persona must not lean on them. */
static void personas_have_no_extras_of_soft0(void **state)
{
	struct pier_device *device = open_as("like=mlx5");
	struct pier_device_attr attr;

	(void)state;
	expect_ok(pier_device_query(device, &attr, sizeof(attr)));
	assert_string_equal(attr.firmware, "like=mlx5");
	assert_true(attr.dmabuf);
	assert_false(attr.memfd_as_dmabuf);
	assert_false(attr.counters);
	assert_int_equal(attr.max_requested_key, 0);
	/* An indirect key, which only ConnectX has. */
	assert_int_equal(attr.max_joined_ranges, 52);
	expect_ok(pier_device_close(device));
	device = open_as("like=efa");
	expect_ok(pier_device_query(device, &attr, sizeof(attr)));
	assert_int_equal(attr.max_joined_ranges, 0);
	expect_ok(pier_device_close(device));
}

static void dmabuf_probe_answers_as_the_driver(void **state)
{
	static const struct {
		const char *plan;
		bool dmabuf;
	} answers[] = {
		{ "like=mlx5", true },	{ "like=efa", true },	  { "like=irdma", true },
		{ "like=ionic", true }, { "like=bnxt_re", true }, { "like=qedr", false },
		{ "like=rxe", false },	{ "like=siw", false },	  { "like=erdma", false },
	};
	struct pier_device_attr attr;

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		struct pier_device *device = open_as(answers[i].plan);

		expect_ok(pier_device_query(device, &attr, sizeof(attr)));
		assert_int_equal(attr.dmabuf, answers[i].dmabuf);
		expect_ok(pier_device_close(device));
	}
}

/* bnxt_re reports windows that it cannot allocate, irdma windows of no type. */
static void windows_are_reported_if_they_can_be_bound(void **state)
{
	static const struct {
		const char *plan;
		bool windows;
	} answers[] = {
		{ "like=mlx5", true },	   { "like=ionic", true },
		{ "like=bnxt_re", false }, { "like=irdma", false },
		{ "like=qedr", false },
	};
	struct pier_device_attr attr;

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		struct pier_device *device = open_as(answers[i].plan);

		expect_ok(pier_device_query(device, &attr, sizeof(attr)));
		assert_int_equal(attr.memory_windows, answers[i].windows);
		expect_ok(pier_device_close(device));
	}
}

static void gids_are_listed_by_type(void **state)
{
	struct pier_device *device = open_as("like=mlx5");
	struct pier_gid_entry first, second, third;

	(void)state;
	expect_ok(pier_device_query_gid(device, 1, 0, &first, sizeof(first)));
	expect_ok(pier_device_query_gid(device, 1, 1, &second, sizeof(second)));
	expect_result(pier_device_query_gid(device, 1, 2, &third, sizeof(third)),
		      -ENODATA);
	assert_int_equal(first.type, PIER_GID_ROCE_V1);
	assert_int_equal(second.type, PIER_GID_ROCE_V2);
	assert_memory_equal(first.gid, second.gid, sizeof(first.gid));
	expect_ok(pier_device_close(device));
	device = open_as("like=irdma");
	expect_ok(pier_device_query_gid(device, 1, 0, &first, sizeof(first)));
	assert_int_equal(first.type, PIER_GID_ROCE_V2);
	expect_result(pier_device_query_gid(device, 1, 1, &second, sizeof(second)),
		      -ENODATA);
	expect_ok(pier_device_close(device));
}

/* The review's figure: with 16 elements the queue ends at 4,681 requests. */
static void mlx5_counts_units_of_64_bytes(void **state)
{
	(void)state;
	assert_int_equal(create_sends("mlx5", 4681, 16, 0), 0);
	assert_int_equal(create_sends("mlx5", 4682, 16, 0), EINVAL);
	assert_int_equal(create_sends("mlx5", 8192, 4, 0), 0);
	assert_int_equal(create_sends("mlx5", 8193, 1, 0), EINVAL);
	assert_int_equal(create_sends("mlx5", 8192, 1, 60), 0);
	assert_int_equal(create_sends("mlx5", 8192, 1, 61), EINVAL);
	assert_int_equal(create_sends("mlx5", 1, 1, 828), 0);
	assert_int_equal(create_sends("mlx5", 1, 1, 829), EINVAL);
	assert_int_equal(create_receives("mlx5", 32768, 32), 0);
	assert_int_equal(create_receives("mlx5", 32769, 1), EINVAL);
	assert_int_equal(create_receives("mlx5", 1, 33), EINVAL);
}

/* It reports 2 GiB, which its kernel driver does not check. */
static void ionic_takes_long_regions(void **state)
{
	(void)state;
	assert_int_equal(pier_persona_check_region(persona_of("ionic"), 32ull << 30, 0),
			 0);
	assert_int_equal(pier_persona_check_region(persona_of("bnxt_re"), 1ull << 40, 0),
			 EINVAL);
}

static const char text[] = "a message of forty bytes, without the end";
static uint8_t memory[65536] __attribute__((aligned(65536)));
static uint8_t other[65536] __attribute__((aligned(65536)));

static void register_memory(struct pier_pd *pd, struct pier_mr **ret_mr)
{
	struct pier_mr_range range = pier_mr_range_host(memory, sizeof(memory));
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = (uintptr_t)other;
	expect_ok(pier_mr_reg_attr(pd, &attr, ret_mr));
}

static void expect_message(struct pier_channel *channel, struct pier_srq *srq,
			   struct pier_work work)
{
	struct pier_result result;

	if (srq)
		expect_result(pier_message_wait(channel, 30000, &result), 1);
	else
		expect_ok(test_work_wait(channel, work, 30000, &result));
}

/* A message of `length` bytes into `memory`, whose region has the addresses of `other`.
 */
static void receive_short(struct pier_pd *pd, struct pier_srq *srq, uint32_t length)
{
	struct pier_channel_attr channel_attr;
	struct pier_channel *from, *to;
	struct pier_mr *source, *target;
	struct pier_endpoint a, b;
	struct pier_gather gather;
	struct pier_scatter scatter[2];
	struct pier_work work = { 0 };

	memset(memory, 0, sizeof(memory));
	memset(other, 0, sizeof(other));
	register_memory(pd, &target);
	expect_ok(pier_mr_reg(pd, (void *)(uintptr_t)text, sizeof(text),
			      PIER_ACCESS_LOCAL_READ, &source));
	pier_channel_attr_init(&channel_attr);
	channel_attr.srq = srq;
	expect_ok(pier_channel_create(pd, NULL, &from));
	expect_ok(pier_channel_create(pd, &channel_attr, &to));
	expect_ok(pier_channel_endpoint(from, &a));
	expect_ok(pier_channel_endpoint(to, &b));
	expect_ok(pier_channel_connect(from, &b));
	expect_ok(pier_channel_connect(to, &a));
	expect_ok(pier_mr_gather(source, (uintptr_t)text, length, &gather));
	expect_ok(pier_mr_scatter(target, (uintptr_t)other, 3, &scatter[0]));
	expect_ok(pier_mr_scatter(target, (uintptr_t)other + 3, 40, &scatter[1]));
	if (srq)
		expect_ok(pier_srq_post_recv(srq, scatter, 2, NULL));
	else
		expect_ok(pier_channel_post_recv(to, scatter, 2, &work));
	expect_ok(pier_channel_send(from, &gather, 1, 30000));
	expect_message(to, srq, work);
	expect_ok(pier_channel_destroy(from));
	expect_ok(pier_channel_destroy(to));
	expect_ok(pier_mr_dereg(source));
	expect_ok(pier_mr_dereg(target));
}

/*
 * `scatters`: the queue pairs are those of ibv_create_qp(), so 32 bytes arrive in other
 * memory; pier's own are not. 33 bytes always arrive in the region.
 */
static void receive_on_mlx5(bool scatters, bool shared)
{
	struct pier_device *device = open_as("like=mlx5");
	const struct pier_provider *own = device->provider;
	struct pier_provider plain = *own;
	struct pier_srq_attr attr;
	struct pier_srq *srq = NULL;
	struct pier_pd *pd;

	plain.create_direct_qp = NULL;
	device->provider = scatters ? &plain : own;
	pier_srq_attr_init(&attr);
	attr.max_sge = 2;
	expect_ok(pier_pd_alloc(device, &pd));
	if (shared)
		expect_ok(pier_srq_create(pd, &attr, &srq));
	receive_short(pd, srq, 32);
	assert_memory_equal(scatters ? other : memory, text, 32);
	assert_memory_not_equal(scatters ? memory : other, text, 1);
	receive_short(pd, srq, 33);
	assert_memory_equal(memory, text, 33);
	assert_int_equal(other[0], 0);
	expect_ok(pier_srq_destroy(srq));
	expect_ok(pier_pd_dealloc(pd));
	device->provider = own;
	expect_ok(pier_device_close(device));
}

static void mlx5_copies_short_messages_by_the_cpu(void **state)
{
	(void)state;
	receive_on_mlx5(true, false);
	receive_on_mlx5(true, true);
	receive_on_mlx5(false, false);
	receive_on_mlx5(false, true);
}

/* hns: nothing prevents the copy, so the receive is refused. */
static void receives_that_the_cpu_would_copy_are_refused(void **state)
{
	struct pier_device *device = open_as("like=mlx5");
	struct pier_srq_attr attr;
	struct pier_channel *channel;
	struct pier_mr *far, *near;
	struct pier_scatter scatter;
	struct pier_srq *srq;
	struct pier_pd *pd;

	(void)state;
	device->copies_receives = true;
	pier_srq_attr_init(&attr);
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_srq_create(pd, &attr, &srq));
	expect_ok(pier_channel_create(pd, NULL, &channel));
	register_memory(pd, &far);
	expect_ok(pier_mr_reg(pd, memory, sizeof(memory), PIER_ACCESS_SHARED, &near));
	expect_ok(pier_mr_scatter(far, (uintptr_t)other, 8, &scatter));
	expect_result(pier_srq_post_recv(srq, &scatter, 1, NULL), -EOPNOTSUPP);
	test_assert_sentence("copies short messages by the CPU");
	expect_result(pier_channel_post_recv(channel, &scatter, 1, NULL), -EOPNOTSUPP);
	test_assert_sentence("let the peer write");
	/* No byte is copied to it. */
	scatter.length = 0;
	expect_ok(pier_srq_post_recv(srq, &scatter, 1, NULL));
	expect_ok(pier_mr_scatter(near, (uintptr_t)memory, 8, &scatter));
	expect_ok(pier_srq_post_recv(srq, &scatter, 1, NULL));
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_srq_destroy(srq));
	expect_ok(pier_mr_dereg(far));
	expect_ok(pier_mr_dereg(near));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

static void irdma_counts_quanta(void **state)
{
	(void)state;
	assert_int_equal(create_sends("irdma", 4063, 13, 0), 0);
	assert_int_equal(create_sends("irdma", 4064, 13, 0), EINVAL);
	assert_int_equal(create_sends("irdma", 16255, 1, 39), 0);
	assert_int_equal(create_sends("irdma", 16255, 1, 40), EINVAL);
	assert_int_equal(create_sends("irdma", 1, 14, 0), EINVAL);
	assert_int_equal(create_sends("irdma", 1, 1, 102), EINVAL);
	assert_int_equal(create_receives("irdma", 4095, 13), 0);
	assert_int_equal(create_receives("irdma", 4096, 13), EINVAL);
}

static void sizes_end_at_the_reported_limits(void **state)
{
	(void)state;
	assert_int_equal(create_sends("qedr", 32767, 4, 256), 0);
	assert_int_equal(create_sends("qedr", 1, 5, 0), EINVAL);
	assert_int_equal(create_receives("qedr", 1, 5), EINVAL);
	assert_int_equal(create_sends("qedr", 1, 1, 257), EINVAL);
	assert_int_equal(create_sends("ionic", 65535, 8, 0), 0);
	assert_int_equal(create_sends("ionic", 1, 9, 0), EINVAL);
	assert_int_equal(create_sends("bnxt_re", 4352, 1, 0), EINVAL);
	assert_int_equal(create_receives("erdma", 1, 2), EINVAL);
	assert_int_equal(pier_persona_check_srq(persona_of("bnxt_re"),
						&(struct ibv_srq_attr){ 65535, 6, 0 }),
			 0);
	assert_int_equal(pier_persona_check_srq(persona_of("bnxt_re"),
						&(struct ibv_srq_attr){ 1, 7, 0 }),
			 EINVAL);
	assert_int_equal(pier_persona_check_cq(persona_of("ionic"), 65435), 0);
	assert_int_equal(pier_persona_check_cq(persona_of("ionic"), 65436), EINVAL);
}

static void efa_has_no_connected_queue_pairs(void **state)
{
	const struct pier_persona *efa = persona_of("efa");

	(void)state;
	assert_int_equal(create_sends("efa", 1, 1, 0), EOPNOTSUPP);
	assert_int_equal(pier_persona_check_region(
				 efa, 1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
			 0);
	assert_int_equal(pier_persona_check_region(efa, 1, IBV_ACCESS_RELAXED_ORDERING),
			 0);
	assert_int_equal(pier_persona_check_region(efa, 1, IBV_ACCESS_REMOTE_ATOMIC),
			 EOPNOTSUPP);
	assert_int_equal(pier_persona_check_region(efa, 1, IBV_ACCESS_ON_DEMAND),
			 EOPNOTSUPP);
}

static void irdma_never_leaves_reset(void **state)
{
	(void)state;
	assert_int_equal(change_state("irdma", IBV_QPS_RESET, false, IBV_QPS_INIT), 0);
	assert_int_equal(change_state("irdma", IBV_QPS_RESET, true, IBV_QPS_INIT),
			 EINVAL);
	assert_int_equal(change_state("mlx5", IBV_QPS_RESET, true, IBV_QPS_INIT), 0);
}

static void qedr_resets_from_err_alone(void **state)
{
	(void)state;
	assert_int_equal(change_state("qedr", IBV_QPS_RTS, false, IBV_QPS_RESET),
			 -EINVAL);
	assert_int_equal(change_state("qedr", IBV_QPS_ERR, true, IBV_QPS_RESET), 0);
	assert_int_equal(change_state("mlx5", IBV_QPS_RTS, false, IBV_QPS_RESET), 0);
}

static void iwarp_needs_a_connection_manager(void **state)
{
	(void)state;
	assert_int_equal(change_state("siw", IBV_QPS_INIT, false, IBV_QPS_RTR), 0);
	assert_int_equal(change_state("siw", IBV_QPS_RTR, false, IBV_QPS_RTS), EINVAL);
	assert_int_equal(change_state("erdma", IBV_QPS_RTR, false, IBV_QPS_RTS), EINVAL);
}

static void reads_are_limited(void **state)
{
	const struct ibv_qp_attr deep = { .max_rd_atomic = 17, .max_dest_rd_atomic = 17 };

	(void)state;
	assert_int_equal(pier_persona_check_transition(persona_of("mlx5"), IBV_QPS_RTR,
						       false, &deep,
						       IBV_QP_MAX_QP_RD_ATOMIC),
			 EINVAL);
	assert_int_equal(pier_persona_check_transition(persona_of("mlx5"), IBV_QPS_INIT,
						       false, &deep,
						       IBV_QP_MAX_DEST_RD_ATOMIC),
			 EINVAL);
	assert_int_equal(pier_persona_check_transition(
				 persona_of("irdma"), IBV_QPS_INIT, false, &deep,
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
}

/* libqedr negates what it returns from a post: the caller sees one errno all the same. */
static void negated_errno_is_returned_once(void **state)
{
	struct pier_device *device = open_as("like=qedr,post_recv@1=EIO");
	struct pier_channel *channel;
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_channel_create(pd, NULL, &channel));
	expect_result(pier_channel_post_recv(channel, NULL, 0, NULL), -EIO);
	test_assert_sentence("post a receive");
	expect_ok(pier_channel_destroy(channel));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* bnxt_re returns NULL and leaves errno alone: no success, and no errno of before. */
static void missing_errno_is_an_error(void **state)
{
	struct pier_device *device = open_as("like=bnxt_re");
	struct pier_channel *channel = NULL;
	struct pier_channel_attr attr;
	struct pier_pd *pd;

	(void)state;
	pier_channel_attr_init(&attr);
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.max_inline = 209;
	expect_ok(pier_pd_alloc(device, &pd));
	errno = ENOENT;
	expect_result(pier_channel_create(pd, &attr, &channel), -EIO);
	assert_null(channel);
	test_assert_sentence("209 bytes inline");
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* Two channels of one device, which ask for `depth` each as responders. */
static int connect_two(struct pier_pd *pd, uint32_t depth)
{
	struct pier_channel *channels[2] = { NULL };
	struct pier_channel_attr attr;
	struct pier_endpoint ends[2];
	int error = 0;

	pier_channel_attr_init(&attr);
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.max_rd_atomic = attr.max_dest_rd_atomic = depth;
	for (int i = 0; i < 2; i++) {
		expect_ok(pier_channel_create(pd, &attr, &channels[i]));
		expect_ok(pier_channel_endpoint(channels[i], &ends[i]));
	}
	for (int i = 0; i < 2 && !error; i++)
		error = pier_channel_connect(channels[i], &ends[1 - i]);
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_destroy(channels[i]));
	return error;
}

static void ionic_shares_reads_of_the_device(void **state)
{
	struct pier_device *device = open_as("like=ionic");
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(connect_two(pd, 8));
	expect_result(connect_two(pd, 9), -EINVAL);
	/* Destroyed queue pairs give back what they had. */
	expect_ok(connect_two(pd, 8));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
	device = open_as("like=mlx5");
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(connect_two(pd, 16));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unknown_persona_lists_those_that_exist),
		cmocka_unit_test(persona_and_faults_share_a_plan),
		cmocka_unit_test(personas_have_no_extras_of_soft0),
		cmocka_unit_test(dmabuf_probe_answers_as_the_driver),
		cmocka_unit_test(windows_are_reported_if_they_can_be_bound),
		cmocka_unit_test(gids_are_listed_by_type),
		cmocka_unit_test(mlx5_counts_units_of_64_bytes),
		cmocka_unit_test(ionic_takes_long_regions),
		cmocka_unit_test(mlx5_copies_short_messages_by_the_cpu),
		cmocka_unit_test(receives_that_the_cpu_would_copy_are_refused),
		cmocka_unit_test(irdma_counts_quanta),
		cmocka_unit_test(sizes_end_at_the_reported_limits),
		cmocka_unit_test(efa_has_no_connected_queue_pairs),
		cmocka_unit_test(irdma_never_leaves_reset),
		cmocka_unit_test(qedr_resets_from_err_alone),
		cmocka_unit_test(iwarp_needs_a_connection_manager),
		cmocka_unit_test(reads_are_limited),
		cmocka_unit_test(negated_errno_is_returned_once),
		cmocka_unit_test(missing_errno_is_an_error),
		cmocka_unit_test(ionic_shares_reads_of_the_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
