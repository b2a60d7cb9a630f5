/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CALL_H
#define PIER_SOFT_CALL_H

#include <infiniband/verbs.h>

struct soft_early_stream;
struct soft_connection;

/* Makes an authenticated stream to a peer in another process. Blocks for seconds. */
int pier_soft_call(struct soft_connection *connection, const struct ibv_qp_attr *attr,
		   struct soft_early_stream *ret_stream);

#endif
