/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include "provider/soft/device.h"
#include "provider/soft/queues/events.h"
#include "provider/soft/limits.h"
#include "soft_fixture.h"

/* ibv_get_async_event(3) on the software NIC. */

static const struct pier_provider *const soft = &pier_soft_provider;

static const struct fixture_options stepped = { .stepped = 1 };
static const struct fixture_options shared = { .stepped = 1, .srq_depth = 8 };

/* Called by a destructor that waits for acknowledgements; meson.build wraps it. */
static struct ibv_async_event unacknowledged;
static int waits;

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	(void)cond;
	waits++;
	pthread_mutex_unlock(mutex);
	pier_soft_verbs.ack_async_event(&unacknowledged);
	pthread_mutex_lock(mutex);
	return 0;
}

static int is_readable(const struct soft_fixture *fixture)
{
	struct pollfd waited = { .fd = fixture->context->async_fd, .events = POLLIN };

	return poll(&waited, 1, 0);
}

static void expect_no_event(struct soft_fixture *fixture)
{
	struct ibv_async_event event;

	assert_int_equal(is_readable(fixture), 0);
	assert_int_equal(fcntl(fixture->context->async_fd, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(pier_soft_get_async_event(fixture->context, &event), -1);
	assert_int_equal(errno, EAGAIN);
}

static struct ibv_async_event take_event(struct soft_fixture *fixture,
					 enum ibv_event_type type)
{
	struct ibv_async_event event;

	assert_int_equal(is_readable(fixture), 1);
	assert_int_equal(pier_soft_get_async_event(fixture->context, &event), 0);
	assert_int_equal(event.event_type, type);
	return event;
}

/* It is the only one, and about the queue pair. */
static void expect_qp_event(struct soft_fixture *fixture, enum ibv_event_type type)
{
	struct ibv_async_event event = take_event(fixture, type);

	assert_ptr_equal(event.element.qp, fixture->qp);
	pier_soft_verbs.ack_async_event(&event);
	expect_no_event(fixture);
}

static int set_limit(struct soft_fixture *fixture, uint32_t limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };

	return soft->modify_srq(fixture->srq, &attr, IBV_SRQ_LIMIT);
}

static uint32_t get_limit(struct soft_fixture *fixture)
{
	struct ibv_srq_attr attr;

	assert_int_equal(soft->query_srq(fixture->srq, &attr), 0);
	return attr.srq_limit;
}

static void post_srq(struct soft_fixture *fixture, int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_sge sge = fixture_sge(fixture, 0, 8);
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		assert_int_equal(ibv_post_srq_recv(fixture->srq, &wr, &bad), 0);
	}
}

/* Only `b` has the shared receive queue. */
static void open_shared_pair(struct soft_fixture *a, struct soft_fixture *b)
{
	struct fixture_endpoint to_a, to_b;

	fixture_open(a, &stepped);
	fixture_open(b, &shared);
	fixture_describe(a, &to_a);
	fixture_describe(b, &to_b);
	fixture_connect(a, &to_b);
	fixture_connect(b, &to_a);
}

static void send_one(struct soft_fixture *a, struct soft_fixture *b)
{
	assert_int_equal(
		fixture_post(a, IBV_WR_SEND, 1, 0, 8, NULL, 0, IBV_SEND_SIGNALED), 0);
	fixture_expect(a, a->send_cq, b, 1, IBV_WC_SUCCESS);
	fixture_expect(b, b->recv_cq, a, 0, IBV_WC_SUCCESS);
}

static void queue_pair_with_srq_reports_its_last_receive(void **state)
{
	struct soft_fixture a, b;

	(void)state;
	open_shared_pair(&a, &b);
	assert_int_equal(fixture_to(&a, IBV_QPS_ERR), 0);
	expect_no_event(&a); /* has receives of its own */
	for (int i = 0; i < 50; i++)
		fixture_step(&a, &b);
	expect_qp_event(&b, IBV_EVENT_QP_LAST_WQE_REACHED); /* lost its peer */
	assert_int_equal(fixture_to(&b, IBV_QPS_ERR), 0);
	expect_no_event(&b);
	assert_int_equal(fixture_to(&b, IBV_QPS_RESET), 0);
	expect_no_event(&b);
	assert_int_equal(fixture_to_init(&b), 0);
	assert_int_equal(fixture_to(&b, IBV_QPS_ERR), 0);
	expect_qp_event(&b, IBV_EVENT_QP_LAST_WQE_REACHED);
	fixture_close(&a);
	fixture_close(&b);
}

static void limit_of_srq_fires_once(void **state)
{
	struct ibv_async_event event;
	struct soft_fixture a, b;

	(void)state;
	open_shared_pair(&a, &b);
	post_srq(&b, 6);
	assert_int_equal(set_limit(&b, 9), EINVAL);
	assert_int_equal(set_limit(&b, 5), 0);
	assert_int_equal(get_limit(&b), 5);
	send_one(&a, &b);
	expect_no_event(&b); /* 5 are left */
	send_one(&a, &b);
	event = take_event(&b, IBV_EVENT_SRQ_LIMIT_REACHED);
	assert_ptr_equal(event.element.srq, b.srq);
	pier_soft_verbs.ack_async_event(&event);
	assert_int_equal(get_limit(&b), 0);
	send_one(&a, &b);
	expect_no_event(&b);
	assert_int_equal(set_limit(&b, 3), 0);
	assert_int_equal(set_limit(&b, 0), 0); /* disarms */
	send_one(&a, &b);
	expect_no_event(&b);
	fixture_close(&a);
	fixture_close(&b);
}

/* Refused requests that complete nothing at the responder. */
static void responder_reports_refused_requests(void **state)
{
	const struct {
		enum ibv_wr_opcode opcode;
		uint64_t offset;
		enum ibv_event_type type;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, FIXTURE_MEMORY, IBV_EVENT_QP_ACCESS_ERR },
		{ IBV_WR_RDMA_READ, FIXTURE_MEMORY, IBV_EVENT_QP_ACCESS_ERR },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 1, IBV_EVENT_QP_REQ_ERR },
	};
	struct fixture_options options = {
		.stepped = 1,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = { .num_sge = 1 }, *bad;
		struct fixture_endpoint to_b;
		struct soft_fixture a, b;
		struct ibv_sge sge;

		fixture_open_pair(&a, &b, &options);
		fixture_describe(&b, &to_b);
		wr.opcode = cases[i].opcode;
		wr.sg_list = &sge;
		if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.rkey = to_b.rkey;
			wr.wr.atomic.remote_addr = to_b.address + cases[i].offset;
		} else {
			wr.wr.rdma.rkey = to_b.rkey;
			wr.wr.rdma.remote_addr = to_b.address + cases[i].offset;
		}
		sge = fixture_sge(&a, 0, 8);
		assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
		assert_int_not_equal(fixture_wait(&a, a.send_cq, &b).status,
				     IBV_WC_SUCCESS);
		expect_qp_event(&b, cases[i].type);
		expect_no_event(&a);
		fixture_close(&a);
		fixture_close(&b);
	}
}

/* The receive fails, which is enough. */
static void failed_receive_is_no_event(void **state)
{
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &stepped);
	assert_int_equal(fixture_post_recv(&b, 1, 0, 4), 0);
	assert_int_equal(fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), 0);
	fixture_expect(&b, b.recv_cq, &a, 1, IBV_WC_LOC_LEN_ERR);
	expect_no_event(&b);
	fixture_close(&a);
	fixture_close(&b);
}

static void first_message_in_rtr_is_an_event(void **state)
{
	struct fixture_endpoint to_a, to_b;
	struct soft_fixture a, b;

	(void)state;
	fixture_open(&a, &stepped);
	fixture_open(&b, &stepped);
	fixture_describe(&a, &to_a);
	fixture_describe(&b, &to_b);
	fixture_connect(&a, &to_b);
	assert_int_equal(soft->set_qp_address(b.qp, to_a.blob, to_a.blob_length), 0);
	assert_int_equal(fixture_to_init(&b), 0);
	assert_int_equal(fixture_to_rtr(&b, &to_a), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(fixture_post_recv(&b, 0, 0, 8), 0);
	expect_no_event(&b);
	send_one(&a, &b);
	expect_qp_event(&b, IBV_EVENT_COMM_EST);
	send_one(&a, &b);
	expect_no_event(&b);
	fixture_close(&a);
	fixture_close(&b);
}

static void overrun_is_an_event_of_the_cq(void **state)
{
	struct fixture_options options = { .stepped = 1, .cq_depth = 1 };
	struct ibv_async_event event;
	struct soft_fixture a, b;

	(void)state;
	fixture_open_pair(&a, &b, &options);
	for (int i = 0; i < 2; i++)
		assert_int_equal(fixture_post_recv(&b, 0, 0, 8), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(fixture_post(&a, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0), 0);
	for (int i = 0; i < 100; i++)
		fixture_step(&a, &b);
	event = take_event(&b, IBV_EVENT_CQ_ERR);
	assert_ptr_equal(event.element.cq, b.recv_cq);
	pier_soft_verbs.ack_async_event(&event);
	expect_no_event(&b);
	fixture_close(&a);
	fixture_close(&b);
}

/* What was not taken is dropped; what was taken must be acknowledged first. */
static void destructors_wait_for_acknowledgements(void **state)
{
	struct soft_fixture a, b;

	(void)state;
	waits = 0;
	open_shared_pair(&a, &b);
	post_srq(&b, 1);
	assert_int_equal(set_limit(&b, 1), 0);
	send_one(&a, &b);
	assert_int_equal(fixture_to(&b, IBV_QPS_ERR), 0);
	unacknowledged = take_event(&b, IBV_EVENT_SRQ_LIMIT_REACHED);
	/* That of the queue pair is pending. */
	assert_int_equal(is_readable(&b), 1);
	assert_int_equal(soft->destroy_qp(b.qp), 0);
	b.qp = NULL;
	assert_int_equal(waits, 0);
	expect_no_event(&b);
	assert_int_equal(soft->destroy_srq(b.srq), 0);
	b.srq = NULL;
	assert_int_equal(waits, 1);
	assert_int_equal(fixture_to(&a, IBV_QPS_ERR), 0);
	fixture_close(&a);
	fixture_close(&b);
}

static void *wait_for_event(void *argument)
{
	struct soft_fixture *fixture = argument;
	static struct ibv_async_event event;

	if (pier_soft_get_async_event(fixture->context, &event))
		return NULL;
	pier_soft_verbs.ack_async_event(&event);
	return event.element.qp;
}

static void blocking_call_waits_for_an_event(void **state)
{
	struct fixture_options options = { .srq_depth = 4 };
	struct soft_fixture fixture;
	pthread_t thread;
	void *qp;

	(void)state;
	fixture_open(&fixture, &options);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_event, &fixture), 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_to(&fixture, IBV_QPS_ERR), 0);
	assert_int_equal(pthread_join(thread, &qp), 0);
	assert_ptr_equal(qp, fixture.qp);
	fixture_close(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queue_pair_with_srq_reports_its_last_receive),
		cmocka_unit_test(limit_of_srq_fires_once),
		cmocka_unit_test(responder_reports_refused_requests),
		cmocka_unit_test(failed_receive_is_no_event),
		cmocka_unit_test(first_message_in_rtr_is_an_event),
		cmocka_unit_test(overrun_is_an_event_of_the_cq),
		cmocka_unit_test(destructors_wait_for_acknowledgements),
		cmocka_unit_test(blocking_call_waits_for_an_event),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
