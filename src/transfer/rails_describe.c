/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "buffer/near.h"
#include "channel/setup/attr.h"
#include "device/device.h"
#include "device/gid_table.h"
#include "device/open.h"
#include "device/topology.h"
#include "rails.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/log.h"

struct description {
	const char *sysfs; /* its root */
	struct pier_rails rails;
	struct pier_near_device *near; /* all RDMA devices */
	uint32_t near_count;
	struct ifaddrs *addresses; /* of this network namespace */
	/* Of PIER_CHANNEL, which channels will have: */
	uint32_t port;	    /* 0: any */
	uint32_t gid_index; /* PIER_UNSET: any */
};

static uint8_t kind_of_gid(const struct ibv_gid_entry *entry)
{
	static const uint8_t kinds[] = {
		[PIER_GID_UNUSABLE] = 0,
		[PIER_GID_OTHER] = 0,
		[PIER_GID_V1] = PIER_RAIL_ROCE_V1,
		[PIER_GID_V2_LINK_LOCAL] = PIER_RAIL_LINK_LOCAL,
		[PIER_GID_V2_IPV6] = PIER_RAIL_IPV6,
		[PIER_GID_V2_IPV4] = PIER_RAIL_IPV4,
	};

	return kinds[pier_rank_gid(entry)];
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

/* The netmask and the name of the local interface that has the address of a GID, or NULL.
 */
static const char *find_netmask(const struct ifaddrs *addresses, const uint8_t gid[16],
				uint8_t ret_mask[16])
{
	uint8_t address[16];

	for (; addresses; addresses = addresses->ifa_next) {
		if (make_gid(addresses->ifa_addr, 0, address) &&
		    memcmp(address, gid, 16) == 0 &&
		    make_gid(addresses->ifa_netmask, 0xff, ret_mask))
			return addresses->ifa_name;
	}
	return NULL;
}

/* The attributes of a route, or of one of its next hops. */
static bool leads_over(struct rtattr *attribute, int length, int index)
{
	bool gateway = false;

	for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length)) {
		if (attribute->rta_type == RTA_GATEWAY || attribute->rta_type == RTA_VIA)
			gateway = true;
		else if (attribute->rta_type == RTA_OIF &&
			 memcmp(RTA_DATA(attribute), &index, sizeof(index)) != 0)
			return false;
	}
	return gateway;
}

/* The next hops of a route of several. */
static bool hops_lead_over(struct rtattr *attribute, int index)
{
	struct rtnexthop *hop = RTA_DATA(attribute);
	int left = (int)RTA_PAYLOAD(attribute);

	for (; RTNH_OK(hop, left);
	     left -= RTNH_ALIGN(hop->rtnh_len), hop = RTNH_NEXT(hop))
		if (hop->rtnh_ifindex == index &&
		    leads_over(RTNH_DATA(hop), (int)hop->rtnh_len - (int)RTNH_LENGTH(0),
			       index))
			return true;
	return false;
}

static bool route_leads_over(const struct nlmsghdr *message, int index)
{
	struct rtmsg *route = NLMSG_DATA(message);
	int length = (int)RTM_PAYLOAD(message), left = length;
	struct rtattr *first = RTM_RTA(route), *attribute = first;

	if (message->nlmsg_type != RTM_NEWROUTE || route->rtm_type != RTN_UNICAST)
		return false;
	for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
		if (attribute->rta_type == RTA_MULTIPATH)
			return hops_lead_over(attribute, index);
	return leads_over(first, length, index);
}

/*
 * Whether the kernel has a route through a gateway over this network interface. In all
 * tables: a host with several NICs often has one for each (ip-rule(8)).
 */
static bool has_router(const char *interface)
{
	struct {
		struct nlmsghdr header;
		struct rtmsg route;
	} request = {
		.header = { .nlmsg_len = sizeof(request),
			    .nlmsg_type = RTM_GETROUTE,
			    .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
	};
	_Alignas(struct nlmsghdr) char answer[32768];
	int index = (int)if_nametoindex(interface);
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	bool found = false,
	     done = fd < 0 || index == 0 || send(fd, &request, sizeof(request), 0) < 0;

	while (!done) {
		int left = (int)recv(fd, answer, sizeof(answer), 0);
		struct nlmsghdr *message = (struct nlmsghdr *)(void *)answer;

		done = left <= 0;
		/* The last message may end before its padding. */
		for (; left > 0 && NLMSG_OK(message, (uint32_t)left);
		     message = NLMSG_NEXT(message, left)) {
			done = done || message->nlmsg_type == NLMSG_DONE ||
			       message->nlmsg_type == NLMSG_ERROR;
			found = found || route_leads_over(message, index);
		}
	}
	pier_close_fd(fd);
	return found;
}

static void set_subnet(struct pier_rail_port *port, const uint8_t gid[16],
		       const uint8_t mask[16])
{
	for (int i = 0; i < 16; i++) {
		port->subnet[i] = gid[i] & mask[i];
		port->subnet_bits += (uint8_t)__builtin_popcount(mask[i]);
	}
}

/* The subnet is that of the first routable GID with an address here. */
static void add_gid(const struct description *description,
		    const struct ibv_gid_entry *entry, struct pier_rail_port *port)
{
	uint8_t kind = kind_of_gid(entry), mask[16];
	const char *interface;

	port->gids |= kind;
	if (!(kind & (PIER_RAIL_IPV4 | PIER_RAIL_IPV6)) || port->subnet_bits)
		return;
	interface = find_netmask(description->addresses, entry->gid.raw, mask);
	if (!interface)
		return;
	set_subnet(port, entry->gid.raw, mask);
	if (has_router(interface))
		port->gids |= PIER_RAIL_ROUTED;
}

/*
 * Those that a channel of the port offers to its peer, the best first. No GID: no peer
 * can be reached.
 */
static void add_gids(const struct description *description, struct pier_device *device,
		     uint32_t count, struct pier_rail_port *port)
{
	uint8_t number = (uint8_t)port->port;
	struct pier_shared_gids *gids;
	struct ibv_gid_entry named;

	if (description->gid_index != PIER_UNSET) {
		if (!device->provider->query_gid(device->context, number,
						 description->gid_index, &named))
			add_gid(description, &named, port);
		return;
	}
	if (pier_list_gids(device, number, (int)count, &gids))
		return;
	for (uint32_t i = 0; i < gids->list.count; i++)
		add_gid(description, &gids->list.entries[i], port);
	pier_drop_gids(gids);
}

/* GID 0 has the subnet prefix (InfiniBand Architecture Specification, volume 1, 4.1.1).
 */
static void add_prefix(struct pier_device *device, struct pier_rail_port *port)
{
	struct pier_gid_entry entry;

	if (pier_device_query_gid(device, port->port, 0, &entry, sizeof(entry)))
		return;
	memcpy(port->subnet, entry.gid, 8);
	port->subnet_bits = 64;
}

/* The speed of the NIC is that of its fastest port. count: of its ports */
static void add_distance(const struct description *description, const char *name,
			 uint32_t count, struct pier_rail_port *port)
{
	uint32_t slow = pier_slow_port_speed(description->sysfs, name, port->port, count);

	for (size_t i = 0; i < description->near_count; i++) {
		if (strcmp(description->near[i].name, name) == 0) {
			port->distance = description->near[i].distance;
			port->speed = description->near[i].speed;
		}
	}
	if (slow && slow < port->speed)
		port->speed = slow;
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
	add_distance(description, plain, device->limits.phys_port_cnt, port);
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
	uint32_t before = description->rails.count, count = device->limits.phys_port_cnt;
	uint32_t first = description->port ? description->port : 1;
	uint32_t last = description->port ? description->port : count;
	int error = pier_device_check_channels(device);

	if (!error && description->port > count)
		error = pier_fail(EINVAL,
				  "PIER_CHANNEL: port %u is not in 1 to %u, the ports of "
				  "%s",
				  description->port, count, name);
	for (uint32_t i = first; !error && i <= last; i++) {
		struct pier_port_attr attr;

		error = pier_device_query_port(device, i, &attr, sizeof(attr));
		if (!error && attr.active && attr.link_layer != PIER_LINK_UNSPECIFIED)
			error = add_port(description, device, name, i, &attr);
	}
	if (!error && description->rails.count == before)
		error = pier_fail(
			ENETDOWN,
			"%s has no active port%s: check the cable, the link and "
			"(InfiniBand) the subnet manager",
			name, description->port ? " that PIER_CHANNEL allows" : "");
	/* The device is passed over with all of its ports. */
	if (error)
		description->rails.count = before;
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
	pier_device_close(device);
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
	if (!error && description->rails.count == 0)
		error = pier_fail(EINVAL, "rails: \"%s\" names no device", names);
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
static int fail_without_device(const struct description *description,
			       const struct pier_buffer *buffer)
{
	struct pier_device *device;
	int error = pier_open_near_in(description->sysfs, buffer, &device);

	if (error)
		return error;
	pier_device_close(device);
	if (description->port)
		return pier_fail(ENODEV,
				 "no RDMA device has an active port %u, which "
				 "PIER_CHANNEL demands",
				 description->port);
	/* It became usable meanwhile. */
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

static int read_demands(struct description *description)
{
	struct pier_channel_attr attr;
	int error = pier_read_environment(&attr);

	description->port = attr.port == PIER_UNSET ? 0 : attr.port;
	description->gid_index = attr.gid_index;
	return error;
}

int pier_rails_describe_in(const char *sysfs, const struct pier_buffer *buffer,
			   const char *devices, void *ret_bytes, size_t size)
{
	const char *chosen = secure_getenv("PIER_DEVICE");
	struct description description = { .sysfs = sysfs };
	int result = read_demands(&description);

	if (result)
		return result;
	if (devices || !chosen || !chosen[0])
		chosen = NULL;
	if (chosen)
		devices = chosen;
	result = pier_list_near_buffer(sysfs, buffer, &description.near,
				       &description.near_count);
	if (result)
		return result;
	if (getifaddrs(&description.addresses))
		description.addresses = NULL;
	result = describe_devices(&description, devices);
	/* Not pier_fail_because(): closing the devices may have succeeded since. */
	if (result && chosen)
		result = pier_fail(-result, "PIER_DEVICE=%s: %s", chosen,
				   pier_error_message());
	freeifaddrs(description.addresses);
	free(description.near);
	if (!result && description.rails.count == 0)
		result = fail_without_device(&description, buffer);
	return result ? result : pier_rails_pack(&description.rails, ret_bytes, size);
}

int pier_rails_describe(const struct pier_buffer *buffer, const char *devices,
			void *ret_bytes, size_t size)
{
	PIER_ENTRY();

	return pier_rails_describe_in(PIER_SYSFS, buffer, devices, ret_bytes, size);
}
