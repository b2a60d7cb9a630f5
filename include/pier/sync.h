/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SYNC_H
#define PIER_SYNC_H

#include <stdint.h>

#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * Visibility: when the device's code and the NIC see what the other wrote.
 *
 * A completion says that the NIC is done with the memory. It does not say that code on
 * a GPU sees the bytes: NVIDIA's devices of several generations may still have the
 * writes under way (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING). And of a
 * region with a bounce buffer (PIER_PATH_BOUNCE) the NIC knows that buffer only. The
 *rule:
 *
 *	device code wrote; its stream or kernel was waited for
 *	pier_mr_sync_for_nic()	before the request that reads it is posted, or
 *				before a peer is told that it may read
 *	...
 *	the completion, or the peer's message, of what wrote to the memory arrived
 *	pier_mr_sync_for_device()	before the launch of device code that reads it
 *
 * Where nothing needs to be done they return at once, so a program that calls both is
 * right on every path. Transfers (<pier/transfer.h>) call them for this end's region, and
 * receivers (<pier/receiver.h>) at the other end; everything else leaves it to the
 * caller.
 *
 * What host memory, memfd, udmabuf and dma_heap have in place of a device is the CPU.
 * If a region has a bounce buffer, the caller must not let both sides write the same
 * bytes between two of these calls.
 *
 * The copies to and from bounce buffers are over when the call returns, and are ordered
 *with nothing else that runs on the device: whoever wrote with a kernel waits for its
 *stream first. Of the backends cuda and hip they are in a stream of pier's that waits for
 *no other (CU_STREAM_NON_BLOCKING, hipStreamNonBlocking), so that device code may poll
 *for bytes to come in any stream; of hip as long as the device has a hardware queue for
 *each (GPU_MAX_HW_QUEUES).
 *
 * Threads: any thread, several at once on parts of a region that do not overlap.
 */

/**
 * What device code, or pier_buffer_copy_to(), wrote to [offset, offset + length) of a
 * region is there for the NIC when this returns: it is copied to the bounce buffer, if
 * there is one.
 *
 * Errors: -ERANGE the bytes leave the region; -ECHILD; others of the backend, by the name
 * of the driver's error: the bytes are then not to be sent.
 */
PIER_API int pier_mr_sync_for_nic(struct pier_mr *mr, uint64_t offset, uint64_t length);

/**
 * What the NIC wrote to [offset, offset + length) of a region, and of which a completion
 * has told, is there for device code that is launched after this returns: it
 * is copied from the bounce buffer, if there is one; in a region without one, the
 * device's writes are flushed where it orders them only by that
 * (cuFlushGPUDirectRDMAWrites()).
 *
 * Of a dma-buf that was given as an fd, and of a device's pointer that was given as host
 * memory, pier does not know the device, and flushes nothing: there is
 * pier_reader_read_back().
 *
 * Errors: as pier_mr_sync_for_nic(); -EOPNOTSUPP the device neither orders such writes
 * nor can flush them: then there is pier_reader_read_back().
 */
PIER_API int pier_mr_sync_for_device(struct pier_mr *mr, uint64_t offset,
				     uint64_t length);

/**
 * A flush for devices that have none: the NIC reads a byte of the memory that it wrote.
 * On PCIe no read overtakes the writes before it (PCI Express Base Specification, 2.4.1,
 * transaction ordering rules), so when the byte is here they have arrived. That is not
 * so for regions with PIER_ACCESS_RELAXED_ORDERING, nor for what another NIC wrote.
 *
 * It is two channels of a protection domain that are connected to each other, and a
 * byte of host memory. Threads: one at a time. Processes: as channels.
 */
struct pier_reader;

/**
 * Make one, of a protection domain of the NIC that writes.
 *
 * timeout_ms  how long a read may take, as of struct pier_channel_attr
 *
 * Errors: those of pier_channel_create(), pier_channel_connect() and pier_reg_mr().
 */
PIER_API int pier_reader_create(struct pier_pd *pd, int timeout_ms,
				struct pier_reader **ret_reader);

/**
 * Read the byte at `offset` of a region, in the reader's protection domain and with
 * PIER_ACCESS_REMOTE_READ: what the NIC has written to that device before, and of which
 * a completion has told, is there when this returns. Of a region on several devices
 * each needs a read of its own.
 *
 * Errors: -ERANGE offset is not in the region; -EACCES the region has no remote reading;
 * -EINVAL it is in another protection domain; others of pier_channel_read(): after them
 * the reader is broken (-EPIPE), to be freed and made anew.
 */
PIER_API int pier_reader_read_back(struct pier_reader *reader, struct pier_mr *mr,
				   uint64_t offset);

/**
 * Give it back; NULL is fine.
 *
 * Errors: -ECHILD it is the parent's, and nothing was changed.
 */
PIER_API int pier_reader_destroy(struct pier_reader *reader);

PIER_END_DECLS

#endif
