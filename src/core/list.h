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

#define pier_list_for_each(link, head) \
	for (struct pier_list *link = (head)->next; link != (head); link = link->next)

/* The same when the body removes `link`. */
#define pier_list_for_each_safe(link, following, head)                       \
	for (struct pier_list *link = (head)->next, *following = link->next; \
	     link != (head); link = following, following = link->next)

#endif
