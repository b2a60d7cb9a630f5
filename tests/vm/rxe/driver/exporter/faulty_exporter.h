/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * What /dev/faulty_exporter understands.
 */

#ifndef FAULTY_EXPORTER_H
#define FAULTY_EXPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

enum faulty_kind {
	/* scattered pages, mapped by vmap() */
	FAULTY_NONE,
	/* pages in a row, mapped by their address */
	FAULTY_LINEAR,
	/* a fence keeps who looks until the bytes have arrived */
	FAULTY_LATE,
	/* cannot be mapped for the CPU at all */
	FAULTY_NO_VMAP,
	/* the mapping is of device memory, and says so */
	FAULTY_IOMEM,
	/* the mapping is of device memory, and does not say so */
	FAULTY_NO_PAGES,
	/* the mapping does not begin with a page */
	FAULTY_UNALIGNED,
	/* the mapping has the first page of a large folio in place of all */
	FAULTY_REPEATED,
	/* the mapping is good, but begin_cpu_access fails with EIO */
	FAULTY_BEGIN,
	/* the memory can be taken away from its importers: FAULTY_REVOKE */
	FAULTY_REVOCABLE,
};

struct faulty_export {
	__u32 kind;
	__u32 pages;
};

/* Returns the fd of a new dma-buf; byte n of it has the value n / 4096 + 1. */
#define FAULTY_EXPORT _IOW('p', 1, struct faulty_export)

/*
 * Takes the memory of the dma-buf with this fd away from all its importers, and
 * overwrites it once they have been told. EINVAL: it is not FAULTY_REVOCABLE.
 */
#define FAULTY_REVOKE _IOW('p', 2, __s32)

#endif /* FAULTY_EXPORTER_H */
