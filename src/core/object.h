/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_OBJECT_H
#define PIER_CORE_OBJECT_H

#include <errno.h>

#include <pier/object.h>

#include "fork.h"
#include "list.h"

/*
 * The head of every object of the public interface. It is the first member, so the
 * object's handle is also the address of its head.
 */
struct pier_object {
	struct pier_list link; /* in the table of live objects, oldest first */
	enum pier_object_kind kind;
	unsigned int generation; /* pier_fork_generation at the creation */
	const struct pier_object *parent;
	const void *caller; /* see core/caller.h */
	/*
	 * Writes a short description, "region of 4096 bytes on soft0". Set before
	 * pier_object_track(), or NULL. Until pier_object_untrack() it runs on any
	 * thread, with the table locked: it reads only fields that do not change, and
	 * calls no function of pier.
	 */
	void (*describe)(const struct pier_object *object, char *ret_text, size_t size);
	/*
	 * Runs in a child of fork(2), with the table locked. It sets the fields that a
	 * hot path checks, so that the checks fail in the child. Set before
	 * pier_object_track(), or NULL.
	 */
	void (*forked)(struct pier_object *object);
	const void *unused; /* <pier/inline.h> relies on the offset of the next member */
};

/*
 * Put an object into the table, with the caller that PIER_ENTRY() has set. Call it
 * when the object is complete. `parent` outlives the object; it may be NULL.
 */
void pier_object_track(struct pier_object *object, enum pier_object_kind kind,
		       const struct pier_object *parent);

/* Take it out again, before anything that its describe() reads is freed. */
void pier_object_untrack(struct pier_object *object);

enum {
	PIER_OBJECT_KINDS = PIER_OBJECT_RING + 1, /* of this library */
};

/*
 * Write how many objects are below an object, at any depth, by kind: "1 region and 2
 * channels"; "" if there are none.
 */
void pier_object_tally(const struct pier_object *ancestor, char *ret_text, size_t size);

/* Log each of them, with its caller, if debug messages are logged. */
void pier_object_log_below(const struct pier_object *ancestor);

/* Count the objects of a kind whose parent is `parent`. */
size_t pier_object_children(const struct pier_object *parent, enum pier_object_kind kind);

/*
 * Call a function for the objects of a kind, oldest first, until it returns true. The
 * rules for describe() hold for it.
 */
void pier_object_visit(enum pier_object_kind kind,
		       bool (*visit)(const struct pier_object *object, void *context),
		       void *context);

/* Write PIER_OBJECT_KINDS counts in the form of pier_object_tally(). */
void pier_object_print_counts(const size_t *counts, char *ret_text, size_t size);

/*
 * Whether the object was created by the parent of this process, before fork(2). Check
 * this before taking a lock: another thread of the parent may have held it.
 */
static inline bool pier_inherited(const struct pier_object *object)
{
	return __builtin_expect(object->generation != pier_fork_generation, 0);
}

/* Returns -ECHILD, with an error sentence that names the object. */
int pier_fail_inherited(const struct pier_object *object) __attribute__((cold));

/* Returns 0, or -ECHILD for an inherited object. */
static inline int pier_check_process(const struct pier_object *object)
{
	return pier_inherited(object) ? pier_fail_inherited(object) : 0;
}

#endif
