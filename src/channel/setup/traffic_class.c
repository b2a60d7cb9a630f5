/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <stdio.h>

#include "device/topology.h"
#include "traffic_class.h"

enum {
	/*
	 * DSCP 26, ECN-capable: the class that fabrics for RoCE v2 commonly keep free of
	 * loss, and UCX's choice (UCT_IB_DEFAULT_ROCEV2_DSCP).
	 */
	ROCE_V2_CLASS = 106,
};

/*
 * The administrator's setting for all RoCE v2 packets of the port. Only NVIDIA's drivers
 * have the file. UCX reads it, too (uct_ib_device_query_roce_tclass()).
 */
static uint8_t port_traffic_class(const char *sysfs, const char *device, uint32_t port)
{
	char path[PATH_MAX];
	unsigned int value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/tc/%u/traffic_class", sysfs,
		 device, port);
	file = fopen(path, "re");
	if (!file)
		return ROCE_V2_CLASS;
	if (fscanf(file, "Global tclass=%3u", &value) != 1 || value > UINT8_MAX)
		value = ROCE_V2_CLASS;
	fclose(file);
	return (uint8_t)value;
}

uint8_t pier_traffic_class_in(const char *sysfs, const struct pier_channel *channel)
{
	if (channel->attr.traffic_class != PIER_TRAFFIC_CLASS_PORT)
		return channel->attr.traffic_class;
	if (channel->link_layer != PIER_LINK_ETHERNET ||
	    channel->gid.gid_type != IBV_GID_TYPE_ROCE_V2)
		return 0;
	return port_traffic_class(sysfs, channel->pd->device->context->device->name,
				  channel->attr.port);
}

uint8_t pier_traffic_class(const struct pier_channel *channel)
{
	return pier_traffic_class_in(PIER_SYSFS, channel);
}
