/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_OBJECT_H
#define PIER_OBJECT_H

#include <stddef.h>

#include <pier/export.h>

PIER_BEGIN_DECLS

/** The kinds of objects that live until they are given back. */
enum pier_object_kind {
	PIER_OBJECT_DEVICE,
	PIER_OBJECT_PD,
	PIER_OBJECT_BUFFER,
	PIER_OBJECT_DMABUF, /**< exported and not closed */
	PIER_OBJECT_MR,
	PIER_OBJECT_CHANNEL,
	PIER_OBJECT_KINDS, /**< how many kinds there are */
};

/**
 * How many objects of a kind this process has: for tests, and for finding what
 * was forgotten. Any thread. Returns 0 for an unknown kind. Cannot fail.
 */
PIER_API size_t pier_count_objects(enum pier_object_kind kind);

PIER_END_DECLS

#endif
