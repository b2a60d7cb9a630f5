/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/*
 * Asynchronous copies that the device has not begun. While `stalled` is set it begins
 * none before something waits for it; without that it makes each copy at the call, as a
 * real device may.
 *
 * "API synchronization behavior" in the reference of the CUDA driver API: the bytes of
 * pageable memory are staged before a copy to the device returns, and a copy to pageable
 * memory returns when it is done. Page-locked memory is read or written whenever the
 * device gets there.
 */
struct operation {
	struct operation *next;
	struct fake_copy copy;
	CUstream stream;
	uint64_t number;
	char staged[];
};

static struct operation *first, **last = &first;
static uint64_t newest;

uint64_t fake_newest_copy(void)
{
	return newest;
}

static bool is_in(const struct operation *operation, CUstream stream, uint64_t number)
{
	return operation->stream == stream && operation->number <= number;
}

bool fake_is_pending(CUstream stream, uint64_t number)
{
	for (const struct operation *at = first; at; at = at->next)
		if (is_in(at, stream, number))
			return true;
	return false;
}

static void remove_operation(struct operation **link)
{
	struct operation *gone = *link;

	*link = gone->next;
	if (last == &gone->next)
		last = link;
	free(gone);
}

void fake_run_copies(CUstream stream, uint64_t number)
{
	for (struct operation **link = &first; *link;) {
		if (is_in(*link, stream, number)) {
			fake_make_copy(&(*link)->copy);
			remove_operation(link);
		} else {
			link = &(*link)->next;
		}
	}
}

void fake_run_all_copies(void)
{
	while (first) {
		fake_make_copy(&first->copy);
		remove_operation(&first);
	}
}

void fake_drop_copies(int device)
{
	for (struct operation **link = &first; *link;) {
		if ((*link)->copy.device == device)
			remove_operation(link);
		else
			link = &(*link)->next;
	}
}

static bool is_locked(const void *host)
{
	const struct fake_piece *piece = fake_find((uint64_t)(uintptr_t)host);

	return piece &&
	       (piece->kind == FAKE_CUDA_HOST || piece->kind == FAKE_CUDA_REGISTERED);
}

CUresult fake_queue_copy(CUstream stream, const struct fake_copy *copy)
{
	bool stage = !copy->to_host && !copy->source && !is_locked(copy->host);
	struct operation *operation;

	if (!fake_driver.control.stalled || (copy->to_host && !is_locked(copy->host))) {
		fake_run_copies(stream, newest);
		return fake_make_copy(copy);
	}
	operation = calloc(1, sizeof(*operation) + (stage ? copy->size : 0));
	if (!operation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	operation->copy = *copy;
	operation->stream = stream;
	operation->number = ++newest;
	if (stage)
		operation->copy.host = memcpy(operation->staged, copy->host, copy->size);
	*last = operation;
	last = &operation->next;
	return CUDA_SUCCESS;
}
