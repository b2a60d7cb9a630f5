/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_VERBS_H
#define PIER_VERBS_H

#include <infiniband/verbs.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/**
 * The verbs objects beneath, for those who want to do more with them. Not
 * included by <pier/pier.h>.
 *
 * They stay pier's: do not destroy them. On soft0, and behind a plan of faults,
 * only the inline functions
 * that dispatch through the context (ibv_post_send, ibv_post_recv, ibv_poll_cq,
 * ibv_req_notify_cq) may be used on them; the others of libibverbs would ask
 * the kernel for an object that it does not have.
 *
 * Polling a channel's completion queue takes completions away from the channel.
 * None of these can fail.
 */
PIER_API struct ibv_context *pier_device_context(const struct pier_device *device);
PIER_API struct ibv_pd *pier_pd_verbs(const struct pier_pd *pd);
/**
 * Its addr is the offset, not the iova, for a dma-buf: use pier_mr_iova(). NULL for a
 * memory window.
 */
PIER_API struct ibv_mr *pier_mr_verbs(const struct pier_mr *mr);
PIER_API struct ibv_qp *pier_channel_qp(const struct pier_channel *channel);
PIER_API struct ibv_cq *pier_channel_cq(const struct pier_channel *channel);

PIER_END_DECLS

#endif
