/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_GRANT_H
#define PIER_SOFT_GRANT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * A grant gives a peer on the same host the fds of a region's memory, or its addresses,
 * and the peer copies into and out of it without our help. With the engine locked.
 */

struct soft_grant_message;
struct soft_link;
struct soft_mr;
struct soft_received_grant;
struct soft_fifo;
struct soft_vector;

/* Grants that this end gave. */

/* `by_address`: the peer can copy without fds. */
void pier_soft_answer_grant_request(struct soft_link *link, uint32_t key,
				    bool by_address);

/* The peer returns a grant. False: during a copy, which violates the protocol. */
bool pier_soft_take_returned_grant(struct soft_link *link, uint32_t slot,
				   uint32_t serial);

/*
 * When these return, the peer touches no byte any more. If it does not stop in time, the
 * first one breaks its link.
 */
void pier_soft_revoke_region_grants(struct soft_mr *mr);
void pier_soft_revoke_link_grants(struct soft_link *link);

/* Grants that peers gave to this end, and what is known about keys without one. */

/*
 * The grant for a request of `length` bytes; NULL: there is none. Requests one where that
 * may help.
 */
struct soft_received_grant *pier_soft_find_grant(struct soft_link *link, uint32_t key,
						 uint64_t length);

/* `fds` are borrowed. False: the grant was not requested. */
bool pier_soft_accept_grant(struct soft_link *link,
			    const struct soft_grant_message *message, const int *fds);

/* The grant is of no use: the peer set O_APPEND on its fd, for example. */
void pier_soft_reject_grant(struct soft_link *link, struct soft_received_grant *grant);

/* The peer has revoked it. */
void pier_soft_drop_revoked_grant(struct soft_link *link, uint32_t slot, uint32_t serial);

void pier_soft_release_grant(struct soft_received_grant *grant);
void pier_soft_release_grants(struct soft_fifo *fifo);

/*
 * Copies from the vector to `address` of the process that gave a grant by address, or
 * back if the vector is written to, `length` bytes or fewer. Returns how many; 0: none,
 * because memory at either end has vanished, or the process cannot be reached.
 */
uint64_t pier_soft_copy_peer(struct soft_fifo *fifo, const struct soft_vector *vector,
			     uint64_t address, uint64_t length);

#endif
