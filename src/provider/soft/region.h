/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_REGION_H
#define PIER_SOFT_REGION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <infiniband/verbs.h>

#include "limits.h"
#include "core/list.h"

/* Memory that the engine may reach: regions, their keys, and lists of pieces. */

struct pier_provider_counter;
struct pier_provider_part;
struct soft_context;
struct soft_qp;

struct soft_piece {
	uint64_t start, end; /* in the region */
	char *memory;	     /* where it lies in this process */
	void *window;	     /* what to unmap, for a dma-buf */
	size_t window_size;
	int fd;		 /* that the window maps, from `offset` on; -1: none is kept */
	bool fd_shared;	 /* it belongs to a piece before this one */
	uint64_t offset; /* of the piece in the fd */
	bool dmabuf;	 /* a real one: the fd brackets our accesses */
	bool steady;	 /* nobody can take it away: it cannot fault */
	bool fixed;	 /* see pier_soft_is_fixed() */
	uint64_t file_size;
};

struct soft_mr {
	struct ibv_mr ibv;
	uint64_t iova;
	int access;
	struct pier_provider_counter *counter; /* of remote writes, or NULL */
	uint32_t windows;		       /* bound to it */
	struct pier_list given;		       /* leaves that peers have; grant.h */
	uint64_t padding;		       /* see set_padding in provider.h */
	uint32_t count;
	struct soft_piece pieces[]; /* one follows the other */
};

/* What is below `ibv` is under the engine's lock; ibv.rkey is the caller's to change. */
struct soft_mw {
	struct ibv_mw ibv;
	uint32_t rkey;
	struct soft_mr *mr; /* NULL: not bound */
	struct soft_qp *qp; /* NULL: not bound, or what it was bound to is gone */
	uint64_t address, length;
	int access;
	struct pier_list link; /* of the queue pair's */
};

enum {
	SOFT_GENERATION_BITS = 12,
	/* The slots before it would have keys that are to be asked for. */
	SOFT_FIRST_MR = (SOFT_MAX_KEY >> SOFT_GENERATION_BITS) + 1
};

/*
 * The key of slot i is i << 12 | generation; of a window the consumer chooses the
 * last 8 bits, so that 4 are left of the generation.
 */
struct soft_mr_slot {
	struct soft_mr *mr; /* or a window */
	struct soft_mw *mw;
	uint32_t generation;
	uint32_t next_free;
};

struct soft_mr_table {
	struct soft_mr_slot *slots;
	uint32_t capacity;
	/* Reused oldest first, which keeps a stale key stale for long. */
	uint32_t first_free, last_free;
	struct soft_mr **requested; /* by key; NULL before the first is */
};

/* region.c */
struct soft_mr *pier_soft_find_mr(struct soft_context *context, struct ibv_pd *pd,
				  uint32_t key, uint64_t address, uint64_t length,
				  int access);
/*
 * Whether all of a range that find_mr() allows is there. Memory that was pinned
 * always is, as far as we are concerned.
 */
bool pier_soft_is_present(const struct soft_mr *mr, uint64_t address, uint64_t length);
/* Of a region, the piece in which `offset` lies. */
const struct soft_piece *pier_soft_find_piece(const struct soft_mr *mr, uint64_t offset);
/* Maps `parts` into `mr`, which has none; 0 or -errno. free_mr() follows in any case. */
struct soft_mr *pier_soft_allocate_mr(const struct pier_provider_part *parts,
				      uint32_t count, uint64_t iova, int access);
int pier_soft_attach_parts(struct soft_mr *mr, const struct pier_provider_part *parts,
			   uint32_t count);
void pier_soft_free_mr(struct soft_mr *mr);
struct ibv_mr *pier_soft_reg_parts(struct ibv_pd *pd,
				   const struct pier_provider_part *parts, uint32_t count,
				   uint64_t iova, int access, const uint32_t *key);
struct ibv_mr *pier_soft_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, int access);
struct ibv_mr *pier_soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				       uint64_t iova, int fd, int access);
int pier_soft_dereg_mr(struct ibv_mr *mr);
void pier_soft_set_padding(struct ibv_mr *mr, uint64_t length);
int pier_soft_bind_counter(struct ibv_mr *mr, struct pier_provider_counter *counter);

/* keys.c; with the engine locked */
struct soft_mr *pier_soft_find_key(const struct soft_mr_table *table, uint32_t key);
/* `key` NULL: any. 0 or -errno with a sentence. */
int pier_soft_take_key(struct soft_mr_table *table, struct soft_mr *mr,
		       const uint32_t *key);
void pier_soft_release_key(struct soft_mr_table *table, const struct soft_mr *mr);
/* Of windows: both keys that differ in the last 8 bits only find the same one. */
struct soft_mw *pier_soft_find_window(const struct soft_mr_table *table, uint32_t key);
int pier_soft_take_window_key(struct soft_mr_table *table, struct soft_mw *mw);
void pier_soft_release_window_key(struct soft_mr_table *table, const struct soft_mw *mw);
void pier_soft_free_keys(struct soft_mr_table *table);

/* window.c */
struct ibv_mw *pier_soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int pier_soft_dealloc_mw(struct ibv_mw *mw);
/*
 * With the engine locked: the region that a key of the queue pair's peer reaches, its
 * own or that of a window; without remote rights in `access` a region's own alone.
 */
struct soft_mr *pier_soft_find_range(struct soft_qp *qp, uint32_t key, uint64_t address,
				     uint64_t length, int access);
/* False: not a window that is bound to this queue pair. */
bool pier_soft_invalidate(struct soft_qp *qp, uint32_t key);
void pier_soft_orphan_windows(struct soft_qp *qp);

/* host.c, dmabuf.c: makes memory reachable; also after a failure detach() follows. */
int pier_soft_attach_host(struct soft_piece *piece, const struct pier_provider_part *part,
			  int access);
bool pier_soft_is_mapped(const char *memory, uint64_t length);
int pier_soft_attach_fd(struct soft_piece *piece, const struct pier_provider_part *part,
			int access);
void pier_soft_detach(struct soft_piece *piece);
/*
 * Whether an fd is a memfd of ordinary pages whose size and seals are final. Then no
 * process that has it can make access to a mapping of it a SIGBUS, now or later. That
 * does not hold for huge pages, nor for every exporter of dma-bufs.
 */
#define SOFT_FINAL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
bool pier_soft_is_fixed(int fd);

/* limits.c */
/* Whether an fd of this number leaves the process at least half of those it may have. */
bool pier_soft_is_spare(int fd);
/* Whether pwrite(2) on these bytes of a file is no SIGXFSZ (RLIMIT_FSIZE). */
bool pier_soft_may_write(uint64_t offset, uint64_t length);
/* Whether a hole in memory that is shared with a peer cannot be a SIGBUS. */
bool pier_soft_may_touch_holes(void);
/* For the memory of a peer; false: this process has mapped too much of that. */
bool pier_soft_reserve_mapping(uint64_t bytes, uint32_t pieces);
void pier_soft_release_mapping(uint64_t bytes, uint32_t pieces);

/*
 * Scatter and gather lists for one copy; vector.c. What does not fit any
 * more is left out, and all that is added behind it too: `bytes` tells.
 */
struct soft_vector {
	struct iovec parts[SOFT_MAX_VECTOR];
	int count;
	size_t bytes;
	int first;		     /* parts before it have been copied */
	bool steady;		     /* no part can fault */
	int synced[SOFT_MAX_VECTOR]; /* fds of dma-bufs */
	int synced_count;
	bool writes;
};

/* Brackets an access to a dma-buf: the flags of DMA_BUF_IOCTL_SYNC. */
void pier_soft_sync(int fd, uint64_t flags);

void pier_soft_vector_init(struct soft_vector *vector, bool writes);
/* Memory of our own, which stays. */
void pier_soft_vector_add(struct soft_vector *vector, void *memory, size_t length);
/* False when the keys, the ranges or the rights do not allow it. */
bool pier_soft_vector_add_region(struct soft_vector *vector, struct soft_qp *qp,
				 const struct ibv_sge *range, uint64_t skip,
				 uint64_t limit, int access);
bool pier_soft_vector_add_sges(struct soft_vector *vector, struct soft_qp *qp,
			       const struct ibv_sge *sges, int count, uint64_t skip,
			       uint64_t limit, int access);
/* Whether add_sges() would take them. */
bool pier_soft_check_sges(struct soft_qp *qp, const struct ibv_sge *sges, int count,
			  uint64_t limit, int access);
ssize_t pier_soft_vector_send(struct soft_vector *vector, int fd);
ssize_t pier_soft_vector_receive(struct soft_vector *vector, int fd);
/* DMA_BUF_SYNC_START and DMA_BUF_SYNC_END go around what copies by other means. */
void pier_soft_vector_sync(const struct soft_vector *vector, uint64_t edge);

/* Memory that cannot fault, and is also in a file. */
struct soft_extent {
	char *memory;
	int fd; /* -1: there is no way past the mapping */
	uint64_t offset;
	size_t length;
};

/*
 * copy.c: from the vector into the extent, or back if the vector is written to, as
 * much as both have; drops from the vector what was copied. Memory that has vanished
 * ends the copy; -1 with EFAULT when nothing was copied.
 */
ssize_t pier_soft_copy(struct soft_vector *vector, const struct soft_extent *extent);

#endif
