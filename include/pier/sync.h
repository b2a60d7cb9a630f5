/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SYNC_H
#define PIER_SYNC_H

#include <stdint.h>

#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Visibility: synchronisation between device code and the NIC on the same memory.
 *
 * A completion means that the NIC has finished with the memory. It does not mean that
 * code on a GPU sees the bytes: on several generations of NVIDIA devices the writes may
 * still be in flight (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING). If a region
 * has a bounce buffer (PIER_PATH_BOUNCE), the NIC accesses only that buffer. The rule
 * is:
 *
 *	device code writes; wait for its stream or kernel
 *	pier_mr_sync_for_nic()	before the request that reads the memory is posted, or
 *				before a peer is told that it may read
 *	...
 *	wait for the completion, or the peer's message, of the request that wrote
 *	pier_mr_sync_for_device()	before device code that reads is launched
 *
 * Both functions return at once if no synchronisation is needed, so a program that
 * always calls them is correct on every path. Transfers (<pier/transfer.h>) call them
 * for this end's region, and receivers (<pier/receiver.h>) at the other end. In all
 * other cases the caller must call them.
 *
 * For host memory, memfd, udmabuf and dma_heap, the CPU takes the role of the device.
 * If a region has a bounce buffer, device code and the NIC must not both write the same
 * bytes between two of these calls.
 *
 * A copy to or from a bounce buffer is complete when the call returns. It is not
 * ordered with other work on the device: after a kernel writes, wait for its stream
 * before you call. The backends cuda and hip copy in a stream of pier that does not
 * wait for other streams (CU_STREAM_NON_BLOCKING, hipStreamNonBlocking). Device code in
 * any stream may therefore poll for incoming bytes; with hip, this requires a hardware
 * queue for each stream (GPU_MAX_HW_QUEUES).
 *
 * Threads: any thread may call any function; several threads may call at once for
 * ranges of a region that do not overlap.
 */

/**
 * Make bytes that device code or pier_buffer_copy_to() wrote visible to the NIC. If the
 * region has a bounce buffer, the bytes are copied to it.
 *
 * offset  in the region, in bytes
 * length  in bytes
 *
 * Errors: -ERANGE the range is not inside the region; -ECHILD the region belongs to the
 * parent process; others of the backend, with the name of the driver's error. After an
 * error do not send these bytes.
 */
PIER_API int pier_mr_sync_for_nic(struct pier_mr *mr, uint64_t offset, uint64_t length);

/**
 * Make bytes that the NIC wrote visible to device code that is launched after this call
 * returns. The completion of these writes must have been received before. If the region
 * has a bounce buffer, the bytes are copied from it. Otherwise the device's incoming
 * writes are flushed, if the device does not order them by itself:
 *
 *	cuda	by cuFlushGPUDirectRDMAWrites(); if the driver lacks it, or the region
 *		has PIER_MAPPING_PCIE, the NIC reads back a byte of the range
 *	hip	the NIC reads back a byte, and the device's host data path is flushed.
 *		The device's L2 caches have to drop what PCIe writes, because HIP
 *		launches kernels with an acquire of the device's scope. LLVM documents
 *		that for gfx90a with coherent PCIe requests, and not for older devices
 *	level_zero
 *		the NIC reads back a byte; whether the device needs more is documented
 *		nowhere
 *
 * For the NIC to read back, the first such call in a protection domain creates a queue
 * pair that is connected to itself. It ends with the domain, and no object of <pier/...>
 * counts it.
 *
 * With hip, this does not reach the device's L2 caches: a kernel launched later relies on
 * them dropping what PCIe writes, or on fine-grained memory (hip:N:fine).
 *
 * offset  in the region, in bytes
 * length  in bytes
 *
 * If the memory was given as the fd of a dma-buf, or a device pointer was given as host
 * memory, pier does not know the device and flushes nothing: use pier_mr_read_back().
 *
 * Errors: as for pier_mr_sync_for_nic(). If the NIC must read back: -EOPNOTSUPP or
 * -EINVAL it has no reliable queue pairs; -ENETDOWN none of its ports is active;
 * -EHOSTUNREACH the read did not complete, or the port does not reach itself; -EIO the
 * read failed. After an error device code may see old bytes.
 */
PIER_API int pier_mr_sync_for_device(struct pier_mr *mr, uint64_t offset,
				     uint64_t length);

/**
 * The flush of pier_mr_sync_for_device() for memory whose device pier does not know: the
 * NIC reads back a byte of the memory that it wrote. On PCIe no read overtakes earlier
 * writes (PCI Express Base Specification, 2.4.1, transaction ordering rules), so the
 * writes have arrived when this call returns. PIER_ACCESS_RELAXED_ORDERING does not
 * change that: it lets writes pass writes, and ibv_reg_mr(3) keeps reads behind earlier
 * writes to the same memory. Writes by another NIC are not flushed.
 *
 * All bytes that the NIC wrote to that device have arrived, if their completion was
 * received before the call. A region on several devices needs one call for each device.
 *
 * offset  of the byte, in the region
 *
 * Errors: -ERANGE offset is not in the region; -EACCES the region is a memory window;
 * others of the read as for pier_mr_sync_for_device(). Another call starts anew.
 */
PIER_API int pier_mr_read_back(struct pier_mr *mr, uint64_t offset);

PIER_END_DECLS

#endif
