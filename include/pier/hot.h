/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_HOT_H
#define PIER_HOT_H

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include <pier/channel.h>
#include <pier/element.h>
#include <pier/export.h>
#include <pier/mr.h>
#include <pier/remote.h>

PIER_BEGIN_DECLS

/**
 * Private: the layout that the functions of <pier/inline.h> know. Everything here is part
 * of the ABI and changes with the soname alone, but nothing here is for programs.
 *
 * A region and a channel each have one of these structs behind their object header, at
 * PIER_HOT_OFFSET. The library embeds the struct that is declared here, and checks the
 * offset when it is compiled.
 */

#define PIER_HOT_OFFSET 64

/*
 * Compiled into every caller, and never on its own (gnu_inline: "Function Attributes" in
 * gcc's manual). Not static, because C lets no inline function of another linkage call a
 * static one (C11, 6.7.4).
 */
#if defined(__GNUC__)
#define PIER_INLINE extern inline __attribute__((__gnu_inline__, __always_inline__))
#else
#define PIER_INLINE static inline
#endif

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

PIER_INLINE enum pier_entry_state pier_entry_get_state(const struct pier_entry *entry)
{
	return (enum pier_entry_state)(uint16_t)entry->kind;
}

PIER_INLINE enum pier_opcode pier_entry_opcode(const struct pier_entry *entry)
{
	return (enum pier_opcode)(uint16_t)(entry->kind >> 16);
}

PIER_INLINE uint32_t pier_entry_length(const struct pier_entry *entry)
{
	return (uint32_t)(entry->key >> 32);
}

PIER_INLINE void pier_entry_write(struct pier_entry *entry, uint64_t id, uint64_t kind,
				  uint32_t key, uint32_t length)
{
	entry->id = id;
	__atomic_store_n(&entry->kind, kind, __ATOMIC_RELAXED);
	__atomic_store_n(&entry->key, key | (uint64_t)length << 32, __ATOMIC_RELAXED);
}

PIER_INLINE void pier_entry_set_state(struct pier_entry *entry,
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

PIER_INLINE const struct pier_hot_mr *pier_mr_hot(const struct pier_mr *mr)
{
	return (const struct pier_hot_mr *)((const char *)mr + PIER_HOT_OFFSET);
}

PIER_INLINE struct pier_hot_channel *pier_channel_hot(struct pier_channel *channel)
{
	return (struct pier_hot_channel *)((char *)channel + PIER_HOT_OFFSET);
}

/**
 * Private: the rest of pier_work_poll() after ibv_poll_cq(3) returned `count`: 1, and wc
 * is not the plain completion of `work`; 0; or an error. Errors: those of
 * pier_work_poll().
 */
PIER_API int pier_hot_complete(struct pier_channel *channel, const struct ibv_wc *wc,
			       int count, struct pier_work work,
			       struct pier_result *ret_result);
/** Private: the device refused a request. Errors: those of ibv_post_send(3). */
PIER_API int pier_hot_refused(struct pier_channel *channel, int error,
			      enum pier_opcode opcode);

/**
 * Private: the same functions as without "hot_". A function of <pier/inline.h> cannot
 * call the library's function of its own name: a compiler takes that for a recursion.
 */
PIER_API int pier_hot_mr_gather(const struct pier_mr *mr, uint64_t addr, size_t length,
				struct pier_gather *ret_element);
PIER_API int pier_hot_mr_scatter(const struct pier_mr *mr, uint64_t addr, size_t length,
				 struct pier_scatter *ret_element);
PIER_API struct pier_gather pier_hot_mr_gather_unchecked(const struct pier_mr *mr,
							 uint64_t addr, uint32_t length);
PIER_API struct pier_scatter pier_hot_mr_scatter_unchecked(const struct pier_mr *mr,
							   uint64_t addr,
							   uint32_t length);
PIER_API int pier_hot_remote_sub(const struct pier_remote *remote, uint64_t offset,
				 uint64_t length, struct pier_remote *ret_remote);
PIER_API int pier_hot_post_send(struct pier_channel *channel,
				const struct pier_gather *sg_list, int num_sge,
				struct pier_work *ret_work);
PIER_API int pier_hot_post_write(struct pier_channel *channel,
				 const struct pier_gather *sg_list, int num_sge,
				 const struct pier_remote *remote,
				 struct pier_work *ret_work);
PIER_API int pier_hot_post_read(struct pier_channel *channel,
				const struct pier_scatter *sg_list, int num_sge,
				const struct pier_remote *remote,
				struct pier_work *ret_work);
PIER_API int pier_hot_work_poll(struct pier_channel *channel, struct pier_work work,
				struct pier_result *ret_result);

PIER_END_DECLS

#endif
