/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_OWN_H
#define PIER_BACKENDS_OWN_H

#include <pier/backend.h>

#include "core/fork.h"
#include "core/list.h"

/*
 * The allocations of a backend, for its find(). Its buffer and every find() hold a
 * reference to an allocation, so a wrapped pointer into a buffer outlives the buffer.
 */
struct pier_own_list {
	struct pier_fork_mutex lock;
	struct pier_list allocations;
};

struct pier_own_memory {
	struct pier_own_list *list;
	struct pier_list link;
	unsigned int users;	   /* under the list's lock */
	struct pier_memory memory; /* constant: what find() reports */
};

#define PIER_OWN_LIST(list)                               \
	{                                                 \
		.lock = PIER_FORK_MUTEX, .allocations = { \
			&(list).allocations,              \
			&(list).allocations               \
		}                                         \
	}

/* Add an allocation, with one user. */
void pier_own_add(struct pier_own_list *list, struct pier_own_memory *own);

/* Add a user to the allocation around an address; -ENOENT: there is none. */
int pier_own_find(struct pier_own_list *list, uint64_t address,
		  struct pier_memory *ret_memory);

/* Remove a user. True: that was the last one, and the allocation left the list. */
bool pier_own_drop(struct pier_own_memory *own);

#endif
