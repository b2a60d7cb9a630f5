/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_UD_RECEIVE_H
#define PIER_SOFT_UD_RECEIVE_H

struct soft_context;

/* Takes datagrams for the UD queue pairs of the context. With the engine locked. */
void pier_soft_receive_datagrams(struct soft_context *context);

#endif
