/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "buffer/near.h"
#include "device/device.h"
#include "device/topology.h"
#include "rails.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/log.h"

enum {
	GIDS_MAX = 256, /* the range of sgid_index of struct ibv_global_route */
};

struct description {
	struct pier_rails rails;
	struct pier_near_device *near; /* all RDMA devices */
	size_t near_count;
	struct ifaddrs *addresses; /* of this network namespace */
};

/* What the GIDs of a port say. */
struct gid_summary {
	uint8_t all, local; /* PIER_RAIL_IPV4 and others; those of local interfaces */
	uint8_t subnet[16], subnet_bits;
};

static uint8_t classify_gid(const struct pier_gid_entry *entry)
{
	struct in6_addr address;

	memcpy(&address, entry->gid, sizeof(address));
	if (IN6_IS_ADDR_UNSPECIFIED(&address) || entry->type == PIER_GID_IB)
		return 0;
	if (entry->type == PIER_GID_ROCE_V1)
		return PIER_RAIL_ROCE_V1;
	if (IN6_IS_ADDR_V4MAPPED(&address))
		return PIER_RAIL_IPV4;
	return IN6_IS_ADDR_LINKLOCAL(&address) ? PIER_RAIL_LINK_LOCAL : PIER_RAIL_IPV6;
}

/* An address in the form of a GID, or its netmask. Returns false if it is of no IP. */
static bool make_gid(const struct sockaddr *address, uint8_t prefix, uint8_t ret_gid[16])
{
	if (address && address->sa_family == AF_INET) {
		memset(ret_gid, prefix ? 0xff : 0, 16);
		ret_gid[10] = ret_gid[11] = 0xff;
		memcpy(ret_gid + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
		return true;
	}
	if (!address || address->sa_family != AF_INET6)
		return false;
	memcpy(ret_gid, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
	return true;
}

/* The netmask of the local interface that has the address of a GID. */
static bool find_netmask(const struct ifaddrs *addresses, const uint8_t gid[16],
			 uint8_t ret_mask[16])
{
	uint8_t address[16];

	for (; addresses; addresses = addresses->ifa_next) {
		if (make_gid(addresses->ifa_addr, 0, address) &&
		    memcmp(address, gid, 16) == 0 &&
		    make_gid(addresses->ifa_netmask, 0xff, ret_mask))
			return true;
	}
	return false;
}

/* IPv4 goes before IPv6, as in the choice of a channel's GID. */
static void set_subnet(struct gid_summary *summary, const uint8_t gid[16],
		       const uint8_t mask[16])
{
	summary->subnet_bits = 0;
	for (int i = 0; i < 16; i++) {
		summary->subnet[i] = gid[i] & mask[i];
		summary->subnet_bits += (uint8_t)__builtin_popcount(mask[i]);
	}
}

static void summarise_gid(const struct description *description,
			  const struct pier_gid_entry *entry, struct gid_summary *summary)
{
	uint8_t kind = classify_gid(entry), mask[16];

	summary->all |= kind;
	if (!kind || !find_netmask(description->addresses, entry->gid, mask))
		return;
	if ((kind == PIER_RAIL_IPV4 && !(summary->local & PIER_RAIL_IPV4)) ||
	    (kind == PIER_RAIL_IPV6 && !summary->subnet_bits))
		set_subnet(summary, entry->gid, mask);
	summary->local |= kind;
}

/*
 * GIDs of interfaces in other network namespaces count only if there are no others. An
 * entry that is empty, or cannot be read, is skipped.
 */
static void add_gids(const struct description *description, struct pier_device *device,
		     uint32_t count, struct pier_rail_port *port)
{
	struct gid_summary summary = { 0 };
	struct pier_gid_entry entry;

	for (uint32_t i = 0; i < count && i < GIDS_MAX; i++) {
		if (pier_query_gid(device, port->port, i, &entry) == 0)
			summarise_gid(description, &entry, &summary);
	}
	port->gids = summary.local ? summary.local : summary.all;
	memcpy(port->subnet, summary.subnet, sizeof(port->subnet));
	port->subnet_bits = summary.subnet_bits;
}

/* GID 0 has the subnet prefix (InfiniBand Architecture Specification, volume 1, 4.1.1).
 */
static void add_prefix(struct pier_device *device, struct pier_rail_port *port)
{
	struct pier_gid_entry entry;

	if (pier_query_gid(device, port->port, 0, &entry))
		return;
	memcpy(port->subnet, entry.gid, 8);
	port->subnet_bits = 64;
}

static void add_distance(const struct description *description, const char *name,
			 struct pier_rail_port *port)
{
	for (size_t i = 0; i < description->near_count; i++) {
		if (strcmp(description->near[i].name, name) == 0) {
			port->distance = description->near[i].distance;
			port->speed = description->near[i].speed;
		}
	}
}

static int add_port(struct description *description, struct pier_device *device,
		    const char *name, uint32_t number, const struct pier_port_attr *attr)
{
	/* Not pier_device_name(), which may have the prefix of a plan of faults. */
	const char *plain = device->context->device->name;
	struct pier_rail_port *port = &description->rails.ports[description->rails.count];

	if (description->rails.count == PIER_RAILS_MAX)
		return pier_fail(E2BIG, "rails: more than %d ports: name fewer devices",
				 PIER_RAILS_MAX);
	*port = (struct pier_rail_port){
		.port = number,
		.kind = strcmp(plain, PIER_SOFT_DEVICE) == 0 ? PIER_RAIL_SOFT
							     : PIER_RAIL_VERBS,
		.link_layer = attr->link_layer,
		.distance = PIER_DISTANCE_UNKNOWN,
	};
	snprintf(port->device, sizeof(port->device), "%s", name);
	add_distance(description, plain, port);
	if (port->link_layer == PIER_LINK_INFINIBAND)
		add_prefix(device, port);
	else if (port->kind == PIER_RAIL_VERBS)
		add_gids(description, device, attr->gid_count, port);
	description->rails.count++;
	return 0;
}

static int add_ports(struct description *description, struct pier_device *device,
		     const char *name)
{
	uint32_t before = description->rails.count;
	int error = pier_device_check_channels(device);

	for (uint32_t i = 1; !error && i <= device->limits.phys_port_cnt; i++) {
		struct pier_port_attr attr;

		error = pier_query_port(device, i, &attr);
		if (!error && attr.active && attr.link_layer != PIER_LINK_UNSPECIFIED)
			error = add_port(description, device, name, i, &attr);
	}
	if (!error && description->rails.count == before)
		error = pier_fail(ENETDOWN, "%s has no active port", name);
	return error;
}

static int add_device(struct description *description, const char *name)
{
	struct pier_device *device;
	int error;

	if (strlen(name) >= sizeof(description->rails.ports[0].device))
		return pier_fail(EINVAL, "rails: \"%s\": a name has at most 63 bytes",
				 name);
	error = pier_open_in_order(name, NULL, 0, &device);
	if (error)
		return error;
	error = add_ports(description, device, name);
	pier_close_device(device);
	return error;
}

static int add_named_devices(struct description *description, const char *names)
{
	char *copy, *rest, *name;
	int error = 0;

	/* A plan of faults may have commas. */
	if (strncmp(names, PIER_FAULT_DEVICE ":", sizeof(PIER_FAULT_DEVICE)) == 0)
		return add_device(description, names);
	copy = strdup(names);
	if (!copy)
		return pier_fail(ENOMEM, "no memory for names of devices");
	for (name = strtok_r(copy, ",", &rest); name && !error;
	     name = strtok_r(NULL, ",", &rest))
		error = add_device(description, name);
	free(copy);
	return error;
}

static void add_working_devices(struct description *description)
{
	for (size_t i = 0; i < description->near_count; i++) {
		const char *name = description->near[i].name;

		if (add_device(description, name))
			pier_info("%s is passed over: %s", name, pier_error_message());
	}
}

/* The sentence has the reason for each device. */
static int fail_without_device(const struct pier_buffer *buffer)
{
	struct pier_device *device;
	int error = pier_open_near_in(PIER_SYSFS, buffer, &device);

	if (error)
		return error;
	/* It became usable meanwhile. */
	pier_close_device(device);
	return pier_fail(ENODEV, "no RDMA device could be used; now one can: try again");
}

static int describe_devices(struct description *description, const char *names)
{
	int error = 0;

	if (names)
		error = add_named_devices(description, names);
	else
		add_working_devices(description);
	if (error)
		return error;
	return getrandom(&description->rails.salt, sizeof(description->rails.salt), 0) ==
			       sizeof(description->rails.salt)
		       ? 0
		       : pier_fail(EIO, "getrandom() returned too few bytes");
}

int pier_rails_describe(const struct pier_buffer *buffer, const char *devices,
			void *ret_bytes, size_t size)
{
	PIER_ENTRY();
	const char *chosen = secure_getenv("PIER_DEVICE");
	struct description description = { .near = NULL };
	int result;

	if (!devices && chosen && chosen[0])
		devices = chosen;
	result = pier_list_near_buffer(PIER_SYSFS, buffer, &description.near,
				       &description.near_count);
	if (result)
		return result;
	if (getifaddrs(&description.addresses))
		description.addresses = NULL;
	result = describe_devices(&description, devices);
	freeifaddrs(description.addresses);
	pier_near_device_list_free(description.near);
	if (!result && description.rails.count == 0)
		result = fail_without_device(buffer);
	return result ? result : pier_rails_pack(&description.rails, ret_bytes, size);
}
