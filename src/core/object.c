/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "caller.h"
#include "error.h"
#include "extensible.h"
#include "log.h"
#include "object.h"
#include "text.h"

static void mark_forked_objects(void);

/*
 * Global: nothing else refers to an object that the user forgot. Only creating,
 * destroying and listing objects takes the lock.
 */
static struct {
	struct pier_fork_mutex mutex;
	struct pier_list objects;
	size_t counts[PIER_OBJECT_KINDS];
} table = {
	.mutex = { .mutex = PTHREAD_MUTEX_INITIALIZER, .in_child = mark_forked_objects },
	.objects = { &table.objects, &table.objects },
};

const char *pier_object_kind_name(enum pier_object_kind kind)
{
	static const char *const names[PIER_OBJECT_KINDS] = {
		[PIER_OBJECT_DEVICE] = "device",
		[PIER_OBJECT_PD] = "protection domain",
		[PIER_OBJECT_BUFFER] = "buffer",
		[PIER_OBJECT_DMABUF] = "dma-buf",
		[PIER_OBJECT_MR] = "region",
		[PIER_OBJECT_CHANNEL] = "channel",
		[PIER_OBJECT_EVENT_QUEUE] = "event queue",
		[PIER_OBJECT_REGISTRATION] = "registration",
		[PIER_OBJECT_COUNTER] = "counter",
		[PIER_OBJECT_MR_CACHE] = "registration cache",
		[PIER_OBJECT_TRANSFER] = "transfer",
		[PIER_OBJECT_RECEIVER] = "receiver",
		[PIER_OBJECT_GROUP] = "group",
		[PIER_OBJECT_SRQ] = "shared receive queue",
		[PIER_OBJECT_RECV_POOL] = "receive pool",
		[PIER_OBJECT_COPY] = "copy request",
		[PIER_OBJECT_CQ] = "completion queue",
		[PIER_OBJECT_RING] = "ring",
	};

	return (unsigned int)kind < PIER_OBJECT_KINDS ? names[kind] : "unknown";
}

static void mark_forked_objects(void)
{
	pier_list_for_each(struct pier_object, object, &table.objects, link) {
		if (object->forked)
			object->forked(object);
	}
}

void pier_object_track(struct pier_object *object, enum pier_object_kind kind,
		       const struct pier_object *parent)
{
	object->kind = kind;
	object->generation = pier_fork_generation;
	object->parent = parent;
	object->caller = pier_caller;
	pier_fork_lock(&table.mutex);
	pier_list_append(&table.objects, &object->link);
	table.counts[kind]++;
	pier_fork_unlock(&table.mutex);
}

void pier_object_untrack(struct pier_object *object)
{
	pier_fork_lock(&table.mutex);
	assert(table.counts[object->kind] > 0);
	pier_list_remove(&object->link);
	table.counts[object->kind]--;
	pier_fork_unlock(&table.mutex);
}

uint32_t pier_object_count(enum pier_object_kind kind)
{
	uint32_t count;

	if ((unsigned int)kind >= PIER_OBJECT_KINDS)
		return 0;
	pier_fork_lock(&table.mutex);
	count = (uint32_t)table.counts[kind];
	pier_fork_unlock(&table.mutex);
	return count;
}

/* Parents outlive their children. Every object is below NULL. */
static bool is_below(const struct pier_object *object, const struct pier_object *ancestor)
{
	do
		object = object->parent;
	while (object && object != ancestor);
	return object == ancestor;
}

static void describe_object(const struct pier_object *object, char *ret_text, size_t size)
{
	if (object->describe)
		object->describe(object, ret_text, size);
	else
		snprintf(ret_text, size, "%s", pier_object_kind_name(object->kind));
}

/* With the table locked. Returns the number of objects, which may exceed `size`. */
static size_t copy_below(const struct pier_object *ancestor,
			 struct pier_object_info *list, size_t size)
{
	size_t count = 0;

	pier_list_for_each(const struct pier_object, object, &table.objects, link) {
		if (!is_below(object, ancestor) || count++ >= size)
			continue;
		list[count - 1] = (struct pier_object_info){
			.kind = object->kind,
			.object = object,
			.parent = object->parent,
			.caller = object->caller,
		};
		describe_object(object, list[count - 1].description,
				sizeof(list->description));
	}
	return count;
}

/*
 * Allocate memory and look up symbols with the table unlocked. dladdr(3) takes the
 * loader's lock, and a library that is being unloaded holds that lock while its
 * destructors close pier objects.
 */
static struct pier_object_info *list_below(const struct pier_object *ancestor,
					   uint32_t *ret_count)
{
	struct pier_object_info *list = NULL, *grown;
	size_t size = 0, count;

	for (;;) {
		pier_fork_lock(&table.mutex);
		count = copy_below(ancestor, list, size);
		pier_fork_unlock(&table.mutex);
		if (list && count <= size)
			break;
		/* Leave room for objects created meanwhile. */
		size = count + 16;
		grown = reallocarray(list, size, sizeof(*list));
		if (!grown) {
			free(list);
			return NULL;
		}
		list = grown;
	}
	for (size_t i = 0; i < count; i++)
		pier_print_caller(list[i].caller, list[i].where, sizeof(list[i].where));
	*ret_count = (uint32_t)count;
	return list;
}

int pier_object_list(struct pier_object_info **ret_list, uint32_t *ret_count, size_t size)
{
	PIER_REFUSE_NULL(ret_list, ret_count);
	uint32_t count;
	struct pier_object_info *list = list_below(NULL, &count);

	if (!list)
		return pier_fail(ENOMEM, "no memory for a list of the live objects");
	return pier_write_list(list, sizeof(*list), count, ret_list, ret_count, size);
}

void pier_object_log_below(const struct pier_object *ancestor)
{
	struct pier_object_info *list;
	uint32_t count = 0;

	if (!pier_log_takes(PIER_LOG_DEBUG))
		return;
	list = list_below(ancestor, &count);
	if (!list)
		pier_debug("no memory to list what is alive");
	for (size_t i = 0; i < count; i++)
		pier_debug("alive: %s, made at %s", list[i].description, list[i].where);
	free(list);
}

void pier_object_print_counts(const size_t *counts, char *ret_text, size_t size)
{
	int kinds = 0;

	for (int kind = 0; kind < PIER_OBJECT_KINDS; kind++)
		kinds += counts[kind] > 0;
	ret_text[0] = '\0';
	for (int kind = 0; kind < PIER_OBJECT_KINDS; kind++) {
		if (counts[kind] == 0)
			continue;
		pier_append_text(ret_text, size, "%zu %s%s%s", counts[kind],
				 pier_object_kind_name((enum pier_object_kind)kind),
				 counts[kind] == 1 ? "" : "s",
				 kinds > 2    ? ", "
				 : kinds == 2 ? " and "
					      : "");
		kinds--;
	}
}

void pier_object_tally(const struct pier_object *ancestor, char *ret_text, size_t size)
{
	size_t counts[PIER_OBJECT_KINDS] = { 0 };

	pier_fork_lock(&table.mutex);
	pier_list_for_each(const struct pier_object, object, &table.objects, link) {
		if (is_below(object, ancestor))
			counts[object->kind]++;
	}
	pier_fork_unlock(&table.mutex);
	pier_object_print_counts(counts, ret_text, size);
}

size_t pier_object_children(const struct pier_object *parent, enum pier_object_kind kind)
{
	size_t count = 0;

	pier_fork_lock(&table.mutex);
	pier_list_for_each(const struct pier_object, object, &table.objects, link)
		count += object->parent == parent && object->kind == kind;
	pier_fork_unlock(&table.mutex);
	return count;
}

void pier_object_visit(enum pier_object_kind kind,
		       bool (*visit)(const struct pier_object *object, void *context),
		       void *context)
{
	pier_fork_lock(&table.mutex);
	pier_list_for_each(const struct pier_object, object, &table.objects, link) {
		if (object->kind == kind && visit(object, context))
			break;
	}
	pier_fork_unlock(&table.mutex);
}

int pier_fail_inherited(const struct pier_object *object)
{
	char text[PIER_OBJECT_DESCRIPTION_SIZE];

	describe_object(object, text, sizeof(text));
	return pier_fail(ECHILD,
			 "the %s is the parent's, which made it before fork(2): a child "
			 "opens the device again, and closes nothing of the parent's",
			 text);
}
