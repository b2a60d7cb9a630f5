/* SPDX-License-Identifier: BSD-3-Clause */
/* Regions on dma-bufs through the kernel's own interface, for the tests of the driver. */
#ifndef REGIONS_H
#define REGIONS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../uverbs.h"

/* An open device with a protection domain. Errors end the program. */
struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
};

void open_device(struct device *device, const char *name);
void close_device(struct device *device);

/* A dma-buf and a mapping of its memory, or NULL. */
struct buffer {
	int fd;
	int memfd;
	unsigned char *map;
	size_t length;
};

/*
 * Uses /dev/udmabuf, with memfd_flags besides the necessary ones. Returns -1 and sets
 * errno on failure.
 */
int make_udmabuf(struct buffer *buffer, size_t length, unsigned int memfd_flags);
/*
 * Uses /dev/dma_heap/system, opened with fd_flags. Returns -1 and sets errno on failure.
 */
int make_heap(struct buffer *buffer, size_t length, unsigned int fd_flags);
void close_fds(struct buffer *buffer);
void free_buffer(struct buffer *buffer);

struct region {
	struct uverbs_mr mr;
	uint64_t iova;
	uint64_t length;
};

/* Returns 0, or the kernel's errno, negative. */
int register_region(struct region *region, const struct device *device, uint64_t offset,
		    uint64_t length, uint64_t iova, int fd, int access);
int deregister_region(const struct region *region, const struct device *device);
int reregister_region(const struct region *region, const struct device *device, int flags,
		      const struct ibv_pd *pd);

/* Two connected queue pairs, of two devices or of the same one. */
struct pair {
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
};

void connect_pair(struct pair *pair, const struct device *from, const struct device *to);
void disconnect_pair(struct pair *pair);
/* Posts one work request on the first queue pair and returns its completion status. */
enum ibv_wc_status transfer(struct pair *pair, enum ibv_wr_opcode opcode,
			    struct ibv_sge *local, uint64_t remote, uint32_t rkey);

enum {
	ACCESS_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
};

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define must(condition) \
	((condition) ? (void)0 : fail("line %d: not: %s (%m)", __LINE__, #condition))

#endif
