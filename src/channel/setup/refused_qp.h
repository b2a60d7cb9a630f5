/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_REFUSED_QP_H
#define PIER_CHANNEL_SETUP_REFUSED_QP_H

#include "channel/channel.h"

enum {
	REFUSED_QP_ADVICE = 160, /* bytes for the text */
};

/*
 * Find out which numbers the device would accept in a queue pair that it refused with
 * this error, by creating others. Writes ": it takes max_send_wr 4681, or max_send_sge
 * 2", or "" if no single lower number helps.
 */
void pier_explain_refused_qp(const struct pier_channel *channel, int error,
			     const struct ibv_qp_init_attr *refused, char *ret_text,
			     size_t size);

#endif
