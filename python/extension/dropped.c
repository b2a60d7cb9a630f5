/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "local.h"
#include "queue.h"

/*
 * Requests whose Work is gone before they have completed. The queue keeps their regions
 * until then.
 */
struct pier_py_dropped {
	struct pier_py_dropped *next;
	struct pier_channel *channel;
	struct pier_work work;
	PyObject *regions;
};

/* NULL: nothing is removed. */
static void push_dropped(struct pier_py_queue *queue, struct pier_py_dropped *first)
{
	struct pier_py_dropped *last = first;

	while (last && last->next)
		last = last->next;
	if (!last)
		return;
	pthread_mutex_lock(&queue->mutex);
	last->next = queue->dropped;
	queue->dropped = first;
	pthread_mutex_unlock(&queue->mutex);
}

static struct pier_py_dropped *take_dropped(struct pier_py_queue *queue)
{
	struct pier_py_dropped *list;

	pthread_mutex_lock(&queue->mutex);
	list = queue->dropped;
	queue->dropped = NULL;
	pthread_mutex_unlock(&queue->mutex);
	return list;
}

static void free_dropped(struct pier_py_dropped *list)
{
	while (list) {
		struct pier_py_dropped *next = list->next;

		pier_py_regions_release(list->regions);
		free(list);
		list = next;
	}
}

void pier_py_queue_drop(struct pier_py_queue *queue, struct pier_channel *channel,
			struct pier_work work, PyObject *regions)
{
	struct pier_py_dropped *dropped = malloc(sizeof(*dropped));

	/* Without memory the regions stay open for ever, which is safe. */
	if (!dropped)
		return;
	*dropped = (struct pier_py_dropped){ .channel = channel,
					     .work = work,
					     .regions = regions };
	push_dropped(queue, dropped);
}

void pier_py_queue_reap(struct pier_py_queue *queue)
{
	struct pier_py_dropped *list, *kept = NULL, *done = NULL;

	if (!queue->dropped)
		return;
	list = take_dropped(queue);
	while (list) {
		struct pier_py_dropped *next = list->next;
		bool pending = pier_work_poll(list->channel, list->work, NULL) == 0;
		struct pier_py_dropped **into = pending ? &kept : &done;

		list->next = *into;
		*into = list;
		list = next;
	}
	push_dropped(queue, kept);
	free_dropped(done);
}

void pier_py_queue_forget(struct pier_py_queue *queue)
{
	free_dropped(take_dropped(queue));
}
