/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

static int get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
	(void)context;
	if (fake.device_event_count == 0) {
		errno = EAGAIN;
		return -1;
	}
	*ret_event = fake.device_events[0];
	fake.device_event_count--;
	memmove(fake.device_events, fake.device_events + 1,
		(size_t)fake.device_event_count * sizeof(fake.device_events[0]));
	return 0;
}

void fake_drop_events_of(const void *object)
{
	int kept = 0;

	for (int i = 0; i < fake.device_event_count; i++) {
		const struct ibv_async_event *event = &fake.device_events[i];

		if ((const void *)event->element.qp != object)
			fake.device_events[kept++] = *event;
	}
	fake.device_event_count = kept;
}

static void ack_async_event(struct ibv_async_event *event)
{
	(void)event;
	fake.device_events_acked++;
}

/* The state of the port changes before its event: rxe_port_down() in rxe_net.c. */
static void change_port(enum ibv_event_type type, int port)
{
	uint64_t bit = UINT64_C(1) << port;

	if (type == IBV_EVENT_PORT_ERR)
		fake.ports_down |= bit;
	if (type == IBV_EVENT_PORT_ACTIVE)
		fake.ports_down &= ~bit;
}

static void report(const struct ibv_async_event *event)
{
	if (fake.device_event_count == FAKE_EVENTS)
		abort();
	fake.device_events[fake.device_event_count++] = *event;
	fake.device.takes_events = true;
}

void fake_report(enum ibv_event_type type, int port)
{
	change_port(type, port);
	report(&(struct ibv_async_event){ .element.port_num = port, .event_type = type });
}

void fake_report_completion_queue(struct ibv_cq *cq)
{
	report(&(struct ibv_async_event){ .element.cq = cq,
					  .event_type = IBV_EVENT_CQ_ERR });
}

void fake_report_queue_pair(enum ibv_event_type type, struct ibv_qp *qp)
{
	report(&(struct ibv_async_event){ .element.qp = qp, .event_type = type });
}

void fake_add_device_events(struct pier_provider *provider)
{
	provider->get_async_event = get_async_event;
	provider->ack_async_event = ack_async_event;
}
