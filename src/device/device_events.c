/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "device.h"
#include "device_events.h"
#include "provider/event_name.h"
#include "core/error.h"
#include "core/log.h"

void pier_start_device_events(struct pier_device *device)
{
	int fd = device->context->async_fd;
	int flags = fd < 0 ? 0 : fcntl(fd, F_GETFL);

	device->takes_events = device->provider->get_async_event && flags >= 0 &&
			       (fd < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
}

static uint64_t port_bit(unsigned int port)
{
	return port < 64 ? UINT64_C(1) << port : 0;
}

static void note_port(struct pier_device *device, const struct ibv_async_event *event)
{
	struct pier_device_trouble *trouble = &device->trouble;
	unsigned int port = (unsigned int)event->element.port_num;

	/* Addresses may change with any event of a port. */
	atomic_fetch_add(&device->gid_changes, 1);
	if (event->event_type == IBV_EVENT_PORT_ERR) {
		trouble->ports_down |= port_bit(port);
		pier_warning("%s has reported IBV_EVENT_PORT_ERR: port %u is down",
			     device->name, port);
		return;
	}
	if (event->event_type == IBV_EVENT_PORT_ACTIVE)
		trouble->ports_down &= ~port_bit(port);
	pier_info("%s has reported IBV_EVENT_%s for port %u", device->name,
		  pier_event_name(event->event_type), port);
}

static void note_object(struct pier_device *device, const struct ibv_async_event *event)
{
	struct pier_device_trouble *trouble = &device->trouble;
	unsigned int at = trouble->object_count++ % PIER_OBJECT_TROUBLES;
	struct pier_object_trouble *object = &trouble->objects[at];
	const char *name = pier_event_name(event->event_type);

	*object = (struct pier_object_trouble){ .event = event->event_type };
	if (event->event_type == IBV_EVENT_CQ_ERR) {
		object->cq = event->element.cq;
		pier_warning("%s has reported IBV_EVENT_%s for a completion queue",
			     device->name, name);
		return;
	}
	object->qp_num = event->element.qp->qp_num;
	pier_warning("%s has reported IBV_EVENT_%s for queue pair %#x", device->name,
		     name, object->qp_num);
}

static void note_event(struct pier_device *device, const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_DEVICE_FATAL:
		device->trouble.fatal = true;
		pier_warning("%s has reported IBV_EVENT_DEVICE_FATAL", device->name);
		break;
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		note_object(device, event);
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_GID_CHANGE:
		note_port(device, event);
		break;
	default:
		pier_debug("%s has reported IBV_EVENT_%s", device->name,
			   pier_event_name(event->event_type));
	}
}

/*
 * Under the lock, also between taking an event and noting it: a thread that finds no
 * event any more then knows of all that came before. Acknowledging does not block.
 */
bool pier_take_device_events(struct pier_device *device)
{
	struct ibv_async_event event;

	if (!device->takes_events)
		return false;
	pthread_mutex_lock(&device->events_lock);
	while (device->provider->get_async_event(device->context, &event) == 0) {
		note_event(device, &event);
		/* Destroying the queue pair waits for this. */
		device->provider->ack_async_event(&event);
	}
	pthread_mutex_unlock(&device->events_lock);
	return true;
}

static struct pier_device_trouble get_trouble(struct pier_device *device)
{
	struct pier_device_trouble trouble = { 0 };

	if (!pier_take_device_events(device))
		return trouble;
	pthread_mutex_lock(&device->events_lock);
	trouble = device->trouble;
	pthread_mutex_unlock(&device->events_lock);
	return trouble;
}

int pier_check_device_events(struct pier_device *device)
{
	if (!get_trouble(device).fatal)
		return 0;
	return pier_fail(EIO,
			 "%s has reported IBV_EVENT_DEVICE_FATAL: close the device and "
			 "open it again",
			 device->name);
}

/* The event about the queue pair or its completion queue, or NULL. */
static const char *find_event_of(const struct pier_device_trouble *trouble,
				 const struct ibv_qp *qp)
{
	for (size_t i = 0; i < PIER_OBJECT_TROUBLES; i++) {
		const struct pier_object_trouble *object = &trouble->objects[i];

		if (object->cq ? object->cq == qp->send_cq : object->qp_num == qp->qp_num)
			return pier_event_name(object->event);
	}
	return NULL;
}

bool pier_explain_by_event(struct pier_device *device, const struct ibv_qp *qp,
			   unsigned int port, char *ret_text, size_t size)
{
	struct pier_device_trouble trouble = get_trouble(device);
	const char *event = find_event_of(&trouble, qp);

	if (trouble.fatal)
		snprintf(ret_text, size,
			 "the device has reported IBV_EVENT_DEVICE_FATAL: close it and "
			 "open it again");
	else if (event)
		snprintf(ret_text, size, "the device has reported IBV_EVENT_%s for it",
			 event);
	else if (trouble.ports_down & port_bit(port))
		snprintf(ret_text, size,
			 "port %u is down: the device has reported IBV_EVENT_PORT_ERR",
			 port);
	else
		return false;
	return true;
}

/* qp_num 0: of the completion queue */
static void forget_object(struct pier_device *device, unsigned int qp_num,
			  const struct ibv_cq *cq)
{
	if (!pier_take_device_events(device))
		return;
	pthread_mutex_lock(&device->events_lock);
	for (size_t i = 0; i < PIER_OBJECT_TROUBLES; i++) {
		struct pier_object_trouble *object = &device->trouble.objects[i];

		if (object->qp_num == qp_num && object->cq == cq)
			*object = (struct pier_object_trouble){ 0 };
	}
	pthread_mutex_unlock(&device->events_lock);
}

void pier_forget_qp_events(struct pier_device *device, unsigned int qp_num)
{
	forget_object(device, qp_num, NULL);
}

void pier_forget_cq_events(struct pier_device *device, const struct ibv_cq *cq)
{
	forget_object(device, 0, cq);
}
