/* SPDX-License-Identifier: BSD-3-Clause */
/* Asynchronous events behind a fault plan: its own, and those of the device beneath. */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <string.h>

#include "provider/fault/fault.h"
#include "nic/nic.h"

static struct {
	struct pier_provider beneath;
	const struct pier_provider *provider;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
} nic;

static struct ibv_context *open_fake(struct ibv_device *device)
{
	(void)device;
	return &fake.context;
}

static int close_fake(struct ibv_context *context)
{
	(void)context;
	return 0;
}

static int query_fake(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
	(void)context;
	*ret_attr = fake.device.limits;
	return 0;
}

static struct ibv_pd *alloc_fake_pd(struct ibv_context *context)
{
	(void)context;
	return &fake.verbs_pd;
}

static int dealloc_fake_pd(struct ibv_pd *pd)
{
	(void)pd;
	return 0;
}

static void start(const char *plan)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_send_sge = 1 } };

	fake_reset();
	nic.beneath = *fake.device.provider;
	nic.beneath.open_device = open_fake;
	nic.beneath.close_device = close_fake;
	nic.beneath.query_device = query_fake;
	nic.beneath.alloc_pd = alloc_fake_pd;
	nic.beneath.dealloc_pd = dealloc_fake_pd;
	expect_ok(pier_fault_open(&nic.beneath, &fake.verbs_device, plan, strlen(plan),
				  &nic.provider, &nic.context));
	pier_fault_opened(nic.context);
	nic.pd = nic.provider->alloc_pd(nic.context);
	nic.cq = nic.provider->create_cq(nic.context, 8, NULL, NULL, 0);
	init.send_cq = init.recv_cq = nic.cq;
	nic.qp = nic.provider->create_qp(nic.pd, &init);
	assert_non_null(nic.qp);
}

static void stop(void)
{
	if (nic.qp)
		expect_ok(nic.provider->destroy_qp(nic.qp));
	expect_ok(nic.provider->destroy_cq(nic.cq));
	expect_ok(nic.provider->dealloc_pd(nic.pd));
	expect_ok(nic.provider->close_device(nic.context));
}

static struct ibv_async_event take(enum ibv_event_type type)
{
	struct ibv_async_event event;

	expect_ok(nic.provider->get_async_event(nic.context, &event));
	assert_int_equal(event.event_type, type);
	nic.provider->ack_async_event(&event);
	return event;
}

static void expect_none(void)
{
	struct ibv_async_event event;

	errno = 0;
	assert_int_equal(nic.provider->get_async_event(nic.context, &event), -1);
	assert_int_equal(errno, EAGAIN);
}

static void post(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };

	expect_ok(nic.provider->modify_qp(nic.qp, &attr, IBV_QP_STATE));
	assert_int_equal(ibv_post_send(nic.qp, &wr, &bad), 0);
}

static void events_of_the_device_beneath_are_passed_on(void **state)
{
	struct ibv_async_event event;

	(void)state;
	start("");
	expect_none();
	fake_report(IBV_EVENT_PORT_ERR, 2);
	fake_report_completion_queue(fake.cq);
	fake_report_queue_pair(IBV_EVENT_QP_FATAL, fault_qp(nic.qp)->under);
	assert_int_equal(take(IBV_EVENT_PORT_ERR).element.port_num, 2);
	assert_ptr_equal(take(IBV_EVENT_CQ_ERR).element.cq, nic.cq);
	event = take(IBV_EVENT_QP_FATAL);
	assert_int_equal(event.element.qp->qp_num, nic.qp->qp_num);
	expect_none();
	/* Otherwise destroying the objects would wait for ever. */
	assert_int_equal(fake.device_events_acked, 3);
	stop();
}

static void both_kinds_of_events_are_taken(void **state)
{
	struct ibv_port_attr port;

	(void)state;
	start("async@1=PORT_ERR,async@2=PORT_ACTIVE");
	fake_report(IBV_EVENT_GID_CHANGE, 1);
	post();
	take(IBV_EVENT_PORT_ERR);
	take(IBV_EVENT_GID_CHANGE);
	expect_none();
	expect_ok(nic.provider->query_port(nic.context, 1, &port));
	assert_int_equal(port.state, IBV_PORT_DOWN);
	expect_ok(nic.provider->query_port(nic.context, 2, &port));
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	post();
	take(IBV_EVENT_PORT_ACTIVE);
	expect_ok(nic.provider->query_port(nic.context, 1, &port));
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(fake.device_events_acked, 1);
	stop();
}

static void events_go_with_their_queue_pair(void **state)
{
	(void)state;
	start("async@1=QP_FATAL,async@2=PORT_ERR");
	post();
	post();
	expect_ok(nic.provider->destroy_qp(nic.qp));
	nic.qp = NULL;
	take(IBV_EVENT_PORT_ERR);
	expect_none();
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_of_the_device_beneath_are_passed_on),
		cmocka_unit_test(both_kinds_of_events_are_taken),
		cmocka_unit_test(events_go_with_their_queue_pair),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
