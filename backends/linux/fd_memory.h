/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LINUX_FD_MEMORY_H
#define PIER_BACKENDS_LINUX_FD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"
#include "backends/own.h"

/*
 * Write one sentence: why a device file, or a folder of them, could not be opened, and
 * the remedy.
 *
 * option  the kernel's configuration option that provides the file
 * error   the errno of opening it
 */
void pier_explain_device_file(const char *path, const char *option, int error,
			      char *ret_text, size_t size);

/*
 * The errno to report: EOPNOTSUPP for failures that will happen again. Failures that have
 * nothing to do with the device (EMFILE, ENOMEM, ...) keep their errno.
 */
int pier_device_file_errno(int error);

/*
 * Shared by the backends whose memory is a mapped range of one fd (memfd, dma-buf): the
 * list of their allocations, which find() searches, and exports by dup.
 */
struct pier_fd_memory {
	struct pier_own_memory own;
	int fd;		 /* exports it */
	uint64_t offset; /* of the range in the fd; on a page */
	void *base;	 /* a mapping, which nothing else shares */
	uint64_t length; /* of the range and the mapping; whole pages */
	bool cpu;	 /* the CPU can use the mapping */
};

/*
 * Make an allocation of `range`: its fd, offset, base, length and cpu. The fd and the
 * mapping are consumed, also on failure.
 */
int pier_fd_memory_consume(struct pier_own_list *list, const struct pier_fd_memory *range,
			   struct pier_memory *ret_memory);

/* free() and release(): the last user unmaps the range and closes the fd. */
void pier_fd_memory_put(struct pier_memory *memory);

int pier_fd_memory_export(const struct pier_memory *memory,
			  const struct pier_backend_request *request,
			  struct pier_backend_export *ret_export);
void pier_fd_memory_close_export(struct pier_backend_export *dmabuf);

/* begin_cpu() and end_cpu() of dma-bufs. */
int pier_fd_memory_begin_cpu(const struct pier_memory *memory, bool write);
int pier_fd_memory_end_cpu(const struct pier_memory *memory, bool write);

/*
 * A memfd of `length` bytes with these seals (F_SEAL_...).
 *
 * ret_fd  the caller's to close
 */
int pier_create_memfd(const char *name, uint64_t length, int seals, int *ret_fd);

/*
 * Map all of a file, shared, for reading and writing, and make an allocation of that.
 *
 * what      the kind of file, for the sentence
 * exported  the fd that exports the same memory; consumed on success
 */
int pier_fd_memory_map(struct pier_own_list *list, const char *what, int fd,
		       int *exported, uint64_t length, struct pier_memory *ret_memory);

/*
 * `length` in whole host pages. Errors: -ENOMEM that does not fit a file.
 */
int pier_whole_pages(const char *what, uint64_t length, uint64_t *ret_length);

#endif
