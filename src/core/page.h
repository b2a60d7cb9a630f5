/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_PAGE_H
#define PIER_CORE_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The page rule. The kernel refuses a dma-buf registration whose offset and
 * iova differ modulo the page (uverbs' REG_DMABUF_MR handler: (offset ^ iova) &
 * ~PAGE_MASK gives EINVAL), and the drivers of device memory export whole host
 * pages only. So for the range [address, address + length) one exports the
 * pages around it, and the range begins at `offset` in them.
 */
struct pier_page_range {
	uint64_t base;	 /* address rounded down to the page: export from here */
	uint64_t length; /* whole pages up to the end of the range */
	uint64_t offset; /* of the address in the export: address - base */
	uint64_t iova;	 /* the address itself, so offset == iova modulo the page */
};

/*
 * page is a power of two. False, and nothing written, when length is 0 or the
 * pages around the range end at 2^64 or past it.
 */
bool pier_page_range(uint64_t address, uint64_t length, uint64_t page,
		     struct pier_page_range *ret_range);

/* Whether the kernel would accept the pair for a dma-buf registration. */
static inline bool pier_page_agree(uint64_t offset, uint64_t iova, uint64_t page)
{
	return ((offset ^ iova) & (page - 1)) == 0;
}

/* Asks the kernel for the page of the host, and keeps it in pier_known_page. */
uint64_t pier_ask_host_page(void);

/* 0: not asked yet. Hidden here too: no detour through the GOT. */
extern _Atomic(uint64_t) pier_known_page __attribute__((visibility("hidden")));

/* The page of the host: 4, 16 or 64 KiB. Every registration needs it several times. */
static inline uint64_t pier_host_page(void)
{
	uint64_t page = atomic_load_explicit(&pier_known_page, memory_order_relaxed);

	return page ? page : pier_ask_host_page();
}

#endif
