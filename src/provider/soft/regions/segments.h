/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SEGMENTS_H
#define PIER_SOFT_SEGMENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "core/list.h"

/* Limits of the process: fds, file sizes, and mappings of peers' memory. */

/* Whether an fd of this number leaves the process at least half of those it may have. */
bool pier_soft_is_spare(int fd);

/* Whether pwrite(2) to these bytes of a file sends no SIGXFSZ (RLIMIT_FSIZE). */
bool pier_soft_may_write(uint64_t offset, uint64_t length);

/* Whether a hole in memory that is shared with a peer cannot be a SIGBUS. */
bool pier_soft_may_touch_holes(void);

/* Before mapping memory of a peer. False: this process has mapped too much already. */
bool pier_soft_reserve_mapping(uint64_t bytes, uint32_t segments);

void pier_soft_release_mapping(uint64_t bytes, uint32_t segments);

struct pier_provider_counter;
struct pier_provider_part;

/* Regions: memory with a key, in one or several segments. */

struct soft_segment {
	uint64_t start, end; /* in the region */
	char *memory;	     /* in this process */
	void *mapping;	     /* what to unmap, for a dma-buf */
	size_t mapping_size;
	int fd;		 /* that `mapping` maps, from `offset` on; -1: none is kept */
	bool fd_shared;	 /* it belongs to a segment before this one */
	uint64_t offset; /* of the segment in the fd */
	bool dmabuf;	 /* a real one: accesses are bracketed by DMA_BUF_IOCTL_SYNC */
	bool steady;	 /* nobody can take it away, so it cannot fault */
	bool fixed;	 /* see pier_soft_is_fixed() */
	bool readonly;	 /* its fd gives nobody the right to write */
	uint64_t file_size;
	struct soft_mr *lender; /* whose memory it is, or NULL: see join.c */
};

struct soft_mr {
	struct ibv_mr ibv;
	uint64_t iova;
	int access;
	struct pier_provider_counter *counter; /* of remote writes, or NULL */
	uint32_t windows;		       /* bound to it */
	uint32_t joins;			       /* segments that it lends: join.c */
	atomic_uint *used;	 /* users of its DMA handle or NIC memory, or NULL */
	struct pier_list grants; /* that peers have; link/grant.h */
	uint64_t padding;	 /* see set_padding in provider.h */
	uint32_t count;
	struct soft_segment segments[]; /* in order of `start` */
};

/*
 * Faults in the pages of memory that does not reach the end of the address space, for
 * writing if `access` has a right to write. 0 or a positive errno.
 */
int pier_soft_populate(const char *memory, uint64_t length, int access);

/* Brackets an access to a dma-buf: the flags of DMA_BUF_IOCTL_SYNC. */
void pier_soft_sync(int fd, uint64_t flags);

/*
 * Whether an fd is a memfd of ordinary pages whose size and seals are final. Then no
 * process that has it can turn an access to its mapping into SIGBUS, now or later. That
 * does not hold for huge pages, nor for every exporter of dma-bufs.
 */
#define SOFT_FINAL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
bool pier_soft_is_fixed(int fd);

/* A region without a key and without segments, with room for `count`; NULL: no memory. */
struct soft_mr *pier_soft_allocate_mr(const struct pier_provider_part *parts,
				      uint32_t count, uint64_t iova, int access);

/* Maps `parts` into an empty region. 0 or -errno; pier_soft_free_mr() frees in any case.
 */
int pier_soft_attach_parts(struct soft_mr *mr, const struct pier_provider_part *parts,
			   uint32_t count);

void pier_soft_free_mr(struct soft_mr *mr);

/* The region no longer borrows memory of others: join.c. With the engine locked. */
void pier_soft_return_parts(struct soft_mr *mr);

/* The segment that contains `offset` of the region. */
const struct soft_segment *pier_soft_find_segment(const struct soft_mr *mr,
						  uint64_t offset);

/*
 * Whether all pages of a range that pier_soft_find_range() allows are mapped. Pinned
 * memory counts as mapped.
 */
bool pier_soft_is_present(const struct soft_mr *mr, uint64_t address, uint64_t length);

#endif
