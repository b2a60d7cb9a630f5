/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_INLINE_H
#define PIER_INLINE_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include <pier/channel.h>
#include <pier/element.h>
#include <pier/export.h>
#include <pier/hot.h>
#include <pier/mr.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Inline versions of the calls in a transfer loop.
 *
 * If a program includes this header, these functions are compiled into it:
 *
 *	pier_mr_gather()   pier_mr_gather_unchecked()
 *	pier_mr_scatter()  pier_mr_scatter_unchecked()
 *	pier_remote_sub()  pier_work_poll()
 *	pier_channel_post_send()   pier_channel_post_write()   pier_channel_post_read()
 *
 * The inline code handles the plain case: one element of at least one byte, room in the
 * queue, a completion without an error. In all other cases it calls the library.
 * Checks, results and errors are the same, except that the plain case does not check
 * pointers: the list of a request of one element, and the remote region of
 * pier_remote_sub(), must not be NULL. The address of such a function is that of
 * the library's function.
 *
 * <pier/pier.h> does not include this header, for two reasons: it needs the header of
 * libibverbs, and it ties the program to the layout in <pier/hot.h>, which is part of
 * the ABI and changes only with the soname. A compiler that is not compatible with gcc
 * ignores the inline versions and calls the library.
 */

#if defined(__GNUC__)

PIER_INLINE int pier_hot_encloses(const struct pier_hot_mr *mr, uint64_t addr,
				  uint64_t length)
{
	uint64_t offset = addr - mr->iova;

	return offset <= mr->length && length <= mr->length - offset;
}

PIER_INLINE int pier_mr_gather(const struct pier_mr *mr, uint64_t addr, uint64_t length,
			       struct pier_gather *ret_element)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_GATHER) || length > UINT32_MAX ||
			      !pier_hot_encloses(hot, addr, length)))
		return pier_hot_mr_gather(mr, addr, length, ret_element);
	ret_element->addr = addr;
	ret_element->length = (uint32_t)length;
	ret_element->lkey = hot->lkey;
	return 0;
}

PIER_INLINE int pier_mr_scatter(const struct pier_mr *mr, uint64_t addr, uint64_t length,
				struct pier_scatter *ret_element)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_SCATTER) || length > UINT32_MAX ||
			      !pier_hot_encloses(hot, addr, length)))
		return pier_hot_mr_scatter(mr, addr, length, ret_element);
	ret_element->addr = addr;
	ret_element->length = (uint32_t)length;
	ret_element->lkey = hot->lkey;
	return 0;
}

PIER_INLINE struct pier_gather pier_mr_gather_unchecked(const struct pier_mr *mr,
							uint64_t addr, uint32_t length)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);
	struct pier_gather element = { addr, length, hot->lkey };

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_GATHER)))
		return pier_hot_mr_gather_unchecked(mr, addr, length);
	return element;
}

PIER_INLINE struct pier_scatter pier_mr_scatter_unchecked(const struct pier_mr *mr,
							  uint64_t addr, uint32_t length)
{
	const struct pier_hot_mr *hot = pier_mr_hot(mr);
	struct pier_scatter element = { addr, length, hot->lkey };

	if (pier_hot_unlikely(!(hot->uses & PIER_HOT_GATHER)))
		return pier_hot_mr_scatter_unchecked(mr, addr, length);
	return element;
}

PIER_INLINE int pier_remote_sub(const struct pier_remote *remote, uint64_t offset,
				uint64_t length, struct pier_remote *ret_remote)
{
	if (pier_hot_unlikely(offset > remote->length ||
			      length > remote->length - offset ||
			      remote->addr > UINT64_MAX - offset ||
			      remote->addr + offset > UINT64_MAX - length))
		return pier_hot_remote_sub(remote, offset, length, ret_remote);
	ret_remote->rkey = remote->rkey;
	ret_remote->addr = remote->addr + offset;
	ret_remote->length = length;
	return 0;
}

/*
 * Whether the request is the common case: one element of a usual length, and room in
 * the queue.
 */
PIER_INLINE int pier_hot_is_plain(const struct pier_hot_channel *hot,
				  const struct pier_gather *sg_list, uint32_t num_sge)
{
	const struct pier_queue *sends = &hot->sends;

	return num_sge == 1 && sg_list->length - hot->least_plain < hot->plain_span &&
	       sends->head - sends->tail < sends->limit &&
	       pier_entry_get_state(&sends->entries[sends->head & sends->mask]) !=
		       PIER_ENTRY_DONE;
}

PIER_INLINE int pier_hot_post(struct pier_channel *channel, enum pier_opcode opcode,
			      enum ibv_wr_opcode verb, const struct pier_gather *sg_list,
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
	error = hot->qp->context->ops.post_send(hot->qp, &wr, &bad);
	if (pier_hot_unlikely(error))
		return pier_hot_refused(channel, error, opcode);
	__atomic_store_n(&sends->head, id + 1, __ATOMIC_RELEASE);
	if (ret_work)
		ret_work->id = id;
	return 0;
}

PIER_INLINE int pier_channel_post_send(struct pier_channel *channel,
				       const struct pier_gather *sg_list,
				       uint32_t num_sge, struct pier_work *ret_work)
{
	if (pier_hot_unlikely(
		    !pier_hot_is_plain(pier_channel_hot(channel), sg_list, num_sge)))
		return pier_hot_channel_post_send(channel, sg_list, num_sge, ret_work);
	return pier_hot_post(channel, PIER_OP_SEND, IBV_WR_SEND, sg_list, NULL, ret_work);
}

/*
 * Arguments of a function that is not inline have to be in memory. The slow paths
 * therefore pass copies, and the caller's own remote parts and results can stay in
 * registers.
 */
PIER_INLINE int pier_channel_post_write(struct pier_channel *channel,
					const struct pier_gather *sg_list,
					uint32_t num_sge,
					const struct pier_remote *remote,
					struct pier_work *ret_work)
{
	struct pier_remote copy;

	if (!remote)
		return pier_hot_channel_post_write(channel, sg_list, num_sge, NULL,
						   ret_work);
	if (pier_hot_unlikely(
		    !pier_hot_is_plain(pier_channel_hot(channel), sg_list, num_sge) ||
		    remote->length < sg_list->length)) {
		copy = *remote;
		return pier_hot_channel_post_write(channel, sg_list, num_sge, &copy,
						   ret_work);
	}
	return pier_hot_post(channel, PIER_OP_WRITE, IBV_WR_RDMA_WRITE, sg_list, remote,
			     ret_work);
}

PIER_INLINE int pier_channel_post_read(struct pier_channel *channel,
				       const struct pier_scatter *sg_list,
				       uint32_t num_sge, const struct pier_remote *remote,
				       struct pier_work *ret_work)
{
	const struct pier_gather *same = (const struct pier_gather *)sg_list;
	struct pier_remote copy;

	if (!remote)
		return pier_hot_channel_post_read(channel, sg_list, num_sge, NULL,
						  ret_work);
	if (pier_hot_unlikely(
		    !pier_hot_is_plain(pier_channel_hot(channel), same, num_sge) ||
		    remote->length < sg_list->length ||
		    !pier_channel_hot(channel)->read_depth)) {
		copy = *remote;
		return pier_hot_channel_post_read(channel, sg_list, num_sge, &copy,
						  ret_work);
	}
	return pier_hot_post(channel, PIER_OP_READ, IBV_WR_RDMA_READ, same, remote,
			     ret_work);
}

PIER_INLINE int pier_work_poll(struct pier_channel *channel, struct pier_work work,
			       struct pier_result *ret_result)
{
	struct pier_hot_channel *hot = pier_channel_hot(channel);
	struct pier_entry *entry = &hot->sends.entries[work.id & hot->sends.mask];
	struct pier_result other;
	struct ibv_wc wc;
	int count;

	if (!ret_result)
		return pier_hot_work_poll(channel, work, NULL);
	if (pier_hot_unlikely(entry->id != work.id || !pier_entry_is_plain(entry))) {
		count = pier_hot_work_poll(channel, work, &other);
		if (count > 0)
			*ret_result = other;
		return count;
	}
	count = hot->cq->context->ops.poll_cq(hot->cq, 1, &wc);
	if (pier_hot_unlikely(count != 1 || wc.wr_id != work.id ||
			      wc.status != IBV_WC_SUCCESS)) {
		if (count == 0 && !hot->idle_calls)
			return 0;
		count = pier_hot_complete(channel, &wc, count, work, &other);
		if (count > 0)
			*ret_result = other;
		return count;
	}
	/* If a device completes out of order, the queue looks fuller than it is. */
	__atomic_store_n(&hot->sends.tail, work.id + 1, __ATOMIC_RELAXED);
	ret_result->error = 0;
	ret_result->status = IBV_WC_SUCCESS;
	ret_result->vendor_error = 0;
	ret_result->opcode = pier_entry_opcode(entry);
	ret_result->byte_length = pier_entry_length(entry);
	ret_result->immediate = ret_result->invalidated_rkey = 0;
	ret_result->has_immediate = ret_result->has_invalidated = 0;
	ret_result->context = NULL;
	__atomic_store_n(&entry->kind, UINT64_C(0), __ATOMIC_RELAXED);
	return 1;
}

#endif

PIER_END_DECLS

#endif
