/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_DEVICE_EVENTS_H
#define PIER_DEVICE_DEVICE_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

struct pier_device;

/*
 * The asynchronous events of a device (ibv_get_async_event(3)). They are taken by threads
 * that sleep, fail or look for a GID anyway; pier has no thread for them. Those of an
 * imported context are the program's.
 */

enum {
	/* Errors of objects that are remembered. All are logged. */
	PIER_OBJECT_TROUBLES = 8,
};

/* The errors that a device has reported. Under its events_lock. */
struct pier_device_trouble {
	bool fatal;	     /* DEVICE_FATAL */
	uint64_t ports_down; /* bits of the ports 1 to 63 */
	/* The queue pairs and completion queues that failed last, in a ring. */
	struct pier_object_trouble {
		enum ibv_event_type event;
		unsigned int qp_num; /* 0: a completion queue */
		const struct ibv_cq *cq;
	} objects[PIER_OBJECT_TROUBLES];
	unsigned int object_count; /* ever */
};

/* Make reading the events non-blocking, once the context is open. */
void pier_start_device_events(struct pier_device *device);

/* Take the events that have come, and log them. Returns whether pier takes them. */
bool pier_take_device_events(struct pier_device *device);

/* Errors: -EIO the device has failed as a whole. The sentence names the event. */
int pier_check_device_events(struct pier_device *device);

/*
 * Take the events, and name the one that explains why a channel with this queue pair and
 * port failed.
 *
 * Returns false if there is none.
 */
bool pier_explain_by_event(struct pier_device *device, const struct ibv_qp *qp,
			   unsigned int port, char *ret_text, size_t size);

/*
 * A queue pair begins a new connection: what was reported about it, or about an earlier
 * one with its number, explains nothing that follows. An event of its completion queue
 * still counts, because a queue that has failed stays failed.
 */
void pier_forget_qp_events(struct pier_device *device, unsigned int qp_num);

/* A completion queue is new: what was reported was about an earlier one. */
void pier_forget_cq_events(struct pier_device *device, const struct ibv_cq *cq);

#endif
