/* SPDX-License-Identifier: BSD-3-Clause */
#include "error.h"
#include "queues.h"
#include "time.h"
#include "transfer.h"

#define NAME "transfer"

enum {
	/* How long the transfer has the locks at a time. */
	SLICE_MS = 20,
	/* How long to wait for the chunks in flight of a transfer that nobody has. */
	LAST_WAIT_MS = 1000,
};

static bool has_ended(const struct pier_py_transfer *self)
{
	struct pier_transfer_status status;

	pier_transfer_query(self->transfer, &status);
	return status.ended;
}

/*
 * With the lock of the transfer. Without rails in use it has ended, and touches none.
 * Returns as pier_transfer_wait() does, with an exception.
 */
static int drive_slice(struct pier_py_transfer *self, int timeout_ms)
{
	struct pier_py_rails *rails = &self->rails;
	bool in_use = rails->in_use;
	PyThreadState *state;
	int result;

	if (in_use && !pier_py_rails_take(rails))
		return -1;
	state = PyEval_SaveThread();
	result = pier_transfer_wait(self->transfer, timeout_ms);
	PyEval_RestoreThread(state);
	if (result < 0)
		pier_py_fail(result);
	if (in_use)
		pier_py_rails_release(rails);
	return result < 0 ? -1 : result;
}

void pier_py_transfer_settle(struct pier_py_transfer *self)
{
	PyObject *type, *value, *traceback;

	if (!self->rails.in_use || !has_ended(self))
		return;
	PyErr_Fetch(&type, &value, &traceback);
	if (pier_py_rails_take(&self->rails)) {
		pier_py_rails_end_use(&self->rails);
		pier_py_rails_release(&self->rails);
	}
	PyErr_Restore(type, value, traceback);
}

/* Without the lock: the function may use the transfer. Returns 0, or -1: raised. */
static int report(struct pier_py_transfer *self,
		  const struct pier_transfer_status *status)
{
	PyObject *result;
	int cancels;

	if (!self->progress || status->done == self->reported)
		return 0;
	self->reported = status->done;
	result = PyObject_CallFunction(self->progress, "KK",
				       (unsigned long long)status->done,
				       (unsigned long long)status->length);
	cancels = result ? PyObject_IsTrue(result) : -1;
	Py_XDECREF(result);
	if (cancels > 0 && pier_py_lock_take(&self->lock, NAME, -1)) {
		pier_transfer_cancel(self->transfer);
		pier_py_lock_release(&self->lock);
	}
	return cancels < 0 ? -1 : 0;
}

/*
 * Without the lock: a watcher, or another thread, may resume the transfer with other
 * rails meanwhile.
 *
 * channels  those of the rails, a reference that is dropped
 */
static void wake_waiters(PyObject *channels)
{
	Py_ssize_t count = channels ? PyList_Size(channels) : 0;

	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *channel = PyList_GetItem(channels, i);

		pier_py_queue_wake(((struct pier_py_channel *)channel)->queue, NULL);
	}
	Py_XDECREF(channels);
}

/* Returns 1, 0, or -1 with an exception. */
static int drive_and_report(struct pier_py_transfer *self, int timeout_ms)
{
	struct pier_transfer_status status;
	PyObject *channels;
	int result;

	if (!pier_py_lock_take(&self->lock, NAME, -1))
		return -1;
	result = drive_slice(self, timeout_ms);
	pier_py_transfer_settle(self);
	pier_transfer_query(self->transfer, &status);
	channels = Py_XNewRef(self->rails.channels);
	pier_py_lock_release(&self->lock);
	wake_waiters(channels);
	if (result >= 0 && report(self, &status) < 0)
		return -1;
	return result;
}

int pier_py_transfer_drive(struct pier_py_transfer *self, int64_t timeout_ms)
{
	int64_t end = pier_py_now_ms() + timeout_ms;
	int result;

	for (;;) {
		int slice = timeout_ms < SLICE_MS ? (int)timeout_ms : SLICE_MS;

		result = drive_and_report(self, slice);
		if (result || timeout_ms == 0)
			return result;
		if (PyErr_CheckSignals() < 0)
			return -1;
		pier_py_let_others_in();
		timeout_ms = end - pier_py_now_ms();
		if (timeout_ms < 0)
			timeout_ms = 0;
	}
}

int pier_py_transfer_end(struct pier_py_transfer *self)
{
	while (!has_ended(self)) {
		pier_transfer_cancel(self->transfer);
		if (drive_slice(self, SLICE_MS) < 0 && !has_ended(self))
			return -1;
		if (PyErr_CheckSignals() < 0)
			return -1;
	}
	PyErr_Clear();
	return 0;
}

void pier_py_transfer_abandon(struct pier_py_transfer *self)
{
	PyThreadState *state = PyEval_SaveThread();

	pier_transfer_cancel(self->transfer);
	pier_transfer_wait(self->transfer, LAST_WAIT_MS);
	for (uint32_t i = 0; i < self->rails.count && !has_ended(self); i++)
		pier_channel_cancel(self->rails.list[i].channel);
	pier_transfer_destroy(self->transfer);
	PyEval_RestoreThread(state);
}
