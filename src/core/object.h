/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_OBJECT_H
#define PIER_CORE_OBJECT_H

#include <errno.h>

#include <pier/object.h>

#include "fork.h"
#include "list.h"

/*
 * What every object of the public interface has as its first member, so that the
 * address of one is that of the other.
 */
struct pier_object {
	struct pier_list link; /* in the table of all, in order of birth */
	enum pier_object_kind kind;
	unsigned int generation; /* pier_fork_generation at its birth */
	const struct pier_object *parent;
	const void *place; /* that the call which made it returns to */
	/*
	 * Writes a few words, "region of 4096 bytes on soft0". Set before the birth,
	 * or NULL. Runs on any thread until pier_object_gone(), with the table
	 * locked: it reads what does not change, and calls nothing of pier.
	 */
	void (*describe)(const struct pier_object *object, char *ret_text, size_t size);
	/*
	 * In a child of fork(2): makes what is checked often fail there. Set before the
	 * birth, or NULL; the table is locked.
	 */
	void (*forked)(struct pier_object *object);
	const void *unused; /* what follows is at an address that callers know */
};

/*
 * Put an object into the table, and take it out: after it was made, and before
 * what its description reads is given back. The parent is kept by its child, or
 * NULL.
 *
 * place  __builtin_return_address(0) in the public function that the user
 *        called; where that calls others, it hands it down
 */
void pier_object_born(struct pier_object *object, enum pier_object_kind kind,
		      const struct pier_object *parent, const void *place);
void pier_object_gone(struct pier_object *object);

/*
 * What lives below an object, at any depth, in words: "1 region and 2 channels";
 * "" for nothing.
 */
void pier_object_tally(const struct pier_object *ancestor, char *ret_text, size_t size);

/* Log each of those, with its place; nothing unless debug messages are taken. */
void pier_object_log_below(const struct pier_object *ancestor);

/* How many of a kind have this object for their parent. */
size_t pier_object_children(const struct pier_object *parent, enum pier_object_kind kind);

/* PIER_OBJECT_KINDS counts in the words of pier_object_tally(). */
void pier_object_print_counts(const size_t *counts, char *ret_text, size_t size);

/*
 * Whether the parent of this process made the object, before fork(2). Asked before
 * any lock is taken, since a thread of the parent may have held it.
 */
static inline bool pier_inherited(const struct pier_object *object)
{
	return __builtin_expect(object->generation != pier_fork_generation, 0);
}

/* -ECHILD, with a sentence that names the object. */
int pier_fail_inherited(const struct pier_object *object) __attribute__((cold));

/* 0, or -ECHILD of an object that was inherited. */
static inline int pier_check_process(const struct pier_object *object)
{
	return pier_inherited(object) ? pier_fail_inherited(object) : 0;
}

#endif
