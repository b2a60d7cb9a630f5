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
 * The functions that return an object cannot fail.
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

/**
 * Use a protection domain that the program already has: register memory in it and create
 * channels on it with pier, beside the program's own regions and queue pairs.
 *
 * verbs   of ibv_alloc_pd(3), or pier_pd_verbs(). Borrowed: pier neither deallocates it
 *         nor closes its context. The program keeps both until pier_dealloc_pd(), which
 *         gives back pier's part alone
 * ret_pd  the caller's, to be given to pier_dealloc_pd()
 *
 * The first import of a context that pier did not open asks the device what it can do, as
 * pier_open_device() does; this makes and frees a protection domain. All imports of that
 * context then share one device, pier_pd_device(). It ends with its last protection
 * domain: pier_close_device() of it is -EBUSY. A protection domain may be imported more
 * than once.
 *
 * Threads: any thread. Processes: -ECHILD in a child of fork(2) if the parent imported or
 * opened the same context.
 *
 * A queue pair cannot be imported; docs/design/device.md has the reason.
 *
 * Errors: -EINVAL verbs is NULL; -ECHILD; -ENOMEM; those of ibv_query_device(3) and
 * ibv_alloc_pd(3).
 */
PIER_API int pier_import_pd(struct ibv_pd *verbs, struct pier_pd **ret_pd);

PIER_END_DECLS

#endif
