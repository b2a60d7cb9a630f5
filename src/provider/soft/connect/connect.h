/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_CONNECT_H
#define PIER_SOFT_CONNECT_H

#include <infiniband/verbs.h>

struct soft_connection;

/*
 * Gives the queue pair, which has its number, a secret: a random one, or the one that
 * the peers of a meeting derive. Also at each RESET. 0, or -EIO with a sentence. With the
 * engine locked.
 */
int pier_soft_renew_secret(struct soft_connection *connection);
/* Finds and reaches the peer before the queue pair goes to RTR. */
int pier_soft_connect(struct soft_connection *connection, const struct ibv_qp_attr *attr);

#endif
