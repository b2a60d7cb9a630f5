/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>

#include "queue.h"
#include "region.h"

enum {
	/* How long to sleep before signals and the deadline are checked. */
	SLICE_MS = 50,
	CHECKS_PER_CLOCK = 8,
	SPIN_SLICE_US = 1000,
};

int pier_py_queue_init(struct pier_py_queue *queue, const char *name)
{
	pthread_condattr_t attr;

	queue->name = name;
	pthread_mutex_init(&queue->mutex, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&queue->woken, &attr);
	pthread_condattr_destroy(&attr);
	return pier_py_lock_init(&queue->lock);
}

static void bump_turn(struct pier_py_queue *queue)
{
	pthread_mutex_lock(&queue->mutex);
	queue->turn++;
	pthread_cond_broadcast(&queue->woken);
	pthread_mutex_unlock(&queue->mutex);
}

static PyObject *swap_watchers(struct pier_py_queue *queue, PyObject *watchers)
{
	PyObject *before;

	pthread_mutex_lock(&queue->mutex);
	before = queue->watchers;
	queue->watchers = watchers;
	pthread_mutex_unlock(&queue->mutex);
	return before;
}

/* Event loops that are closed are no reason to fail. */
static void call_watchers(struct pier_py_queue *queue, PyObject *except)
{
	PyObject *watchers;
	Py_ssize_t count;

	pthread_mutex_lock(&queue->mutex);
	watchers = Py_XNewRef(queue->watchers);
	pthread_mutex_unlock(&queue->mutex);
	count = watchers ? PyTuple_Size(watchers) : 0;
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *watcher = PyTuple_GetItem(watchers, i), *result;

		if (watcher == except)
			continue;
		result = PyObject_CallNoArgs(watcher);
		if (!result)
			PyErr_WriteUnraisable(watchers);
		Py_XDECREF(result);
	}
	Py_XDECREF(watchers);
}

void pier_py_queue_wake(struct pier_py_queue *queue, PyObject *except)
{
	PyObject *type, *value, *traceback;

	bump_turn(queue);
	PyErr_Fetch(&type, &value, &traceback);
	call_watchers(queue, except);
	PyErr_Restore(type, value, traceback);
}

static int replace_watchers(struct pier_py_queue *queue, PyObject *list)
{
	PyObject *watchers = list ? PyList_AsTuple(list) : NULL;

	Py_XDECREF(list);
	if (!watchers)
		return -1;
	if (PyTuple_Size(watchers) == 0)
		Py_CLEAR(watchers);
	Py_XDECREF(swap_watchers(queue, watchers));
	return 0;
}

int pier_py_queue_watch(struct pier_py_queue *queue, PyObject *wake)
{
	PyObject *list = queue->watchers ? PySequence_List(queue->watchers)
					 : PyList_New(0);

	if (list && PyList_Append(list, wake) < 0)
		Py_CLEAR(list);
	return replace_watchers(queue, list);
}

int pier_py_queue_unwatch(struct pier_py_queue *queue, PyObject *wake)
{
	PyObject *list = queue->watchers ? PySequence_List(queue->watchers)
					 : PyList_New(0);
	Py_ssize_t index = list ? PySequence_Index(list, wake) : -1;

	if (index < 0 || PySequence_DelItem(list, index) < 0)
		Py_CLEAR(list);
	return replace_watchers(queue, list);
}

/* One wait of a thread. */
struct queue_wait {
	struct pier_py_queue *queue;
	struct pier_channel *channel;
	int (*check)(void *subject);
	void *subject;
	int64_t deadline; /* in microseconds, as everything here */
	bool polls;	  /* never sleeps: PIER_WAIT_POLL */
};

/* Without the GIL. */
static int spin(const struct queue_wait *wait, int64_t time)
{
	int64_t end = pier_py_now_us() + time;
	int state;

	if (end > wait->deadline)
		end = wait->deadline;
	do {
		state = 0;
		for (int i = 0; i < CHECKS_PER_CLOCK && !state; i++)
			state = wait->check(wait->subject);
	} while (!state && pier_py_now_us() < end);
	return state;
}

static int spin_as_configured(struct queue_wait *wait)
{
	struct pier_channel_attr attr;

	pier_channel_query(wait->channel, &attr, sizeof(attr));
	wait->polls = attr.waiting == PIER_WAIT_POLL;
	if (attr.waiting == PIER_WAIT_ADAPTIVE)
		return spin(wait, attr.spin_us);
	return wait->check(wait->subject);
}

/* Arm, and check again what came before. Returns as the check does. */
static int arm(const struct queue_wait *wait)
{
	int state, count;

	do {
		count = pier_channel_arm(wait->channel);
		state = wait->check(wait->subject);
	} while (count > 0 && !state);
	return state ? state : count;
}

static int slice_ms(const struct queue_wait *wait)
{
	int64_t left = (wait->deadline - pier_py_now_us() + 999) / 1000;

	return left > SLICE_MS ? SLICE_MS : left > 0 ? (int)left : 0;
}

/* The lock is free meanwhile. */
static void sleep_on_fd(const struct queue_wait *wait)
{
	struct pollfd fd = { .fd = pier_channel_fd(wait->channel), .events = POLLIN };
	int next_ms = pier_channel_next_ms(wait->channel);
	int timeout_ms = slice_ms(wait);

	if (next_ms >= 0 && next_ms < timeout_ms)
		timeout_ms = next_ms;
	pier_py_queue_release(wait->queue);
	Py_BEGIN_ALLOW_THREADS
	poll(&fd, 1, timeout_ms);
	Py_END_ALLOW_THREADS
}

/* Wait for the thread that sleeps. The lock is free meanwhile. */
static void sleep_behind(const struct queue_wait *wait)
{
	struct pier_py_queue *queue = wait->queue;
	int64_t end = pier_py_now_us() + slice_ms(wait) * INT64_C(1000);
	struct timespec until = { end / 1000000, end % 1000000 * 1000 };
	uint64_t turn = queue->turn;
	int error = 0;

	pier_py_queue_release(queue);
	Py_BEGIN_ALLOW_THREADS
	pthread_mutex_lock(&queue->mutex);
	while (queue->turn == turn && !error)
		error = pthread_cond_timedwait(&queue->woken, &queue->mutex, &until);
	pthread_mutex_unlock(&queue->mutex);
	Py_END_ALLOW_THREADS
}

/* Returns as the check does, or -EINTR with an exception. */
static int sleep_once(struct queue_wait *wait)
{
	struct pier_py_queue *queue = wait->queue;
	bool sleeper = !queue->has_sleeper && !wait->polls;
	int state = 0, raised;

	if (sleeper) {
		state = arm(wait);
		call_watchers(queue, NULL);
		if (state)
			return state;
		queue->has_sleeper = true;
		sleep_on_fd(wait);
	} else if (!wait->polls) {
		sleep_behind(wait);
	} else {
		pier_py_queue_release(queue);
		sched_yield();
	}
	raised = PyErr_CheckSignals();
	pier_py_lock_take_back(&queue->lock);
	if (sleeper) {
		queue->has_sleeper = false;
		bump_turn(queue);
	}
	if (!raised && queue->lock.closed) {
		PyErr_Format(PyExc_ValueError, "the %s was closed during the wait",
			     queue->name);
		raised = -1;
	}
	return raised ? -EINTR : 0;
}

/* Returns as the check does, without the GIL in between. */
static int check_or_spin(struct queue_wait *wait, bool first)
{
	PyThreadState *thread = PyEval_SaveThread();
	int state;

	state = first	      ? spin_as_configured(wait)
		: wait->polls ? spin(wait, SPIN_SLICE_US)
			      : wait->check(wait->subject);
	PyEval_RestoreThread(thread);
	return state;
}

int pier_py_queue_wait(struct pier_py_queue *queue, struct pier_channel *channel,
		       int (*check)(void *subject), void *subject, int timeout_ms)
{
	struct queue_wait wait = {
		.queue = queue,
		.channel = channel,
		.check = check,
		.subject = subject,
		.deadline = pier_py_now_us() + timeout_ms * INT64_C(1000),
	};
	int state = check(subject);

	for (bool first = true; !state; first = false) {
		state = check_or_spin(&wait, first);
		if (!state && pier_py_now_us() >= wait.deadline)
			return 0;
		if (!state)
			state = sleep_once(&wait);
	}
	if (state < 0 && !PyErr_Occurred())
		pier_py_fail(state);
	return state < 0 ? -1 : 1;
}

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

void pier_py_queue_delete(struct pier_py_queue *queue, int (*destroy)(void *),
			  void *owner)
{
	if (!queue->name)
		return;
	/* Errors, such as those of a child of fork(2), have nowhere to go. */
	if (!queue->lock.closed)
		(void)PIER_PY_WITHOUT_GIL(destroy(owner));
	free_dropped(take_dropped(queue));
	Py_CLEAR(queue->watchers);
	pier_py_lock_destroy(&queue->lock);
}

PyObject *pier_py_queue_close(struct pier_py_queue *queue, const char *subject,
			      int (*destroy)(void *), void *owner)
{
	PyObject *result = NULL;
	int error;

	if (!pier_py_lock_take_any(&queue->lock, queue->name))
		return NULL;
	if (queue->lock.closed) {
		result = Py_NewRef(Py_None);
	} else if (queue->users) {
		pier_py_refuse(EBUSY,
			       "%s in use by %u transfers or rings: close them first",
			       subject, queue->users);
	} else {
		error = PIER_PY_WITHOUT_GIL(destroy(owner));
		queue->lock.closed = !error;
		result = pier_py_result(error);
	}
	pier_py_queue_release(queue);
	if (result) {
		/* Nothing is in flight any more. */
		free_dropped(take_dropped(queue));
		pier_py_queue_wake(queue, NULL);
	}
	return result;
}

static int compare_queues(const void *left, const void *right)
{
	const uintptr_t *a = left, *b = right;

	return *a < *b ? -1 : *a > *b;
}

uint32_t pier_py_queues_sort(struct pier_py_queue **queues, uint32_t count)
{
	uint32_t kept = 0;

	if (count)
		qsort(queues, count, sizeof(*queues), compare_queues);
	for (uint32_t i = 0; i < count; i++) {
		if (kept == 0 || queues[i] != queues[kept - 1])
			queues[kept++] = queues[i];
	}
	return kept;
}

bool pier_py_queues_take(struct pier_py_queue **queues, uint32_t count)
{
	uint32_t taken = 0;

	while (taken < count && pier_py_queue_take(queues[taken]))
		taken++;
	if (taken == count)
		return true;
	pier_py_queues_release(queues, taken);
	return false;
}

void pier_py_queues_release(struct pier_py_queue **queues, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		pier_py_queue_release(queues[i]);
}

void pier_py_queues_wake(struct pier_py_queue **queues, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		pier_py_queue_wake(queues[i], NULL);
}
