/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/mr.h>

#include "core/error.h"
#include "core/extensible.h"
#include "core/fork.h"
#include "core/list.h"
#include "core/log.h"
#include "core/object.h"
#include "device.h"
#include "provider/event_name.h"

static_assert((int)PIER_LINK_INFINIBAND == IBV_LINK_LAYER_INFINIBAND, "as verbs");
static_assert((int)PIER_LINK_ETHERNET == IBV_LINK_LAYER_ETHERNET, "as verbs");
static_assert((int)PIER_GID_IB == IBV_GID_TYPE_IB, "as verbs");
static_assert((int)PIER_GID_ROCE_V1 == IBV_GID_TYPE_ROCE_V1, "as verbs");
static_assert((int)PIER_GID_ROCE_V2 == IBV_GID_TYPE_ROCE_V2, "as verbs");

char pier_canary_passed[] = "passed", pier_canary_impossible[] = "not run";

static struct pier_pair *find_record(struct pier_device *device, const char *memory)
{
	pier_list_for_each(struct pier_pair, pair, &device->pairs, link) {
		if (strcmp(pair->memory, memory) == 0)
			return pair;
	}
	return NULL;
}

struct pier_pair *pier_find_pair(struct pier_device *device, const char *backend,
				 const char *unit)
{
	char memory[sizeof(((struct pier_pair *)0)->memory)];
	struct pier_pair *pair;

	snprintf(memory, sizeof(memory), "%s%s%s", backend, unit[0] ? ":" : "", unit);
	pthread_mutex_lock(&device->pairs_lock);
	pair = find_record(device, memory);
	if (!pair) {
		pair = calloc(1, sizeof(*pair));
		if (pair) {
			memcpy(pair->memory, memory, sizeof(memory));
			pier_list_init(&pair->spares);
			pier_list_append(&device->pairs, &pair->link);
		}
	}
	pthread_mutex_unlock(&device->pairs_lock);
	return pair;
}

static void free_record(struct pier_pair *pair)
{
	for (size_t i = 0; i < sizeof(pair->canary) / sizeof(pair->canary[0]); i++) {
		char *text = atomic_load(&pair->canary[i].text);

		if (text != pier_canary_passed && text != pier_canary_impossible)
			free(text);
		free(atomic_load(&pair->canary[i].obstacle));
	}
	while (!pier_list_empty(&pair->spares))
		pair->free_spare(pier_list_take(&pair->spares));
	free(pair);
}

/* Free all records of a device. */
static void free_pairs(struct pier_device *device)
{
	pier_list_for_each_safe(struct pier_pair, pair, next, &device->pairs, link)
		free_record(pair);
	pthread_mutex_destroy(&device->pairs_lock);
}

void pier_drop_gids(struct pier_shared_gids *gids)
{
	if (gids && atomic_fetch_sub(&gids->users, 1) == 1)
		free(gids);
}

static struct pier_fork_mutex devices_mutex = PIER_FORK_MUTEX;
static struct pier_list devices = { &devices, &devices };

static void describe_device(const struct pier_object *object, char *ret_text, size_t size)
{
	snprintf(ret_text, size, "device %s", ((const struct pier_device *)object)->name);
}

struct pier_device *pier_new_device(const char *prefix, const char *name)
{
	struct pier_device *device = calloc(1, sizeof(*device));
	int room;

	if (!device)
		return NULL;
	device->object.describe = describe_device;
	atomic_init(&device->pds, 0);
	pthread_mutex_init(&device->events_lock, NULL);
	pthread_mutex_init(&device->gids_lock, NULL);
	atomic_init(&device->queues, 0);
	pthread_mutex_init(&device->pairs_lock, NULL);
	pier_list_init(&device->pairs);
	/* libibverbs' longest names would lose their end behind a prefix. */
	room = (int)(sizeof(device->name) - strlen(prefix) - 1);
	snprintf(device->name, sizeof(device->name), "%s%.*s", prefix, room, name);
	return device;
}

void pier_free_device(struct pier_device *device)
{
	free_pairs(device);
	for (int i = 0; i < PIER_GID_PORTS; i++)
		pier_drop_gids(device->gids[i].gids);
	pthread_mutex_destroy(&device->gids_lock);
	pthread_mutex_destroy(&device->events_lock);
	free(device);
}

void pier_add_device(struct pier_device *device)
{
	pier_fork_lock(&devices_mutex);
	pier_list_append(&devices, &device->link);
	pier_fork_unlock(&devices_mutex);
}

static struct pier_device *find_device(const struct ibv_context *context)
{
	pier_list_for_each(struct pier_device, device, &devices, link) {
		if (device->context == context)
			return device;
	}
	return NULL;
}

struct pier_device *pier_hold_device(const struct ibv_context *context,
				     struct pier_device *device)
{
	struct pier_device *found;

	pier_fork_lock(&devices_mutex);
	found = find_device(context);
	if (!found && device) {
		pier_list_append(&devices, &device->link);
		found = device;
	}
	if (found)
		atomic_fetch_add(&found->pds, 1);
	pier_fork_unlock(&devices_mutex);
	return found;
}

void pier_release_device(struct pier_device *device)
{
	bool last;

	pier_fork_lock(&devices_mutex);
	last = atomic_fetch_sub(&device->pds, 1) == 1 && device->borrowed;
	if (last)
		pier_list_remove(&device->link);
	pier_fork_unlock(&devices_mutex);
	if (!last)
		return;
	pier_object_untrack(&device->object);
	pier_free_device(device);
}

static int refuse_to_close(const struct pier_device *device)
{
	char children[256];
	int error;

	pier_object_tally(&device->object, children, sizeof(children));
	error = pier_fail(EBUSY, "closing %s: it still has %s", device->name, children);
	pier_object_log_below(&device->object);
	return error;
}

int pier_device_close(struct pier_device *device)
{
	int error;

	if (!device)
		return 0;
	error = pier_check_process(&device->object);
	if (error)
		return error;
	if (atomic_load(&device->pds))
		return refuse_to_close(device);
	pier_clear_error();
	errno = 0;
	pier_fork_lock(&devices_mutex);
	pier_list_remove(&device->link);
	pier_fork_unlock(&devices_mutex);
	if (device->provider->close_device(device->context)) {
		error = pier_last_errno();
		pier_add_device(device);
		return pier_fail_because(error, "closing %s", device->name);
	}
	pier_object_untrack(&device->object);
	pier_free_device(device);
	return 0;
}

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

int pier_device_query(struct pier_device *device, struct pier_device_attr *ret_attr,
		      size_t size)
{
	PIER_REFUSE_NULL(device, ret_attr);
	struct ibv_device_attr limits;
	struct pier_device_attr attr = { 0 };
	int error = pier_check_process(&device->object);

	if (error)
		return error;
	pier_clear_error();
	error = device->provider->query_device(device->context, &limits);
	if (error)
		return pier_fail_because(error, "querying %s", device->name);
	snprintf(attr.name, sizeof(attr.name), "%s", device->name);
	snprintf(attr.provider, sizeof(attr.provider), "%s", device->provider->name);
	snprintf(attr.firmware, sizeof(attr.firmware), "%s", limits.fw_ver);
	attr.max_mr_size = limits.max_mr_size;
	attr.page_sizes = limits.page_size_cap;
	attr.max_qp_wr = (uint32_t)limits.max_qp_wr;
	attr.max_sge = (uint32_t)limits.max_sge;
	attr.max_cqe = (uint32_t)limits.max_cqe;
	attr.port_count = limits.phys_port_cnt;
	/* Verbs reports reads and atomics as int; a QP takes 8 bits. */
	attr.max_rd_atomic = limits.max_qp_rd_atom > UINT8_MAX
				     ? UINT8_MAX
				     : (uint32_t)limits.max_qp_rd_atom;
	attr.dmabuf = device->dmabuf;
	attr.memfd_as_dmabuf = device->provider->takes_memfd;
	attr.atomics = !(device->lacking_access & PIER_ACCESS_REMOTE_ATOMIC);
	attr.memory_windows = !(device->lacking_access & PIER_ACCESS_MW_BIND);
	attr.on_demand = !(device->lacking_access & PIER_ACCESS_ON_DEMAND);
	attr.counters = device->provider->bind_counter != NULL;
	attr.max_requested_key = device->provider->max_key;
	attr.max_joined_ranges = pier_can_join(device->provider, device->context)
					 ? PIER_JOIN_PARTS
					 : 0;
	pier_write_extensible(&attr, sizeof(attr), ret_attr, size);
	return 0;
}

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

/* Ports have 8 bits in verbs: a larger number must not wrap into range. */
static int check_port(const struct pier_device *device, uint32_t port)
{
	int error = pier_check_process(&device->object);

	if (error)
		return error;
	if (port >= 1 && port <= device->limits.phys_port_cnt)
		return 0;
	return pier_fail(EINVAL, "%s has no port %u: its ports are 1 to %u", device->name,
			 port, device->limits.phys_port_cnt);
}

int pier_device_query_port(struct pier_device *device, uint32_t port,
			   struct pier_port_attr *ret_attr, size_t size)
{
	PIER_REFUSE_NULL(device, ret_attr);
	struct pier_port_attr known;
	struct ibv_port_attr attr;
	int error = check_port(device, port);

	if (error)
		return error;
	pier_clear_error();
	error = device->provider->query_port(device->context, (uint8_t)port, &attr);
	if (error)
		return pier_fail_because(error, "querying port %u of %s", port,
					 device->name);
	known = (struct pier_port_attr){
		.active = attr.state == IBV_PORT_ACTIVE,
		.link_layer = (enum pier_link_layer)attr.link_layer,
		.lid = attr.lid,
		.active_mtu = mtu_bytes(attr.active_mtu),
		.max_mtu = mtu_bytes(attr.max_mtu),
		.max_msg_size = attr.max_msg_sz,
		.gid_count = (uint32_t)attr.gid_tbl_len,
	};
	pier_write_extensible(&known, sizeof(known), ret_attr, size);
	return 0;
}

int pier_device_query_gid(struct pier_device *device, uint32_t port, uint32_t index,
			  struct pier_gid_entry *ret_entry, size_t size)
{
	PIER_REFUSE_NULL(device, ret_entry);
	struct pier_gid_entry known = { .index = index };
	struct ibv_gid_entry entry;
	struct pier_port_attr table;
	int error = pier_device_query_port(device, port, &table, sizeof(table));

	if (!error && index >= table.gid_count)
		error = pier_fail(EINVAL, "port %u of %s has no GID index %u: it has %u",
				  port, device->name, index, table.gid_count);
	if (error)
		return error;
	pier_clear_error();
	error = device->provider->query_gid(device->context, (uint8_t)port, index,
					    &entry);
	if (error)
		return pier_fail_because(error, "querying GID %u of port %u of %s", index,
					 port, device->name);
	memcpy(known.gid, entry.gid.raw, sizeof(known.gid));
	known.type = (enum pier_gid_type)entry.gid_type;
	pier_write_extensible(&known, sizeof(known), ret_entry, size);
	return 0;
}

bool pier_is_rxe(const struct ibv_device_attr *limits)
{
	return limits->vendor_id == 0xffffff;
}

int pier_device_check_channels(const struct pier_device *device)
{
	PIER_REFUSE_NULL(device);
	if (!device->no_channels[0])
		return 0;
	return pier_fail(EOPNOTSUPP,
			 "%s: name another device, or use this one for "
			 "memory regions alone",
			 device->no_channels);
}

const char *pier_device_name(const struct pier_device *device)
{
	PIER_REFUSE_NULL_AS(NULL, device);
	return device->name;
}

struct ibv_context *pier_device_verbs(const struct pier_device *device)
{
	PIER_REFUSE_NULL_AS(NULL, device);
	return device->context;
}
