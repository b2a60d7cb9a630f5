/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_GRANT_GIVEN_H
#define PIER_SOFT_GRANT_GIVEN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Grants that this end gave: a peer on the same host has the fds of a region's memory, or
 * its addresses, and copies into and out of it without our help. With the engine locked.
 */

struct soft_link;
struct soft_mr;

/* `by_address`: the peer can copy without fds. */
void pier_soft_answer_grant_request(struct soft_link *link, uint32_t key,
				    bool by_address);
/* The peer returns a grant. False: in the middle of a copy, which violates the protocol.
 */
bool pier_soft_take_returned_grant(struct soft_link *link, uint32_t slot,
				   uint32_t serial);
/*
 * When these return, the peer touches no byte any more. If it does not stop in time, the
 * first one breaks its link.
 */
void pier_soft_revoke_region_grants(struct soft_mr *mr);
void pier_soft_revoke_link_grants(struct soft_link *link);

#endif
