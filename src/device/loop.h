/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_LOOP_H
#define PIER_DEVICE_LOOP_H

#include "device.h"

/*
 * Let the NIC read a byte of a region, which flushes the writes that it made before: see
 * pier_mr_sync_for_device() in <pier/sync.h>. The byte is the payload of an RDMA write,
 * so a region with any access rights will do. The first call creates a queue pair, which
 * lives as long as the protection domain. Any thread; several wait for each other.
 *
 * lkey, address  of the byte
 *
 * Errors: those of pier_loop_create() and pier_loop_run(); the next call starts anew.
 */
int pier_read_back(struct pier_pd *pd, uint32_t lkey, uint64_t address);

/*
 * Destroy that queue pair, and those that pier_loop_join() could not destroy. No other
 * thread uses the domain.
 */
void pier_end_loops(struct pier_pd *pd);

/*
 * A queue pair that is connected to itself, so that a NIC reads and writes memory of
 * this process without a peer. NCCL flushes GPU memory with one (gpuFlush in its
 * net_ib.cc). Threads: one at a time.
 */
struct pier_loop;

/*
 * Create a loop on the first active port.
 *
 * pd        of the device, and of all regions that requests use
 * deadline  for trying GIDs, as of pier_deadline(); a call to the driver is not cut short
 *
 * Errors: -ENETDOWN no port is active; those of ibv_query_port(3); -EHOSTUNREACH; others
 * of the verbs: the device has no reliable queue pairs, or none that it connects to
 * itself.
 */
int pier_loop_create(struct pier_device *device, struct ibv_pd *pd, int64_t deadline,
		     struct pier_loop **ret_loop);

/*
 * Execute one request and wait for its completion. After a failure the loop can only be
 * destroyed.
 *
 * opcode    IBV_WR_RDMA_READ from the remote address to the local element, or
 *           IBV_WR_RDMA_WRITE the other way
 * remote    its address, under `rkey`
 * deadline  as of pier_deadline()
 *
 * Errors: -EHOSTUNREACH; -EIO the completion has an error, which the sentence names;
 * others of ibv_post_send(3) and ibv_poll_cq(3).
 */
int pier_loop_run(struct pier_loop *loop, enum ibv_wr_opcode opcode,
		  struct ibv_sge *local, uint64_t remote, uint32_t rkey,
		  int64_t deadline);

/*
 * One key for regions of one protection domain: join_mrs() of the provider, on a loop of
 * its own. Deregister the result with unjoin_mrs(), before any of the regions.
 *
 * parts  the bytes under the key, in order, by the regions' lkeys and addresses
 *
 * Errors: those of pier_loop_create() and pier_loop_run(); -EINVAL one request has no
 * room for the parts; others of the provider. Nothing is left behind, but a queue pair
 * that is not destroyed stays until pier_end_loops().
 */
int pier_loop_join(struct pier_pd *pd, const struct ibv_sge *parts, uint32_t count,
		   int access, struct ibv_mr **ret_mr);

/* Takes NULL and half-built loops. Leaks objects that the driver does not destroy. */
void pier_loop_destroy(struct pier_loop *loop);

#endif
