/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "queues.h"

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

	while (taken < count && pier_py_queue_take(queues[taken], -1))
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
