/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_RECOVERY_H
#define PIER_RECOVERY_H

#include <stdint.h>

#include <pier/channel.h>
#include <pier/export.h>
#include <pier/status.h>

PIER_BEGIN_DECLS

/**
 * When a channel fails: what was first, how to go on with it, and how a peer that is
 * gone is noticed. Threads and processes are those of <pier/channel.h>.
 *
 *	if (pier_channel_error(channel, &failure)) {
 *		fputs(failure.sentence, stderr);
 *		pier_channel_reset(channel);
 *		pier_channel_handshake(channel, read_fd, write_fd, timeout_ms);
 *	}
 */

#define PIER_FAILURE_SENTENCE_SIZE 512

/** The first thing that went wrong on a channel. */
struct pier_channel_failure {
	/**
	 * How the first request failed; its opcode is valid too. Of PIER_CLASS_STOPPED
	 * there is no such request: the error alone.
	 */
	struct pier_result first;
	enum pier_error_class error_class;
	/** Other requests that were flushed, and have been collected. */
	uint64_t flushed;
	/** As in pier_error_message(), of any thread. */
	char sentence[PIER_FAILURE_SENTENCE_SIZE];
};

/**
 * Whether a channel is broken, and by what: kept apart from what was flushed behind it,
 * in whatever order the two queues completed, until the channel is reset.
 *
 * Does not collect: pier_channel_poll() does.
 *
 * ret_failure  may be NULL; not written where the result is 0
 *
 * Returns 0: not broken, or the first error, a negative errno.
 */
PIER_API int pier_channel_error(const struct pier_channel *channel,
				struct pier_channel_failure *ret_failure);

/**
 * Bring a channel back to where pier_channel_create() left it: at any time, after an
 * error or without one. It is then connected again, by pier_channel_handshake() or with
 * the peer's new endpoint; the peer has to do the same.
 *
 * What is outstanding is stopped, as by pier_work_wait() when the time is up; its handles
 * stay to be asked for, and their results say -ECANCELED if they had not completed.
 * Receives have to be posted anew. Memory windows of the channel lose their keys, as by
 * pier_channel_destroy(). Attributes, counters that are bound and pier_channel_fd()
 * stay. The port is looked at again: its address may be another.
 *
 * The endpoint has a new generation and a new PSN, which is far from that of the last
 * packet sent: late packets of the old connection do not fit into the new one, and who
 * connects with an endpoint from before is refused.
 *
 * Never waits for the peer; for the device at most a second.
 *
 * Errors: -EBUSY the channel belongs to a group, and nothing was changed; -EIO polling
 * the completion queue fails: one that overran does so for ever, and then the channel
 * can only be destroyed; -ENETDOWN, -EADDRNOTAVAIL and others as of
 * pier_channel_create(); others of ibv_modify_qp(3) and ibv_dealloc_mw(3). Nothing is
 * outstanding then, the channel is broken by it, and can be reset again, or destroyed.
 */
PIER_API int pier_channel_reset(struct pier_channel *channel);

/**
 * A peer that dies says nothing, and who only waits for it sends nothing that could fail.
 * With pier_channel_attr.keepalive_ms, pier posts an empty write when nothing has
 * completed for that long and no request is outstanding that would fail by itself. It
 * needs neither a receive nor a key nor a place in the send queue. If the peer does not
 * answer, the channel is broken as by any other request: what waits for it ends, and
 * pier_channel_fd() becomes readable. If the peer refuses it, because its channel gives
 * no PIER_ACCESS_REMOTE_WRITE, the channel is broken too.
 *
 * A peer is so noticed within
 *
 *	keepalive_ms + (retry_count + 1) * pier_ack_timeout_to_us(timeout)
 *
 * where devices may take up to 4 times the ack timeout (IBTA 9.7.6.1.3); soft0 takes at
 * least 2 s + 0.4 s * retry_count, and 5 s where the peer was never connected. By a
 * thread that does nothing but pier_work_poll() in a loop, keepalive_ms later.
 *
 * Nobody but the caller's thread uses a channel: pier looks after the peer while it waits
 * in pier (pier_work_wait(), pier_channel_recv(), pier_counter_wait() and so on), and in
 * pier_channel_poll(), pier_work_poll() and pier_channel_arm(). A thread that waits in
 * its own loop asks how long it may sleep:
 *
 * Returns the milliseconds until pier_channel_poll() or pier_channel_arm() is to be
 * called; or -1, which is for ever to poll(2) and epoll_wait(2). Cannot fail.
 */
PIER_API int pier_channel_next_ms(struct pier_channel *channel);

/** The time of an RNR timer code (IBTA table 45), 0 to 31, in microseconds. */
PIER_API uint32_t pier_rnr_timer_to_us(uint8_t code);

/**
 * The code of the shortest RNR timer that is not shorter than `us` microseconds, for
 * pier_channel_attr.min_rnr_timer; of the longest, 0 (655,360 us), if all are shorter.
 */
PIER_API uint8_t pier_rnr_timer_from_us(uint32_t us);

/** The time of an ack timeout exponent, 1 to 31, in microseconds; of 0, for ever, 0. */
PIER_API uint64_t pier_ack_timeout_to_us(uint8_t exponent);

PIER_END_DECLS

#endif
