/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <pier/mr.h>

#include "device.h"
#include "core/error.h"

static_assert((int)PIER_LINK_INFINIBAND == IBV_LINK_LAYER_INFINIBAND, "as verbs");
static_assert((int)PIER_LINK_ETHERNET == IBV_LINK_LAYER_ETHERNET, "as verbs");
static_assert((int)PIER_GID_IB == IBV_GID_TYPE_IB, "as verbs");
static_assert((int)PIER_GID_ROCE_V1 == IBV_GID_TYPE_ROCE_V1, "as verbs");
static_assert((int)PIER_GID_ROCE_V2 == IBV_GID_TYPE_ROCE_V2, "as verbs");

int pier_query_device(struct pier_device *device, struct pier_device_attr *ret_attr)
{
	struct ibv_device_attr limits;
	struct pier_device_attr attr = { 0 };
	int error = pier_check_process(&device->object);

	if (error)
		return error;
	pier_clear_error();
	error = device->provider->query_device(device->context, &limits);
	if (error)
		return pier_fail_because(error, "querying %s", device->name);
	snprintf(attr.name, sizeof(attr.name), "%s", device->name);
	snprintf(attr.provider, sizeof(attr.provider), "%s", device->provider->name);
	snprintf(attr.firmware, sizeof(attr.firmware), "%s", limits.fw_ver);
	attr.max_mr_size = limits.max_mr_size;
	attr.page_sizes = limits.page_size_cap;
	attr.max_qp_wr = (uint32_t)limits.max_qp_wr;
	attr.max_sge = (uint32_t)limits.max_sge;
	attr.max_cqe = (uint32_t)limits.max_cqe;
	attr.port_count = limits.phys_port_cnt;
	/* Verbs reports reads and atomics as int; a QP takes 8 bits. */
	attr.max_rd_atomic = limits.max_qp_rd_atom > UINT8_MAX
				     ? UINT8_MAX
				     : (uint8_t)limits.max_qp_rd_atom;
	attr.dmabuf = device->dmabuf;
	attr.memfd_as_dmabuf = device->provider->takes_memfd;
	attr.atomics = !(device->lacking_access & PIER_ACCESS_REMOTE_ATOMIC);
	attr.memory_windows = !(device->lacking_access & PIER_ACCESS_MW_BIND);
	attr.on_demand = !(device->lacking_access & PIER_ACCESS_ON_DEMAND);
	attr.counters = device->provider->bind_counter != NULL;
	attr.max_requested_key = device->provider->max_key;
	attr.max_joined_ranges = device->provider->max_parts;
	*ret_attr = attr;
	return 0;
}

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

/* Ports have 8 bits in verbs: a larger number must not wrap into range. */
static int check_port(const struct pier_device *device, uint32_t port)
{
	int error = pier_check_process(&device->object);

	if (error)
		return error;
	if (port >= 1 && port <= device->limits.phys_port_cnt)
		return 0;
	return pier_fail(EINVAL, "%s has no port %u: its ports are 1 to %u", device->name,
			 port, device->limits.phys_port_cnt);
}

int pier_query_port(struct pier_device *device, uint32_t port,
		    struct pier_port_attr *ret_attr)
{
	struct ibv_port_attr attr;
	int error = check_port(device, port);

	if (error)
		return error;
	pier_clear_error();
	error = device->provider->query_port(device->context, (uint8_t)port, &attr);
	if (error)
		return pier_fail_because(error, "querying port %u of %s", port,
					 device->name);
	*ret_attr = (struct pier_port_attr){
		.active = attr.state == IBV_PORT_ACTIVE,
		.link_layer = (enum pier_link_layer)attr.link_layer,
		.lid = attr.lid,
		.active_mtu = mtu_bytes(attr.active_mtu),
		.max_mtu = mtu_bytes(attr.max_mtu),
		.max_msg_size = attr.max_msg_sz,
		.gid_count = (uint32_t)attr.gid_tbl_len,
	};
	return 0;
}

int pier_query_gid(struct pier_device *device, uint32_t port, uint32_t index,
		   struct pier_gid_entry *ret_entry)
{
	struct ibv_gid_entry entry;
	int error = check_port(device, port);

	if (error)
		return error;
	pier_clear_error();
	error = device->provider->query_gid(device->context, (uint8_t)port, index,
					    &entry);
	if (error)
		return pier_fail_because(error, "querying GID %u of port %u of %s", index,
					 port, device->name);
	memcpy(ret_entry->gid, entry.gid.raw, sizeof(ret_entry->gid));
	ret_entry->index = index;
	ret_entry->type = (enum pier_gid_type)entry.gid_type;
	return 0;
}
