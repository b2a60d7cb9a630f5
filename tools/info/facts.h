/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_INFO_FACTS_H
#define PIER_TOOLS_INFO_FACTS_H

#include <arpa/inet.h>

#include <pier/pier.h>

/* What `pier info` prints about one device. */
struct device_facts {
	struct pier_device_info info;
	struct pier_device *device;   /* NULL: it could not be opened or queried */
	char error[512];	      /* the reason, if device is NULL */
	struct pier_device_attr attr; /* valid if device is not NULL */
	char no_channels[512];	      /* the reason; "": it has channels */
	struct pier_location location;
};

/* What it prints about one unit of memory, which is a GPU. */
struct unit_facts {
	const struct pier_memory_unit *unit;
	struct pier_near_device *near; /* nearest first */
	size_t near_count;
	char near_error[512]; /* why there is no list; "" */
};

/* Open and query the device; the caller closes ret_facts->device. */
void read_device_facts(const struct pier_device_info *info,
		       struct device_facts *ret_facts);
/*
 * Why there is no RDMA device. NULL if the list has one: soft0 does not count. Unsets
 * PIER_DEVICE. The text is valid until the next call of the library.
 */
const char *read_no_device_reason(const struct pier_device_info *devices, size_t count);
/* List the devices near the unit; the caller frees ret_facts->near. */
void read_unit_facts(const struct pier_memory_unit *unit, struct unit_facts *ret_facts);

const char *link_layer_name(enum pier_link_layer layer);
const char *gid_type_name(enum pier_gid_type type);
/* Returns whether the GID is in use, and writes it in the notation of IPv6 addresses. */
int read_gid(struct pier_device *device, uint32_t port, uint32_t index,
	     struct pier_gid_entry *ret_entry, char ret_text[INET6_ADDRSTRLEN]);

#endif
