/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_LIST_H
#define PIER_CORE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A circular doubly linked list; the head is a link that is in no object. */
struct pier_list {
	struct pier_list *previous, *next;
};

#define pier_container_of(pointer, type, member) \
	((type *)((char *)(pointer)-offsetof(type, member)))

static inline void pier_list_init(struct pier_list *link)
{
	link->previous = link->next = link;
}

static inline bool pier_list_empty(const struct pier_list *head)
{
	return head->next == head;
}

static inline void pier_list_append(struct pier_list *head, struct pier_list *link)
{
	link->previous = head->previous;
	link->next = head;
	head->previous->next = link;
	head->previous = link;
}

/* Leaves the link empty, so that removing it twice is harmless. */
static inline void pier_list_remove(struct pier_list *link)
{
	link->previous->next = link->next;
	link->next->previous = link->previous;
	pier_list_init(link);
}

/* Take the first link out of a list that has one. */
static inline struct pier_list *pier_list_take(struct pier_list *head)
{
	struct pier_list *first = head->next;

	head->next = first->next;
	head->next->previous = head;
	pier_list_init(first);
	return first;
}

/* Visit each object, which is a `type` and is in the list by its link `member`. */
#define pier_list_for_each(type, object, head, member)                     \
	for (type *object = pier_container_of((head)->next, type, member); \
	     &object->member != (head);                                    \
	     object = pier_container_of(object->member.next, type, member))

/* The same when the body removes `object`. */
#define pier_list_for_each_safe(type, object, following, head, member)               \
	for (type *object = pier_container_of((head)->next, type, member),           \
		  *following = pier_container_of(object->member.next, type, member); \
	     &object->member != (head); object = following,                          \
		  following = pier_container_of(object->member.next, type, member))

#endif
