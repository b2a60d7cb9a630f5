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
 * Private: the memory layout that the functions of <pier/inline.h> use.
 *
 * Everything here is part of the ABI and changes only with the soname, but programs
 * must not use it directly.
 *
 * A region and a channel each contain one of these structs after their object header,
 * at PIER_HOT_OFFSET. The library embeds the struct declared here, and checks the
 * offset at compile time.
 */

#define PIER_HOT_OFFSET 64

/*
 * Compiled into every caller, and never emitted on its own (gnu_inline: "Function
 * Attributes" in gcc's manual). Not static, because an inline function with external
 * linkage must not refer to a static one (C11, 6.7.4).
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
	uint32_t uses; /* enum pier_hot_use, ored: elements that can be built inline */
};

enum pier_entry_state {
	PIER_ENTRY_UNWATCHED, /* no result needed: posted, completed or never used */
	PIER_ENTRY_WATCHED,   /* posted; its result will be fetched */
	PIER_ENTRY_DONE,      /* completed; its result will be fetched */
	PIER_ENTRY_CONTEXT = 1 << 8, /* or-ed: result.context was set at posting */
};

/* A request: see queue.h in pier's source. */
struct pier_entry {
	uint64_t id;
	/* state | PIER_ENTRY_CONTEXT | opcode << 16 | number of keys << 32; atomic */
	uint64_t kind;
	/*
	 * lkey of the first element | length << 32; atomic. The length goes into the
	 * result if the completion has none. Other keys are in queue->keys.
	 */
	uint64_t key;
	/* If the request is completed; the context from posting on. 64 bytes in all. */
	struct pier_result result;
};

#define PIER_ENTRY_KIND(state, opcode, keys) \
	((uint64_t)(state) | (uint64_t)(opcode) << 16 | (uint64_t)(keys) << 32)

PIER_INLINE enum pier_entry_state pier_entry_get_state(const struct pier_entry *entry)
{
	return (enum pier_entry_state)(uint8_t)entry->kind;
}

/* Whether its result will be fetched, and it is posted and has no context. */
PIER_INLINE int pier_entry_is_plain(const struct pier_entry *entry)
{
	return (uint16_t)entry->kind == PIER_ENTRY_WATCHED;
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
	__atomic_store_n(&entry->kind, (entry->kind & ~UINT64_C(0xff)) | (uint64_t)state,
			 __ATOMIC_RELAXED);
}

struct pier_queue {
	uint64_t head; /* position of the next request; those before are posted; atomic */
	uint64_t tail; /* requests before it are completed and collected; atomic */
	uint32_t limit; /* outstanding requests allowed now: depth, or 0 */
	uint32_t mask;	/* entry count - 1; the count is a power of 2, at least depth */
	struct pier_entry *entries;
	uint32_t *keys; /* max_sge for each entry; the first is unused */
	uint32_t max_sge;
	uint32_t depth; /* of the device, or of a window (<pier/scope.h>) */
	uint32_t kept;	/* results in the ring that were not fetched */
	uint32_t aside_count, max_aside;
	struct pier_entry *aside; /* unordered */
};

struct pier_hot_channel {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct pier_queue sends;
	uint32_t least_plain; /* shortest message that is not inline data, in bytes */
	uint32_t plain_span;  /* number of lengths from there that fit one message */
	uint32_t read_depth;  /* reads in flight at once; 0: the peer serves none */
	uint32_t idle_calls;  /* an empty poll has more to do: keepalives */
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
 * Private: the rest of pier_work_poll() after ibv_poll_cq(3).
 *
 * count  the return value of ibv_poll_cq(3): an error, 0, or 1 with a wc that is not
 *        the plain completion of `work`
 *
 * Errors: those of pier_work_poll().
 */
PIER_API int pier_hot_complete(struct pier_channel *channel, const struct ibv_wc *wc,
			       int count, struct pier_work work,
			       struct pier_result *ret_result);
/**
 * Private: report that the device refused a request.
 *
 * Errors: those of ibv_post_send(3).
 */
PIER_API int pier_hot_refused(struct pier_channel *channel, int error,
			      enum pier_opcode opcode);

/*
 * The library's functions under a second name. A function of <pier/inline.h> cannot call
 * the library's function by its own name, because the compiler would treat the call as
 * recursion. ("Controlling Names Used in Assembler Code" in gcc's manual.)
 */
#if defined(__GNUC__)
#define PIER_HOT_CALL(name) \
	extern __typeof__(pier_##name) pier_hot_##name __asm__("pier_" #name)
PIER_HOT_CALL(mr_gather);
PIER_HOT_CALL(mr_scatter);
PIER_HOT_CALL(mr_gather_unchecked);
PIER_HOT_CALL(mr_scatter_unchecked);
PIER_HOT_CALL(remote_sub);
PIER_HOT_CALL(channel_post_send);
PIER_HOT_CALL(channel_post_write);
PIER_HOT_CALL(channel_post_read);
PIER_HOT_CALL(work_poll);
#undef PIER_HOT_CALL
#endif

PIER_END_DECLS

#endif
