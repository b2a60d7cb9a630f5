/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_CALLER_H
#define PIER_CORE_CALLER_H

#include <stddef.h>

#include "thread.h"

/*
 * The caller: the address in the user's code that the public call of this thread
 * returns to. pier_object_track() stores it in the objects that the call creates.
 *
 * Every public function that creates objects begins with PIER_ENTRY(). If it runs
 * within another public function, it keeps the caller that is set. This also holds
 * for a backend that calls such a function: its objects have the caller of the call
 * that needed the backend. Functions that run a callback of the user create no objects
 * and set no caller, so what the callback creates has the callback's own calls.
 *
 * A thread of the library that finishes the work of a call sets that call's caller
 * with PIER_ENTRY_FROM().
 */
#define PIER_ENTRY() PIER_ENTRY_FROM(__builtin_return_address(0))

/* To the end of the enclosing block, unless a caller is set already. */
#define PIER_ENTRY_FROM(caller)                            \
	__attribute__((cleanup(pier_leave_entry), unused)) \
	const void **pier_entry = pier_enter(caller)

/* NULL outside of public functions. */
extern PIER_THREAD_LOCAL const void *pier_caller;

/* Returns what pier_leave_entry() resets; NULL if a caller was set already. */
static inline const void **pier_enter(const void *caller)
{
	const void **slot = &pier_caller;

	if (*slot)
		return NULL;
	*slot = caller;
	return slot;
}

static inline void pier_leave_entry(const void ***entry)
{
	if (*entry)
		**entry = NULL;
}

/*
 * Write a return address as addr2line(1) takes the call before it:
 * "OBJECT(FUNCTION+0x1f)"; "OBJECT(+0x1234)" if the function is not among the dynamic
 * symbols; the bare address if no loaded object contains it. An object path that is
 * too long loses its beginning. `size` is at least 64.
 */
void pier_print_caller(const void *caller, char *ret_text, size_t size);

#endif
