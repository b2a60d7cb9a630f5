/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdatomic.h>

#include "object.h"

static atomic_size_t counts[PIER_OBJECT_KINDS];

void pier_object_born(enum pier_object_kind kind)
{
	atomic_fetch_add_explicit(&counts[kind], 1, memory_order_relaxed);
}

void pier_object_gone(enum pier_object_kind kind)
{
	size_t before = atomic_fetch_sub_explicit(&counts[kind], 1, memory_order_relaxed);

	assert(before > 0);
	(void)before;
}

size_t pier_count_objects(enum pier_object_kind kind)
{
	if ((unsigned int)kind >= PIER_OBJECT_KINDS)
		return 0;
	return atomic_load_explicit(&counts[kind], memory_order_relaxed);
}
