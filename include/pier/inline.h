/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_INLINE_H
#define PIER_INLINE_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include <pier/channel.h>
#include <pier/element.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/post.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * The calls of which a loop of transfers consists, compiled into the caller: include
 * this behind <pier/pier.h>, and
 *
 *	pier_mr_gather()   pier_mr_gather_unchecked()
 *	pier_mr_scatter()  pier_mr_scatter_unchecked()
 *	pier_remote_sub()  pier_work_poll()
 *	pier_post_send()   pier_post_write()   pier_post_read()
 *
 * are done in line where they are plain (one element of at least a byte, room in the
 * queue, a completion without error), and are the same functions with the same checks,
 * results and errors otherwise. Not included by pier.h: it needs libibverbs' header, and
 * it ties a program to the layout below, which is part of the ABI (it changes with the
 * soname alone).
 *
 * What is declared here and not listed above is private.
 */

#if defined(__GNUC__)
#define PIER_ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define PIER_ALWAYS_INLINE static inline
#endif

/** Where what is below begins in a struct pier_mr and a struct pier_channel. */
#define PIER_HOT_OFFSET 64

enum pier_hot_use {
	PIER_HOT_GATHER = 1 << 0,
	PIER_HOT_SCATTER = 1 << 1,
};

struct pier_hot_mr {
	uint64_t iova;
	uint64_t length;
	uint32_t lkey;
	uint32_t uses; /* what elements can be made of without further ado */
};

enum pier_entry_state {
	PIER_ENTRY_UNWATCHED, /* nobody will ask: posted, or done, or nothing yet */
	PIER_ENTRY_WATCHED,   /* posted, and somebody will ask */
	PIER_ENTRY_DONE,      /* and somebody will ask */
};

/* A request: see queue.h in pier's source. */
struct pier_entry {
	uint64_t id;
	uint64_t kind; /* state | opcode << 16 | count of keys << 32; atomic */
	/*
	 * lkey of the first element | length << 32 that a result says of it, unless the
	 * completion does; atomic. Other keys stand in queue->keys.
	 */
	uint64_t key;
	struct pier_result result; /* of one that is done */
	uint64_t unused;	   /* so that finding one is a shift */
};

#define PIER_ENTRY_KIND(state, opcode, keys) \
	((uint64_t)(state) | (uint64_t)(opcode) << 16 | (uint64_t)(keys) << 32)

PIER_ALWAYS_INLINE enum pier_entry_state pier_entry_get_state(
	const struct pier_entry *entry)
{
	return (enum pier_entry_state)(uint16_t)entry->kind;
}

PIER_ALWAYS_INLINE enum pier_opcode pier_entry_opcode(const struct pier_entry *entry)
{
	return (enum pier_opcode)(uint16_t)(entry->kind >> 16);
}

PIER_ALWAYS_INLINE uint32_t pier_entry_length(const struct pier_entry *entry)
{
	return (uint32_t)(entry->key >> 32);
}

PIER_ALWAYS_INLINE void pier_entry_write(struct pier_entry *entry, uint64_t id,
					 uint64_t kind, uint32_t key, uint32_t length)
{
	entry->id = id;
	__atomic_store_n(&entry->kind, kind, __ATOMIC_RELAXED);
	__atomic_store_n(&entry->key, key | (uint64_t)length << 32, __ATOMIC_RELAXED);
}

PIER_ALWAYS_INLINE void pier_entry_set_state(struct pier_entry *entry,
					     enum pier_entry_state state)
{
	__atomic_store_n(&entry->kind,
			 (entry->kind & ~UINT64_C(0xffff)) | (uint64_t)state,
			 __ATOMIC_RELAXED);
}

struct pier_queue {
	uint64_t head;	/* of the next request; what is before it is posted; atomic */
	uint64_t tail;	/* what is before it has completed, and was collected; atomic */
	uint32_t limit; /* most outstanding at once now: depth, or 0 */
	uint32_t mask;	/* of positions: entries are a power of 2, not fewer than depth */
	struct pier_entry *entries;
	uint32_t *keys; /* max_sge for each entry; the first is not used */
	uint32_t max_sge;
	uint32_t depth; /* that of the device, or of a window (<pier/scope.h>) */
	uint32_t kept;	/* results in the ring that nobody has asked for */
	uint32_t aside_count, max_aside;
	struct pier_entry *aside; /* in no order */
};

struct pier_hot_channel {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct pier_queue sends;
	uint32_t least_plain; /* bytes of a message that is not inline data */
	uint32_t plain_span;  /* how many lengths from there on are one message */
	uint32_t read_depth;  /* reads issued at once; 0: the peer serves none */
	uint32_t idle_calls;  /* an empty poll is not all that is to be done */
};

#define pier_hot_unlikely(condition) __builtin_expect(!!(condition), 0)

PIER_ALWAYS_INLINE const struct pier_hot_mr *pier_mr_hot(const struct pier_mr *mr)
{
	return (const struct pier_hot_mr *)((const char *)mr + PIER_HOT_OFFSET);
}

PIER_ALWAYS_INLINE struct pier_hot_channel *pier_channel_hot(struct pier_channel *channel)
{
	return (struct pier_hot_channel *)((char *)channel + PIER_HOT_OFFSET);
}

/**
 * Private: a completion (count 1) that is not the one, plain, that pier_work_poll() waits
 * for; none (0), or an error of ibv_poll_cq(3). Errors: those of pier_work_poll().
 */
PIER_API int pier_hot_complete(struct pier_channel *channel, const struct ibv_wc *wc,
			       int count, struct pier_work work,
			       struct pier_result *ret_result);
/** Private: the device did not take a request. Errors: those of ibv_post_send(3). */
PIER_API int pier_hot_refused(struct pier_channel *channel, int error,
			      enum pier_opcode opcode);

PIER_ALWAYS_INLINE int pier_hot_encloses(const struct pier_hot_mr *mr, uint64_t addr,
					 uint64_t length)
{
	uint64_t offset = addr - mr->iova;

	return offset <= mr->length && length <= mr->length - offset;
}

PIER_ALWAYS_INLINE int pier_gather_inline(const struct pier_mr *mr, uint64_t addr,
					  size_t length, struct pier_gather *ret_element)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_GATHER) || length > UINT32_MAX ||
			      !pier_hot_encloses(hot, addr, length)))
		return pier_mr_gather(mr, addr, length, ret_element);
	ret_element->addr = addr;
	ret_element->length = (uint32_t)length;
	ret_element->lkey = hot->lkey;
	return 0;
}

PIER_ALWAYS_INLINE int pier_scatter_inline(const struct pier_mr *mr, uint64_t addr,
					   size_t length,
					   struct pier_scatter *ret_element)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_SCATTER) || length > UINT32_MAX ||
			      !pier_hot_encloses(hot, addr, length)))
		return pier_mr_scatter(mr, addr, length, ret_element);
	ret_element->addr = addr;
	ret_element->length = (uint32_t)length;
	ret_element->lkey = hot->lkey;
	return 0;
}

PIER_ALWAYS_INLINE struct pier_gather pier_gather_unchecked_inline(
	const struct pier_mr *mr, uint64_t addr, uint32_t length)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);
	struct pier_gather element = { addr, length, hot->lkey };

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_GATHER)))
		return pier_mr_gather_unchecked(mr, addr, length);
	return element;
}

PIER_ALWAYS_INLINE struct pier_scatter pier_scatter_unchecked_inline(
	const struct pier_mr *mr, uint64_t addr, uint32_t length)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);
	struct pier_scatter element = { addr, length, hot->lkey };

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_GATHER)))
		return pier_mr_scatter_unchecked(mr, addr, length);
	return element;
}

PIER_ALWAYS_INLINE int pier_remote_sub_inline(const struct pier_remote *remote,
					      uint64_t offset, uint64_t length,
					      struct pier_remote *ret_remote)
{
	if (pier_hot_unlikely(offset > remote->length ||
			      length > remote->length - offset ||
			      remote->addr > UINT64_MAX - offset ||
			      remote->addr + offset > UINT64_MAX - length))
		return pier_remote_sub(remote, offset, length, ret_remote);
	ret_remote->rkey = remote->rkey;
	ret_remote->addr = remote->addr + offset;
	ret_remote->length = length;
	return 0;
}

/* Whether one element is a message as most are, and has room in the queue. */
PIER_ALWAYS_INLINE int pier_hot_is_plain(const struct pier_hot_channel *hot,
					 const struct pier_gather *sg_list, int num_sge)
{
	const struct pier_queue *sends = &hot->sends;

	return num_sge == 1 && sg_list->length - hot->least_plain < hot->plain_span &&
	       sends->head - sends->tail < sends->limit &&
	       pier_entry_get_state(&sends->entries[sends->head & sends->mask]) !=
		       PIER_ENTRY_DONE;
}

PIER_ALWAYS_INLINE int pier_hot_post(struct pier_channel *channel,
				     enum pier_opcode opcode, enum ibv_wr_opcode verb,
				     const struct pier_gather *sg_list,
				     const struct pier_remote *remote,
				     struct pier_work *ret_work)
{
	struct pier_hot_channel *hot = pier_channel_hot(channel);
	struct pier_queue *sends = &hot->sends;
	uint64_t id = sends->head;
	struct pier_entry *entry = &sends->entries[id & sends->mask];
	struct ibv_send_wr wr, *bad;
	int error;

	wr.wr_id = id;
	wr.next = NULL;
	wr.sg_list = (struct ibv_sge *)(uintptr_t)sg_list;
	wr.num_sge = 1;
	wr.opcode = verb;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (remote) {
		wr.wr.rdma.remote_addr = remote->addr;
		wr.wr.rdma.rkey = remote->rkey;
	}
	pier_entry_write(
		entry, id,
		PIER_ENTRY_KIND(ret_work ? PIER_ENTRY_WATCHED : PIER_ENTRY_UNWATCHED,
				opcode, 1),
		sg_list->lkey, opcode == PIER_OP_READ ? sg_list->length : 0);
	error = ibv_post_send(hot->qp, &wr, &bad);
	if (pier_hot_unlikely(error))
		return pier_hot_refused(channel, error, opcode);
	__atomic_store_n(&sends->head, id + 1, __ATOMIC_RELEASE);
	if (ret_work)
		ret_work->id = id;
	return 0;
}

PIER_ALWAYS_INLINE int pier_post_send_inline(struct pier_channel *channel,
					     const struct pier_gather *sg_list,
					     int num_sge, struct pier_work *ret_work)
{
	if (pier_hot_unlikely(
		    !pier_hot_is_plain(pier_channel_hot(channel), sg_list, num_sge)))
		return pier_post_send(channel, sg_list, num_sge, ret_work);
	return pier_hot_post(channel, PIER_OP_SEND, IBV_WR_SEND, sg_list, NULL, ret_work);
}

/*
 * What is handed to a function that is not inline has to be in memory. So they get
 * copies, and the caller's own remote parts and results can stay in registers.
 */
PIER_ALWAYS_INLINE int pier_post_write_inline(struct pier_channel *channel,
					      const struct pier_gather *sg_list,
					      int num_sge,
					      const struct pier_remote *remote,
					      struct pier_work *ret_work)
{
	struct pier_remote copy;

	if (!remote)
		return pier_post_write(channel, sg_list, num_sge, NULL, ret_work);
	if (pier_hot_unlikely(
		    !pier_hot_is_plain(pier_channel_hot(channel), sg_list, num_sge) ||
		    remote->length < sg_list->length)) {
		copy = *remote;
		return pier_post_write(channel, sg_list, num_sge, &copy, ret_work);
	}
	return pier_hot_post(channel, PIER_OP_WRITE, IBV_WR_RDMA_WRITE, sg_list, remote,
			     ret_work);
}

PIER_ALWAYS_INLINE int pier_post_read_inline(struct pier_channel *channel,
					     const struct pier_scatter *sg_list,
					     int num_sge,
					     const struct pier_remote *remote,
					     struct pier_work *ret_work)
{
	const struct pier_gather *same = (const struct pier_gather *)sg_list;
	struct pier_remote copy;

	if (!remote)
		return pier_post_read(channel, sg_list, num_sge, NULL, ret_work);
	if (pier_hot_unlikely(
		    !pier_hot_is_plain(pier_channel_hot(channel), same, num_sge) ||
		    remote->length < sg_list->length ||
		    !pier_channel_hot(channel)->read_depth)) {
		copy = *remote;
		return pier_post_read(channel, sg_list, num_sge, &copy, ret_work);
	}
	return pier_hot_post(channel, PIER_OP_READ, IBV_WR_RDMA_READ, same, remote,
			     ret_work);
}

PIER_ALWAYS_INLINE int pier_poll_work_inline(struct pier_channel *channel,
					     struct pier_work work,
					     struct pier_result *ret_result)
{
	struct pier_hot_channel *hot = pier_channel_hot(channel);
	struct pier_entry *entry = &hot->sends.entries[work.id & hot->sends.mask];
	struct pier_result other;
	struct ibv_wc wc;
	int count;

	if (!ret_result)
		return pier_work_poll(channel, work, NULL);
	if (pier_hot_unlikely(entry->id != work.id ||
			      pier_entry_get_state(entry) != PIER_ENTRY_WATCHED)) {
		count = pier_work_poll(channel, work, &other);
		if (count > 0)
			*ret_result = other;
		return count;
	}
	count = ibv_poll_cq(hot->cq, 1, &wc);
	if (pier_hot_unlikely(count != 1 || wc.wr_id != work.id ||
			      wc.status != IBV_WC_SUCCESS)) {
		if (count == 0 && !hot->idle_calls)
			return 0;
		count = pier_hot_complete(channel, &wc, count, work, &other);
		if (count > 0)
			*ret_result = other;
		return count;
	}
	/* A device that breaks the order makes the queue look fuller than it is. */
	__atomic_store_n(&hot->sends.tail, work.id + 1, __ATOMIC_RELAXED);
	ret_result->error = 0;
	ret_result->status = IBV_WC_SUCCESS;
	ret_result->vendor_error = 0;
	ret_result->opcode = pier_entry_opcode(entry);
	ret_result->byte_length = pier_entry_length(entry);
	ret_result->immediate = ret_result->invalidated_rkey = 0;
	ret_result->has_immediate = ret_result->has_invalidated = 0;
	__atomic_store_n(&entry->kind, UINT64_C(0), __ATOMIC_RELAXED);
	return 1;
}

#ifndef PIER_INLINE_NAMES_ONLY
/* Variadic: arguments may have commas, as compound literals do. */
#define pier_mr_gather(...)	       pier_gather_inline(__VA_ARGS__)
#define pier_mr_gather_unchecked(...)  pier_gather_unchecked_inline(__VA_ARGS__)
#define pier_mr_scatter(...)	       pier_scatter_inline(__VA_ARGS__)
#define pier_mr_scatter_unchecked(...) pier_scatter_unchecked_inline(__VA_ARGS__)
#define pier_remote_sub(...)	       pier_remote_sub_inline(__VA_ARGS__)
#define pier_post_send(...)	       pier_post_send_inline(__VA_ARGS__)
#define pier_post_write(...)	       pier_post_write_inline(__VA_ARGS__)
#define pier_post_read(...)	       pier_post_read_inline(__VA_ARGS__)
#define pier_work_poll(...)	       pier_poll_work_inline(__VA_ARGS__)
#endif

PIER_END_DECLS

#endif
