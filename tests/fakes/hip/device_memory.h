/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_DEVICE_MEMORY_H
#define TESTS_FAKES_HIP_DEVICE_MEMORY_H

#include <stddef.h>

/*
 * A device's memory: pages of a memfd with two mappings, one for the driver, and one that
 * is the application's address but cannot be accessed. If /dev/udmabuf can be opened, the
 * memory is a dma-buf.
 */
struct device_memory {
	void *driver;  /* readable and writable */
	void *address; /* the application's: PROT_NONE */
	size_t size;
	int fd;			    /* the dma-buf, or the memfd */
	struct device_memory *copy; /* of device_memory_export_copy(), or NULL */
};

/*
 * size, alignment  whole pages; the alignment a power of two
 *
 * Returns 0 or -errno.
 */
int device_memory_create(size_t size, size_t alignment, struct device_memory *ret_memory);
/* The same in reserved address space, which is released with it. */
int device_memory_create_at(void *space, size_t size, struct device_memory *ret_memory);
void device_memory_destroy(struct device_memory *memory);

/* Returns an fd of all of it, not close-on-exec, or -errno. */
int device_memory_export(const struct device_memory *memory);

/*
 * The same, of other pages, which begin with the bytes of the first such call and which
 * `driver` and `address` never see.
 */
int device_memory_export_copy(struct device_memory *memory);

#endif
