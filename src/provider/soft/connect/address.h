/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ADDRESS_H
#define PIER_SOFT_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/limits.h"

/* What an endpoint has beside GID and QPN: the secret of a queue pair, and where to call.
 */

struct soft_address {
	uint8_t secret[SOFT_SECRET_SIZE];
	uint16_t port;
	uint32_t count;
	struct in6_addr addresses[SOFT_MAX_ADDRESSES]; /* IPv4 as v4-mapped */
};

int pier_soft_get_qp_address(struct ibv_qp *qp, uint8_t *ret_address, size_t size);
int pier_soft_set_qp_address(struct ibv_qp *qp, const uint8_t *address, size_t length);
/* Whether an address can be that of one host, and not this one by another name. */
bool pier_soft_is_callable(const struct in6_addr *address);
int pier_soft_pack_address(const struct soft_address *address, uint8_t *ret_bytes,
			   size_t size);
int pier_soft_unpack_address(const uint8_t *bytes, size_t length,
			     struct soft_address *ret_address);

#endif
