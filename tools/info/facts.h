/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_INFO_FACTS_H
#define PIER_TOOLS_INFO_FACTS_H

#include <arpa/inet.h>

#include <pier/pier.h>

/* How a device reaches memory. */
struct reach_facts {
	const char *memory; /* as the user named it; NULL: nobody asked */
	char error[1536];   /* why it does not; "" */
	enum pier_path path;
	enum pier_mapping mapping;
	char reason[1024]; /* of pier_mr_reason() */
	char canary[1024]; /* of struct pier_mr_info */
};

/* What `pier info` prints about one device. */
struct device_facts {
	struct pier_device_info info;
	struct pier_device *device;   /* NULL: it could not be opened or queried */
	char error[512];	      /* the reason, if device is NULL */
	struct pier_device_attr attr; /* valid if device is not NULL */
	char no_channels[512];	      /* the reason; "": it has channels */
	struct pier_location location;
	struct reach_facts reach;
};

/* What it prints about one unit of memory, which is a GPU. */
struct unit_facts {
	const struct pier_memory_unit *unit;
	struct pier_near_device *near; /* nearest first */
	uint32_t near_count;
	char near_error[512]; /* why there is no list; "" */
};

/*
 * Open and query the device; the caller closes ret_facts->device.
 *
 * memory  what the device shall reach, as for pier_buffer_alloc(), or NULL
 */
void read_device_facts(const struct pier_device_info *info, const char *memory,
		       struct device_facts *ret_facts);
/*
 * Why there is no RDMA device. NULL if the list has one: soft0 does not count. Unsets
 * PIER_DEVICE. The text is valid until the next call of the library.
 */
const char *read_no_device_reason(const struct pier_device_info *devices, size_t count);
/* The name of a variable that switches a path (pier(1)); NULL: there are no more. */
const char *path_switch_name(size_t index);
/* List the devices near the unit; the caller frees ret_facts->near. */
void read_unit_facts(const struct pier_memory_unit *unit, struct unit_facts *ret_facts);

const char *link_layer_name(enum pier_link_layer layer);
const char *gid_type_name(enum pier_gid_type type);
/* Returns whether the GID is in use, and writes it in the notation of IPv6 addresses. */
int read_gid(struct pier_device *device, uint32_t port, uint32_t index,
	     struct pier_gid_entry *ret_entry, char ret_text[INET6_ADDRSTRLEN]);

#endif
