/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>

#include "core/checked.h"
#include "own.h"

void pier_own_add(struct pier_own_list *list, struct pier_own_memory *own)
{
	own->list = list;
	own->users = 1;
	pier_fork_lock(&list->lock);
	pier_list_append(&list->allocations, &own->link);
	pier_fork_unlock(&list->lock);
}

int pier_own_find(struct pier_own_list *list, uint64_t address,
		  struct pier_memory *ret_memory)
{
	int result = -ENOENT;

	pier_fork_lock(&list->lock);
	pier_list_for_each(struct pier_own_memory, own, &list->allocations, link) {
		if (pier_range_fits(address - own->memory.address, 1,
				    own->memory.length)) {
			own->users++;
			*ret_memory = own->memory;
			result = 0;
			break;
		}
	}
	pier_fork_unlock(&list->lock);
	return result;
}

bool pier_own_drop(struct pier_own_memory *own)
{
	struct pier_own_list *list = own->list;
	bool last;

	pier_fork_lock(&list->lock);
	assert(own->users > 0);
	last = --own->users == 0;
	if (last)
		pier_list_remove(&own->link);
	pier_fork_unlock(&list->lock);
	return last;
}
