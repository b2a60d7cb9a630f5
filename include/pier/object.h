/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_OBJECT_H
#define PIER_OBJECT_H

#include <stddef.h>

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Objects that live until they are given back: how many there are, and who made
 * them. For tests, and for finding what was forgotten.
 *
 * A device that cannot be closed because of what it still has also logs that,
 * object by object, if debug messages are taken (PIER_LOG=debug, or
 * pier_set_log() with PIER_LOG_DEBUG).
 *
 * Threads: any thread may call any function, whatever the others do.
 *
 * Processes: a child of fork(2) finds the objects of its parent in its counts and
 * lists, as it has copies of them.
 */

/** The kinds of objects that live until they are given back. */
enum pier_object_kind {
	PIER_OBJECT_DEVICE,
	PIER_OBJECT_PD,
	PIER_OBJECT_BUFFER,
	PIER_OBJECT_DMABUF, /**< exported and not closed */
	PIER_OBJECT_MR,
	PIER_OBJECT_CHANNEL,
	PIER_OBJECT_EVENT_QUEUE,
	PIER_OBJECT_REGISTRATION, /**< asynchronous: its handle, or what goes on */
	PIER_OBJECT_COUNTER,
	PIER_OBJECT_MR_CACHE,
	PIER_OBJECT_TRANSFER,
	PIER_OBJECT_GROUP, /**< its channels are below it */
	PIER_OBJECT_SRQ,   /**< a shared receive queue */
	PIER_OBJECT_RECV_POOL,
	PIER_OBJECT_LANDING,
	PIER_OBJECT_KINDS, /**< how many kinds there are */
};

/**
 * In words: "device", "protection domain", "buffer", "dma-buf", "region" and so on;
 * "unknown" for what is none. Cannot fail.
 */
PIER_API const char *pier_object_kind_name(enum pier_object_kind kind);

/**
 * How many objects of a kind this process has. Returns 0 for an unknown kind.
 * Cannot fail.
 */
PIER_API size_t pier_count_objects(enum pier_object_kind kind);

#define PIER_OBJECT_WHERE_SIZE	     256
#define PIER_OBJECT_DESCRIPTION_SIZE 128

/** One entry of pier_list_objects(). */
struct pier_object_info {
	enum pier_object_kind kind;
	/**
	 * Which one: its handle, for instance the struct pier_mr *; of a dma-buf the
	 * `owner` of its struct pier_dmabuf. To be compared and not to be used: it
	 * may be gone.
	 */
	const void *object;
	/** What keeps it from outliving that: of a region its PD; or NULL. */
	const void *parent;
	/** Where the call that made it returns to, in the caller's code. */
	const void *caller;
	/**
	 * The same for addr2line(1), as found by dladdr(3) when the list was made:
	 * "PROGRAM(FUNCTION+0x1f)" is `addr2line -e PROGRAM FUNCTION+0x1f`, and
	 * "/path/lib.so(+0x1234)" is `addr2line -e /path/lib.so 0x1234`. Functions
	 * that are static, or in a program that was linked without -rdynamic, have
	 * no name there. The bare address where the code was unloaded.
	 *
	 * Where a compiler turned the call into a jump, as the last thing that a
	 * function does, it is the caller of that function.
	 */
	char where[PIER_OBJECT_WHERE_SIZE];
	/** What it is, in a few words: "region of 4096 bytes (host) on soft0". */
	char description[PIER_OBJECT_DESCRIPTION_SIZE];
};

/**
 * List the live objects of this process, in the order in which they were made:
 * parents before children.
 *
 * ret_list   the caller's, to be given to pier_free_object_list()
 * ret_count  its length
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_list_objects(struct pier_object_info **ret_list, size_t *ret_count);

/** Free what pier_list_objects() gave; NULL is fine. */
PIER_API void pier_free_object_list(struct pier_object_info *list);

PIER_END_DECLS

#endif
