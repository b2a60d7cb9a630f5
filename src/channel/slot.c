/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "slot.h"
#include "util/error.h"

enum {
	NO_SLOT = PIER_SLOTS_MAX
};

static uint32_t index_of(uint64_t id)
{
	return (uint32_t)(id & (PIER_SLOTS_MAX - 1));
}

static uint32_t *free_list(struct pier_slots *slots, bool receive)
{
	return receive ? &slots->free_recv : &slots->free_send;
}

int pier_init_slots(struct pier_slots *slots, const struct pier_slot_limits *limits,
		    uint64_t generation)
{
	uint32_t count = limits->sends + limits->receives;
	/* Products of 20 and 32 bits. */
	size_t send_keys = (size_t)limits->sends * limits->send_sge;
	size_t recv_keys = (size_t)limits->receives * limits->recv_sge;

	assert(count <= PIER_SLOTS_MAX);
	*slots = (struct pier_slots){
		.slots = calloc(count, sizeof(*slots->slots)),
		.count = count,
		.sends = limits->sends,
		.free_send = NO_SLOT,
		.free_recv = NO_SLOT,
		/* One more, since channels may take no elements at all. */
		.keys = calloc(send_keys + recv_keys + 1, sizeof(*slots->keys)),
	};
	if (!slots->slots || !slots->keys) {
		pier_free_slots(slots);
		return pier_fail(ENOMEM, "no memory for %u requests", count);
	}
	for (uint32_t i = count; i-- > 0;) {
		slots->slots[i].id = generation << PIER_SLOT_BITS | i;
		slots->slots[i].keys =
			slots->keys + (i < limits->sends
					       ? (size_t)i * limits->send_sge
					       : send_keys + (size_t)(i - limits->sends) *
								     limits->recv_sge);
		pier_give_slot(slots, &slots->slots[i]);
	}
	return 0;
}

void pier_free_slots(struct pier_slots *slots)
{
	free(slots->slots);
	free(slots->keys);
	slots->slots = NULL;
	slots->keys = NULL;
}

struct pier_slot *pier_take_slot(struct pier_slots *slots, bool receive)
{
	uint32_t *first = free_list(slots, receive);
	struct pier_slot *slot;

	if (*first == NO_SLOT)
		return NULL;
	slot = &slots->slots[*first];
	*first = slot->next;
	slot->id += PIER_SLOTS_MAX; /* the next generation; wraps after 2^44 */
	return slot;
}

bool pier_has_slots(const struct pier_slots *slots, bool receive, uint32_t count)
{
	uint32_t next = receive ? slots->free_recv : slots->free_send;

	for (; count > 0 && next != NO_SLOT; count--)
		next = slots->slots[next].next;
	return count == 0;
}

void pier_give_slot(struct pier_slots *slots, struct pier_slot *slot)
{
	uint32_t index = (uint32_t)(slot - slots->slots);
	uint32_t *first = free_list(slots, index >= slots->sends);

	slot->state = PIER_SLOT_FREE;
	slot->next = *first;
	*first = index;
}

struct pier_slot *pier_find_slot(const struct pier_slots *slots, uint64_t id)
{
	uint32_t index = index_of(id);

	if (index >= slots->count || slots->slots[index].id != id ||
	    slots->slots[index].state == PIER_SLOT_FREE)
		return NULL;
	return &slots->slots[index];
}

/*
 * Devices do not look at the keys of empty elements. The release makes a reader
 * of a new count see no key of an older request.
 */
static void hold_keys(struct pier_slot *slot, const struct ibv_sge *sg_list, int num_sge)
{
	uint32_t *keys = slot->keys, count = 0;

	for (int i = 0; i < num_sge; i++) {
		__atomic_store_n(&keys[count], sg_list[i].lkey, __ATOMIC_RELAXED);
		count += sg_list[i].length > 0;
	}
	__atomic_store_n(&slot->key_count, count, __ATOMIC_RELEASE);
}

static void set_outstanding(struct pier_slots *slots, uint32_t outstanding)
{
	__atomic_store_n(&slots->outstanding, outstanding, __ATOMIC_RELAXED);
}

void pier_slot_posted(struct pier_slots *slots, struct pier_slot *slot, bool watched,
		      const struct ibv_sge *sg_list, int num_sge)
{
	slot->state = watched ? PIER_SLOT_POSTED : PIER_SLOT_UNWATCHED;
	hold_keys(slot, sg_list, num_sge);
	set_outstanding(slots, slots->outstanding + 1);
}

void pier_slot_done(struct pier_slots *slots, struct pier_slot *slot,
		    const struct pier_result *result)
{
	__atomic_store_n(&slot->key_count, 0, __ATOMIC_RELAXED);
	set_outstanding(slots, slots->outstanding - 1);
	if (slot->state == PIER_SLOT_UNWATCHED) {
		pier_give_slot(slots, slot);
		return;
	}
	slot->result = *result;
	slot->state = PIER_SLOT_DONE;
}

static bool slot_uses(const struct pier_slot *slot, uint32_t lkey)
{
	uint32_t count = __atomic_load_n(&slot->key_count, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < count; i++) {
		if (__atomic_load_n(&slot->keys[i], __ATOMIC_RELAXED) == lkey)
			return true;
	}
	return false;
}

bool pier_slots_use(const struct pier_slots *slots, uint32_t lkey,
		    enum pier_opcode *ret_opcode)
{
	if (__atomic_load_n(&slots->outstanding, __ATOMIC_RELAXED) == 0)
		return false;
	for (uint32_t i = 0; i < slots->count; i++) {
		const struct pier_slot *slot = &slots->slots[i];

		if (slot_uses(slot, lkey)) {
			*ret_opcode = __atomic_load_n(&slot->opcode, __ATOMIC_RELAXED);
			return true;
		}
	}
	return false;
}
