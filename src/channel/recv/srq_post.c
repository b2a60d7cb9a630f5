/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "srq_post.h"
#include "core/error.h"
#include "core/log.h"
#include "device/pd.h"

/* The entries of a shared receive queue: free, posted, arrived, free. */

enum {
	DOORBELL = 32, /* receives per doorbell, on the stack */
	INDEX_BITS = 20,
};
_Static_assert(PIER_QUEUE_MAX <= 1 << INDEX_BITS, "an index fits its bits");

static uint32_t index_of(const struct pier_srq *srq, const struct pier_srq_entry *entry)
{
	return (uint32_t)(entry - srq->entries);
}

static struct ibv_sge *sges_of(const struct pier_srq *srq,
			       const struct pier_srq_entry *entry)
{
	return srq->sges + (size_t)index_of(srq, entry) * srq->max_sge;
}

/* With the lock held: a wr_id that the queue has not used before. */
static void assign_wr_id(struct pier_srq *srq, struct pier_srq_entry *entry)
{
	uint64_t serial = srq->serial++ << INDEX_BITS & PIER_ID_POSITION;

	entry->id = PIER_ID_SHARED | serial | index_of(srq, entry);
	entry->arrived = false;
}

static void write_wr(const struct pier_srq *srq, const struct pier_srq_entry *entry,
		     struct ibv_recv_wr *wr)
{
	*wr = (struct ibv_recv_wr){ .wr_id = entry->id,
				    .next = wr + 1,
				    .sg_list = sges_of(srq, entry),
				    .num_sge = entry->num_sge };
}

/*
 * Take as many entries as are free, and fill and number them before the device can
 * complete them.
 */
static uint32_t take_entries(struct pier_srq *srq, const struct pier_srq_recv *recvs,
			     uint32_t count, struct pier_srq_entry **ret_entries,
			     struct ibv_recv_wr *ret_wrs)
{
	uint32_t taken = 0;

	pthread_mutex_lock(&srq->lock);
	for (; taken < count && srq->free; taken++) {
		struct pier_srq_entry *entry = srq->free;

		srq->free = entry->next;
		entry->context = recvs[taken].context;
		entry->num_sge = recvs[taken].num_sge;
		if (entry->num_sge > 0)
			memcpy(sges_of(srq, entry), recvs[taken].sg_list,
			       (size_t)entry->num_sge * sizeof(struct ibv_sge));
		assign_wr_id(srq, entry);
		ret_entries[taken] = entry;
		write_wr(srq, entry, &ret_wrs[taken]);
	}
	srq->used += taken;
	pthread_mutex_unlock(&srq->lock);
	if (taken > 0)
		ret_wrs[taken - 1].next = NULL;
	return taken;
}

static void free_entries(struct pier_srq *srq, struct pier_srq_entry *const *entries,
			 uint32_t count)
{
	pthread_mutex_lock(&srq->lock);
	for (uint32_t i = 0; i < count; i++) {
		entries[i]->id = 0;
		entries[i]->next = srq->free;
		srq->free = entries[i];
	}
	srq->used -= count;
	pthread_mutex_unlock(&srq->lock);
}

/* Returns how many receives the device took. */
static uint32_t ring_doorbell(struct pier_srq *srq, struct ibv_recv_wr *wrs,
			      uint32_t count, int *ret_error)
{
	struct ibv_recv_wr *bad = NULL;

	if (!srq->provider->explains_posts)
		pier_clear_error();
	*ret_error = ibv_post_srq_recv(srq->srq, wrs, &bad);
	if (!*ret_error)
		return count;
	return bad >= wrs && bad < wrs + count ? (uint32_t)(bad - wrs) : 0;
}

static int fail_full(const struct pier_srq *srq)
{
	return pier_fail(EAGAIN,
			 "the shared receive queue is full with %u receives that are "
			 "posted or have messages that nobody has taken",
			 srq->max_wr);
}

int pier_srq_post(struct pier_srq *srq, const struct pier_srq_recv *recvs, uint32_t count,
		  uint32_t *ret_posted)
{
	struct pier_srq_entry *entries[DOORBELL];
	struct ibv_recv_wr wrs[DOORBELL];
	uint32_t posted = 0, part, taken, rung;
	int error = 0;

	for (uint32_t i = 0; srq->pd->device->copies_receives && i < count && !error; i++)
		error = pier_check_receive(srq->pd, recvs[i].sg_list, recvs[i].num_sge);
	for (; posted < count && !error; posted += rung) {
		part = count - posted < DOORBELL ? count - posted : DOORBELL;
		taken = take_entries(srq, recvs + posted, part, entries, wrs);
		rung = taken > 0 ? ring_doorbell(srq, wrs, taken, &error) : 0;
		if (error) {
			free_entries(srq, entries + rung, taken - rung);
			error = pier_fail_because(error, "post a receive to a shared "
							 "queue");
		} else if (taken < part) {
			error = fail_full(srq);
		}
	}
	*ret_posted = posted;
	return error;
}

struct pier_srq_entry *pier_srq_arrived(struct pier_channel *channel, uint64_t id)
{
	const struct pier_srq *srq = channel->attr.srq;
	uint64_t index = id & ((UINT64_C(1) << INDEX_BITS) - 1);
	struct pier_srq_entry *entry;

	if (index >= srq->max_wr)
		return NULL;
	entry = &srq->entries[index];
	if (entry->id != id || entry->arrived)
		return NULL;
	entry->arrived = true;
	entry->next = NULL;
	*channel->last_message = entry;
	channel->last_message = &entry->next;
	return entry;
}

static struct pier_srq_entry *unlink_message(struct pier_channel *channel)
{
	struct pier_srq_entry *entry = channel->first_message;

	channel->first_message = entry->next;
	if (!channel->first_message)
		channel->last_message = &channel->first_message;
	return entry;
}

struct pier_result pier_srq_take(struct pier_channel *channel)
{
	struct pier_srq_entry *entry = unlink_message(channel);
	struct pier_result result = entry->result;

	free_entries(channel->attr.srq, &entry, 1);
	return result;
}

static void post_again(struct pier_srq *srq, struct pier_srq_entry *entry)
{
	struct ibv_recv_wr wr;
	int error;

	pthread_mutex_lock(&srq->lock);
	assign_wr_id(srq, entry);
	pthread_mutex_unlock(&srq->lock);
	write_wr(srq, entry, &wr);
	wr.next = NULL;
	if (ring_doorbell(srq, &wr, 1, &error) == 1)
		return;
	pier_warning("a receive of a shared queue is lost: its message was discarded, "
		     "and the device refused to take the receive again, errno %d",
		     error);
	free_entries(srq, &entry, 1);
}

void pier_srq_post_again(struct pier_channel *channel)
{
	while (channel->first_message)
		post_again(channel->attr.srq, unlink_message(channel));
}
