/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_IPC_H
#define PIER_IPC_H

#include <stddef.h>

#include <pier/buffer.h>
#include <pier/export.h>

PIER_BEGIN_DECLS

/**
 * Device memory of another process on the same host, without a NIC (CUDA IPC).
 *
 * One process describes its buffer with pier_buffer_ipc_export() and sends the bytes to
 * the other one, which opens them with pier_buffer_ipc_open() and copies with
 * pier_buffer_copy(). With peer access between the two devices, or on one device, the
 * copy does not pass through host memory.
 *
 * A handle is for the whole allocation that holds the buffer, for reading and writing,
 * and any process of the host that the driver lets open it can use it. Send it only to
 * processes that may do that. Allocations whose lengths are multiples of 2 MiB share
 * their memory with no others.
 *
 * Do not free the memory before the other process has freed the buffer that it opened, or
 * has ended: "undefined behavior" in the documentation of cuIpcCloseMemHandle().
 */

/** Length of a handle, in bytes. Its form is in docs/wire.md. */
#define PIER_IPC_HANDLE_SIZE 224

/**
 * Describe a buffer for another process on this host. The handle stays valid as long as
 * the memory, also after the buffer is freed, if it was only wrapped.
 *
 * size  of ret_handle, in bytes: at least PIER_IPC_HANDLE_SIZE
 *
 * Any thread.
 *
 * Errors: -ENOSPC size is too small; -EOPNOTSUPP the backend, the driver or the device
 * shares no memory with other processes, or not this kind (cuda: only that of
 * cuMemAlloc(), which cudaMalloc() calls); others of the backend.
 */
PIER_API int pier_buffer_ipc_export(struct pier_buffer *buffer, void *ret_handle,
				    size_t size);

/**
 * Open memory of another process on this host as a buffer, which pier_buffer_free()
 * closes. It can be the source or the target of copies. NICs cannot use it: the process
 * that owns the memory registers it.
 *
 * handle  may come from an untrusted peer: pier checks its form, and the driver that its
 *         part names memory
 * size    in bytes: PIER_IPC_HANDLE_SIZE
 * from    a buffer of the device that will copy: the memory is mapped for this device
 *
 * Any thread.
 *
 * Errors: -EINVAL the bytes are no handle; -EPROTONOSUPPORT a handle of another version;
 * -EXDEV it is of another host; -ERANGE its buffer leaves the memory; -EOPNOTSUPP it is
 * of another backend than `from`, or the driver or the device does not support it, for
 * example because the two devices have no peer access; -ENOMEM; others of the backend,
 * for example if the memory is of this process itself, or if the two processes are in
 * containers that do not share their PID and IPC namespaces.
 */
PIER_API int pier_buffer_ipc_open(const void *handle, size_t size,
				  struct pier_buffer *from,
				  struct pier_buffer **ret_buffer);

/**
 * Copy from one buffer to another, and return when the bytes have arrived. If the ranges
 * overlap, the result is undefined.
 *
 * to_offset, from_offset  from the start of the buffer, in bytes
 * length                  in bytes; may be 0
 *
 * Any thread; also several at once, for different ranges of `to`.
 *
 * Errors: -ERANGE the range is not inside the buffer; -EOPNOTSUPP the CPU reaches neither
 * of them, and they are not of one backend that copies between its memories; others of
 * the backend.
 */
PIER_API int pier_buffer_copy(struct pier_buffer *to, uint64_t to_offset,
			      struct pier_buffer *from, uint64_t from_offset,
			      uint64_t length);

PIER_END_DECLS

#endif
