/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_STREAM_COPY_H
#define PIER_SOFT_STREAM_COPY_H

#include <stddef.h>

/*
 * As memcpy(3), but the bytes go to memory, as those of a NIC do, instead of the caches
 * of this CPU. All of them are visible to other CPUs before any later store of the
 * caller.
 */
void pier_soft_stream_copy(char *to, const char *from, size_t length);

#endif
