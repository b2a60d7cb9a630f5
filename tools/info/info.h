/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_INFO_INFO_H
#define PIER_TOOLS_INFO_INFO_H

#include <arpa/inet.h>

#include <pier/pier.h>

/* What `pier info` found out about a device, before it is printed. */
struct device_facts {
	struct pier_device_info info;
	struct pier_device *device;   /* NULL: could not be opened or asked */
	char error[512];	      /* why not */
	struct pier_device_attr attr; /* valid with a device */
	struct pier_location location;
};

/* And about a unit of memory: a GPU. */
struct unit_facts {
	const struct pier_memory_unit *unit;
	struct pier_near_device *near; /* the nearest first */
	size_t near_count;
};

const char *link_layer_name(enum pier_link_layer layer);
const char *gid_type_name(enum pier_gid_type type);
/* Whether the entry is in use; writes it as IPv6 addresses are written. */
int read_gid(struct pier_device *device, uint32_t port, uint32_t index,
	     struct pier_gid_entry *ret_entry, char ret_text[INET6_ADDRSTRLEN]);

void print_device_text(const struct device_facts *facts);
void print_backends_text(const struct pier_backend_info *list, size_t count);
void print_unit_text(const struct unit_facts *facts);

struct json;
void print_device_json(struct json *json, const struct device_facts *facts);
void print_backends_json(struct json *json, const struct pier_backend_info *list,
			 size_t count);
void print_unit_json(struct json *json, const struct unit_facts *facts);

#endif
