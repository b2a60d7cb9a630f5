/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_STREAM_H
#define PIER_STREAM_H

#include <stdint.h>

#include <pier/export.h>
#include <pier/receiver.h>
#include <pier/transfer.h>

PIER_BEGIN_DECLS

/**
 * Streams: transfers of any length through memory of a fixed size. A file that does not
 * fit into memory moves this way, or a sequence whose length is not known at the start.
 *
 * A stream is a transfer with a `stream_size` and a receiver with the same one. At both
 * ends, the memory is a circular buffer of stream_size bytes: byte n of the stream is
 * byte n % stream_size of it. The sending end fills the buffer and extends the stream;
 * the receiving end takes what has arrived, and releases it, so that its place can be
 * filled again:
 *
 *	attr.stream_size = size;
 *	pier_transfer_create(&attr, &transfer);
 *	while (... there is more ...) {
 *		limit = pier_transfer_limit(transfer);
 *		... fill [filled, limit) ...
 *		pier_transfer_extend(transfer, limit);
 *		if (pier_transfer_wait(transfer, PIER_TIMEOUT_DEFAULT) < 0)
 *			break;
 *	}
 *	pier_transfer_finish(transfer);
 *	while ((result = pier_transfer_wait(transfer, PIER_TIMEOUT_DEFAULT)) == 0)
 *		pier_transfer_limit(transfer);
 *
 * and at the receiving end:
 *
 *	do {
 *		result = pier_receiver_wait(receiver, PIER_TIMEOUT_DEFAULT);
 *		pier_receiver_arrived(receiver, &end);
 *		... use [used, end) ...
 *		pier_receiver_release(receiver, end);
 *	} while (result == 0);
 *
 * Both ends see the same bytes in the same order, however many rails carry them. All
 * positions are multiples of PIER_STREAM_BLOCK; pad what is shorter.
 *
 * Each end hears from the other. The receiving end reports what it has released, and the
 * sending end where the stream ends. An end that has nothing else to say still reports
 * four times in stall_ms, at least once per second, that it is alive, as long as it is
 * driven. So a slow disk at one end does not stall the other, but a dead peer does:
 * stall_ms is how long an end waits without hearing anything. Time in which an end is
 * not driven itself does not count. Give both ends about the same stall_ms.
 *
 * If one end fails, the other fails with the same error. An error after all bytes were
 * released no longer counts. Reporting it can take up to stall_ms. Then the end stops the
 * rails that still have chunks in flight, so it does not wait for a peer that takes no
 * more.
 *
 * Rails: both ends name the same rails in the same order. If a rail fails, the others
 * move its chunks, but only after the peer has stopped its end of that rail: late
 * packets could otherwise fall on bytes that were written since (<pier/transfer.h>). A
 * rail whose network is silent fails when its retries have ended (timeout and retry_count
 * of its channel). With a shorter stall_ms the stream ends before the others take over.
 * If no rail is left, both ends fail; reset all channels at both ends, and resume both
 * (pier_transfer_resume(), pier_receiver_resume()). No byte is lost or delivered twice.
 * If the last rail fails while the last bytes are released, the receiver ends without an
 * error and the transfer with one; only another connection can inform the sending end
 * (pier_transfer_released()).
 *
 * Relays: a process can pass a stream on from the buffer in which it receives it. It
 * begins a transfer of the same stream_size with the same memory, extends it to what has
 * arrived, and releases at its receiver only what its transfer no longer needs. All
 * positions are then the same on the whole way. If such a process fails, the one before
 * it still has every byte that the one after it lacks: reset the channels of both,
 * connect them to each other, give the transfer the position of the receiver
 * (pier_transfer_released()), and resume both.
 *
 * Channels: a stream uses both queues of a channel at both ends. Each needs a max_recv_wr
 * and a max_send_wr of 1 at least (2 at the sending end), and its receive queue must not
 * be used for anything else. Like a receiver's, the channels of a stream's transfer are
 * stopped when it is destroyed.
 *
 * Wire form: docs/wire.md.
 *
 * Threads and processes: as in <pier/transfer.h> and <pier/receiver.h>. Filling and using
 * the buffers needs no call and may be done by any thread.
 */

/** In bytes: all positions in a stream are multiples of it. */
#define PIER_STREAM_BLOCK 4096

/** The most bytes of a stream_size. A stream itself may have any length. */
#define PIER_STREAM_SIZE_MAX (UINT64_C(1) << 38)

/**
 * Return how far the buffer may be filled: bytes before this position have a place that
 * no earlier byte needs any more. It never decreases. After this call,
 * pier_transfer_wait() returns 0 as soon as the limit has moved. 0 for a transfer
 * that is no stream.
 */
PIER_API uint64_t pier_transfer_limit(struct pier_transfer *transfer);

/**
 * Extend a stream: the bytes before `end` are in the buffer and may be moved. They must
 * not change until pier_transfer_limit() is `stream_size` beyond them.
 *
 * end  a position, at least that of the last call and at most pier_transfer_limit()
 *
 * Errors: -EINVAL the transfer is no stream, `end` is no multiple of PIER_STREAM_BLOCK or
 * less than before, or the stream is finished; -ENOSPC `end` is beyond
 * pier_transfer_limit(). Nothing was changed.
 */
PIER_API int pier_transfer_extend(struct pier_transfer *transfer, uint64_t end);

/**
 * Finish a stream: nothing follows. The transfer then ends when the receiver has released
 * all bytes.
 *
 * Errors: -EINVAL the transfer is no stream.
 */
PIER_API int pier_transfer_finish(struct pier_transfer *transfer);

/**
 * Note that the receiver has released the bytes before `end`, as a connection other than
 * the stream's reported. Without this note, a resumed transfer repeats all bytes that it
 * does not know to be released. That is harmless if this transfer has sent everything
 * that the receiver got. If another transfer has sent a part, the repeated bytes would
 * overwrite later ones.
 *
 * end  a position; one that is known already changes nothing
 *
 * Errors: -EINVAL the transfer is no stream, or `end` is no multiple of
 * PIER_STREAM_BLOCK; -ERANGE the stream was not extended to `end`.
 */
PIER_API int pier_transfer_released(struct pier_transfer *transfer, uint64_t end);

/**
 * End a stream with an error. Drive it until it has ended: the peer is told, and ends
 * with the same error. pier_transfer_cancel() does this with -ECANCELED.
 *
 * error  a negative errno, down to -4095, but neither -ETIMEDOUT nor -EINTR, after which
 *        a caller waits again
 *
 * Errors: -EINVAL the transfer is no stream, or the error is out of range; -EALREADY it
 * has ended.
 */
PIER_API int pier_transfer_fail(struct pier_transfer *transfer, int error);

/**
 * Return up to where the bytes of a stream have arrived, without a gap. They are visible
 * to device code (pier_mr_sync_for_device()). pier_receiver_wait() returns 0 as soon as
 * more have arrived.
 *
 * Errors: -EINVAL the receiver is not that of a stream; those of
 * pier_mr_sync_for_device(), which end it; -EIO it has ended, and could not make its last
 * bytes visible.
 */
PIER_API int pier_receiver_arrived(struct pier_receiver *receiver, uint64_t *ret_end);

/**
 * Release the bytes before `end`: the sender may overwrite them. The sender is told by
 * the next call that drives the receiver.
 *
 * end  a position, at least that of the last call and at most that which
 *      pier_receiver_arrived() returned
 *
 * Errors: -EINVAL the receiver is not that of a stream, or `end` is not such a position.
 */
PIER_API int pier_receiver_release(struct pier_receiver *receiver, uint64_t end);

/**
 * End the receiver of a stream with an error, as pier_transfer_fail().
 *
 * Errors: those of pier_transfer_fail().
 */
PIER_API int pier_receiver_fail(struct pier_receiver *receiver, int error);

PIER_END_DECLS

#endif
