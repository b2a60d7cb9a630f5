/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RECOVERY_H
#define PIER_RECOVERY_H

#include <stddef.h>
#include <stdint.h>

#include <pier/channel.h>
#include <pier/export.h>
#include <pier/status.h>

PIER_BEGIN_DECLS

/**
 * Recovery: a channel's first error, reconnecting, and detecting a dead peer.
 *
 * The rules for threads and processes are those of <pier/channel.h>.
 *
 *	if (pier_channel_error(channel, &failure, sizeof(failure))) {
 *		fputs(failure.sentence, stderr);
 *		pier_channel_reset(channel);
 *		pier_channel_handshake(channel, read_fd, write_fd, timeout_ms);
 *	}
 *
 * The peer may notice the error later. If the handshake fails with -ETIMEDOUT, reset the
 * channel and repeat it, on the same stream.
 */

#define PIER_FAILURE_SENTENCE_SIZE 512

/** The first error of a channel. */
struct pier_channel_failure {
	/**
	 * The result of the first request that failed, with its opcode. For
	 * PIER_CLASS_STOPPED no request failed, and only the error is set.
	 */
	struct pier_result first;
	enum pier_error_class error_class;
	/** Other requests that were flushed and have been collected. */
	uint64_t flushed;
	/** As returned by pier_error_message(), but independent of the thread. */
	char sentence[PIER_FAILURE_SENTENCE_SIZE];
};

/**
 * Check whether a channel is broken, and return its first error.
 *
 * The first error is kept until the channel is reset. Requests that were flushed after
 * it do not replace it, in whatever order the two queues complete.
 *
 * This call does not collect completions; pier_channel_poll() does.
 *
 * ret_failure  written up to `size` bytes, unless 0 is returned; may be NULL
 * size         sizeof(*ret_failure) in the caller
 *
 * Returns 0 if the channel is not broken; otherwise its first error, a negative errno.
 */
PIER_API int pier_channel_error(const struct pier_channel *channel,
				struct pier_channel_failure *ret_failure, size_t size);

/**
 * Reset a channel to its state after pier_channel_create().
 *
 * The reset is possible after an error and at any other time. Afterwards connect the
 * channel again, by pier_channel_handshake() or with the peer's new endpoint. The peer
 * has to do the same.
 *
 * Outstanding requests are stopped, as when pier_channel_send() times out. Their handles
 * stay valid; the result of a request that had not completed is -ECANCELED. Receives
 * have to be posted again; those of a receive pool are, by its next call. Memory windows
 * of the channel lose their keys, as in pier_channel_destroy(). Attributes, bound
 * counters and pier_channel_fd() stay. The port is queried again, because its address may
 * have changed.
 *
 * The endpoint has a new generation and a new PSN, far from that of the last packet
 * sent. Late packets of the old connection are therefore not accepted by the new one,
 * and a peer that connects with the old endpoint is refused.
 *
 * If the device does not take the queue pair out of its error state (irdma), another
 * queue pair takes its place, and pier_channel_verbs_qp() returns that one.
 *
 * Never waits for the peer; waits at most one second for the device.
 *
 * Errors: -EBUSY the channel belongs to a group, and nothing was changed; -EIO polling
 * the completion queue fails, which is permanent if the queue has overrun: the channel
 * can then only be destroyed; -ENETDOWN, -EADDRNOTAVAIL and others as for
 * pier_channel_create(); others of ibv_modify_qp(3) and ibv_dealloc_mw(3). After an
 * error other than -EBUSY nothing is outstanding, and the channel is broken; it can be
 * reset again or destroyed.
 */
PIER_API int pier_channel_reset(struct pier_channel *channel);

/**
 * Return how long a thread may sleep before a keepalive is due.
 *
 * A dead peer sends nothing, and a side that only waits for it sends nothing that could
 * fail. pier_channel_attr.keepalive_ms makes pier post an empty write when nothing has
 * completed for that long and no request of the send queue is outstanding that would
 * fail by itself. The write needs no receive, no key and no place in the send queue. If
 * the peer does not answer, the channel breaks as after any failed request: waits end,
 * and pier_channel_fd() becomes readable. If the peer refuses the write, because its
 * channel lacks PIER_ACCESS_REMOTE_WRITE, the channel breaks too.
 *
 * A dead peer is detected within
 *
 *	keepalive_ms + (retry_count + 1) * 4.096 us * 2^timeout
 *
 * A device may take up to 4 times the ack timeout (IBTA 9.7.6.1.3). soft0 takes at
 * least 2 s + 0.4 s * retry_count, and 5 s if the peer was never connected. A thread
 * that only calls pier_work_poll() in a loop detects it keepalive_ms later.
 *
 * Only the caller's thread uses a channel. pier therefore sends keepalives while that
 * thread waits in pier (pier_work_wait(), pier_channel_recv(), pier_counter_wait() and
 * so on), and in pier_channel_poll(), pier_work_poll() and pier_channel_arm(). A thread
 * that waits in its own loop calls this function for its timeout.
 *
 * On a channel with a shared completion queue, all this applies to the keepalives of
 * all channels of the queue: see pier_cq_next_ms().
 *
 * Returns the milliseconds after which pier_channel_poll() or pier_channel_arm() must
 * be called; or -1 if there is no limit, which poll(2) and epoll_wait(2) take as an
 * infinite timeout. Cannot fail.
 */
PIER_API int pier_channel_next_ms(struct pier_channel *channel);

PIER_END_DECLS

#endif
