/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_VERBS_H
#define PIER_VERBS_H

#include <infiniband/verbs.h>

#include <pier/channel.h>
#include <pier/device.h>
#include <pier/export.h>
#include <pier/mr.h>

PIER_BEGIN_DECLS

/** The verbs objects behind those of pier, and protection domains of other programs. */

/**
 * Return the verbs object behind a pier object, for direct use with libibverbs.
 * <pier/pier.h> does not include this header.
 *
 * The objects belong to pier: do not destroy them. On soft0 and on a device with a
 * fault plan, only the inline functions that dispatch through the context may be used
 * (ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq). The other functions
 * of libibverbs would pass the kernel an object that it does not have.
 *
 * Polling a channel's completion queue takes completions away from the channel, and from
 * all channels that share the queue (<pier/cq.h>). pier takes the asynchronous events of
 * a device that it opened (ibv_get_async_event(3)), whose fd it makes non-blocking: it
 * logs errors as warnings and names them when a channel breaks. Those of a context that
 * was imported are the program's. The functions that return an object cannot fail.
 */
PIER_API struct ibv_context *pier_device_verbs(const struct pier_device *device);
PIER_API struct ibv_pd *pier_pd_verbs(const struct pier_pd *pd);
/**
 * Return the verbs object of a region or a channel. pier_mr_verbs() returns NULL for a
 * memory window. For a dma-buf, the addr of the MR is the offset, not the iova: use
 * pier_mr_iova().
 */
PIER_API struct ibv_mr *pier_mr_verbs(const struct pier_mr *mr);
PIER_API struct ibv_qp *pier_channel_verbs_qp(const struct pier_channel *channel);
PIER_API struct ibv_cq *pier_channel_verbs_cq(const struct pier_channel *channel);

/**
 * Import a protection domain that the program already has. The program can then use
 * pier to register memory and create channels in it, beside its own regions and queue
 * pairs.
 *
 * verbs   from ibv_alloc_pd(3) or pier_pd_verbs(). Borrowed: pier neither deallocates
 *         it nor closes its context. The program must keep both until pier_pd_dealloc()
 * ret_pd  the imported protection domain; give it to pier_pd_dealloc(), which frees
 *         only pier's part
 *
 * The first import from a context that pier did not open queries the device's
 * capabilities, as pier_device_open() does; this creates and destroys a protection
 * domain, a completion queue and a queue pair. All imports from that context share one
 * device, pier_pd_device(), which is freed with its last protection domain.
 * pier_device_close() of this device fails with -EBUSY. A protection domain may be
 * imported more than once.
 *
 * Threads: any thread may call this function. Processes: in a child of fork(2), it
 * fails with -ECHILD if the parent imported from or opened the same context.
 *
 * A queue pair cannot be imported; docs/design/device.md gives the reason.
 *
 * Errors: -ECHILD the context belongs to the parent process; -ENOMEM; those of
 * ibv_query_device(3) and ibv_alloc_pd(3).
 */
PIER_API int pier_pd_import(struct ibv_pd *verbs, struct pier_pd **ret_pd);

PIER_END_DECLS

#endif
