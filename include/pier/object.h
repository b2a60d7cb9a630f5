/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_OBJECT_H
#define PIER_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * The live objects of this process: their number, and the calls that created them. Use
 * these functions in tests and to find leaks.
 *
 * If pier_device_close() fails because the device still has objects, it logs each of
 * them as a debug message (PIER_LOG=debug, or pier_log_set() with PIER_LOG_DEBUG).
 *
 * Threads: any thread may call any of these functions at any time.
 *
 * Processes: a child of fork(2) has copies of its parent's objects, which appear in the
 * child's counts and lists.
 */

/**
 * The kinds of objects that the caller destroys, closes or frees, from 0 on without gaps.
 * A newer library may have more of them.
 */
enum pier_object_kind {
	PIER_OBJECT_DEVICE,
	PIER_OBJECT_PD,
	PIER_OBJECT_BUFFER,
	PIER_OBJECT_DMABUF, /**< exported and not yet closed */
	PIER_OBJECT_MR,
	PIER_OBJECT_CHANNEL,
	PIER_OBJECT_EVENT_QUEUE,
	PIER_OBJECT_REGISTRATION, /**< asynchronous; open, or still running */
	PIER_OBJECT_COUNTER,
	PIER_OBJECT_MR_CACHE,
	PIER_OBJECT_TRANSFER,
	PIER_OBJECT_GROUP, /**< the parent of its channels */
	PIER_OBJECT_SRQ,   /**< a shared receive queue */
	PIER_OBJECT_RECV_POOL,
	PIER_OBJECT_RECEIVER,
	PIER_OBJECT_COPY, /**< started and not yet freed */
	PIER_OBJECT_CQ,	  /**< a shared completion queue */
	PIER_OBJECT_RING, /**< a ring of slots */
};

/**
 * Return the name of a kind: "device", "protection domain", "buffer", "dma-buf",
 * "region" and so on; "unknown" for any other value. Cannot fail.
 */
PIER_API const char *pier_object_kind_name(enum pier_object_kind kind);

/**
 * Return the number of live objects of a kind in this process; 0 for an unknown kind.
 * Cannot fail.
 */
PIER_API uint32_t pier_object_count(enum pier_object_kind kind);

#define PIER_OBJECT_WHERE_SIZE	     256
#define PIER_OBJECT_DESCRIPTION_SIZE 128

/** One entry of pier_object_list(). */
struct pier_object_info {
	enum pier_object_kind kind;
	/**
	 * The handle, for instance the struct pier_mr *; for a dma-buf, the `owner` of
	 * its struct pier_dmabuf. Only compare it: another thread may have destroyed
	 * the object.
	 */
	const void *object;
	/** The object that must outlive it, for a region its PD; or NULL. */
	const void *parent;
	/**
	 * The caller: the address in your code that the public call which created the
	 * object returns to. If the compiler turned that call into a jump, because it is
	 * the last statement of a function, this is an address in the caller of that
	 * function.
	 *
	 * An object that a call creates on the way has the same caller: the buffer of a
	 * receive pool, the channels of a group, the region of an asynchronous
	 * registration.
	 */
	const void *caller;
	/**
	 * The caller as text for addr2line(1), by dladdr(3) at the time of the list.
	 * For "PROGRAM(FUNCTION+0x1f)", run `addr2line -e PROGRAM FUNCTION+0x1f`; for
	 * "/path/lib.so(+0x1234)", run `addr2line -e /path/lib.so 0x1234`. Static
	 * functions have no name there, nor has any function of a program that was
	 * linked without -rdynamic. If the code was unloaded, this is the bare address.
	 */
	char where[PIER_OBJECT_WHERE_SIZE];
	/** A short description: "region of 4096 bytes (host) on soft0". */
	char description[PIER_OBJECT_DESCRIPTION_SIZE];
};

/**
 * List the live objects of this process in the order of their creation: parents before
 * children.
 *
 * ret_list   the list, from malloc(3); free it with free(3)
 * ret_count  its length
 * size       sizeof(**ret_list) in the caller
 *
 * Errors: -ENOMEM.
 */
PIER_API int pier_object_list(struct pier_object_info **ret_list, uint32_t *ret_count,
			      size_t size);

PIER_END_DECLS

#endif
