/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the checks. */
#ifndef REGION_CHECKS_H
#define REGION_CHECKS_H

#include "regions.h"

enum {
	page = 4096,
	pages = 16
};

/* Reads a module parameter, which counts in the kernel. */
int counted(const char *name);

void fill(unsigned char *bytes, size_t length, unsigned int seed);
struct ibv_mr *host_memory(const struct device *device, size_t length);
void free_host_memory(struct ibv_mr *mr);
/* Reads the region's bytes, which must be fill(1), then writes others and checks them. */
void exchange(const struct device *device, const struct region *region,
	      const struct buffer *buffer, size_t offset);

/* region_bytes.c */
void check_bytes(const struct device *device);
void check_closed(const struct device *device);
void check_local(const struct device *device);
void check_access(const struct device *device);
void check_huge(const struct device *device);
void check_across(const struct device *device, const char *name);

/* region_faults.c */
void check_faults(const struct device *device);
void check_late(const struct device *device);
void check_interrupted(const struct device *device);
void check_hold_exporter(const struct device *device);
void check_revoked(const struct device *device);

#endif
