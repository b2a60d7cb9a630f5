/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <pier/recovery.h>

#include "channel.h"
#include "channel/setup/connect.h"
#include "channel/setup/traffic_class.h"
#include "core/error.h"
#include "status.h"

static uint8_t issued_reads(const struct pier_channel *channel)
{
	int limit = channel->pd->device->limits.max_qp_init_rd_atom;

	if (channel->state == PIER_CHANNEL_CONNECTED)
		return channel->read_depth;
	return channel->attr.max_rd_atomic < limit ? channel->attr.max_rd_atomic
						   : (uint8_t)limit;
}

int pier_channel_query(const struct pier_channel *channel,
		       struct pier_channel_attr *ret_attr)
{
	struct pier_channel_attr attr = channel->attr;
	size_t size = ret_attr->size;

	if (size < offsetof(struct pier_channel_attr, cq_depth))
		return pier_fail(EINVAL,
				 "channel attributes: size %zu; begin with "
				 "pier_channel_attr_init()",
				 size);
	attr.mtu = channel->path_mtu ? channel->path_mtu : channel->port_mtu;
	attr.traffic_class = pier_traffic_class(channel);
	attr.max_rd_atomic = issued_reads(channel);
	attr.max_dest_rd_atomic = pier_served_reads(channel);
	attr.gid_index = (int)channel->gid.gid_index;
	attr.psn = channel->psn;
	attr.cq_depth = (uint32_t)channel->cq->cqe;
	attr.comp_vector = channel->completions.comp_vector;
	if (size > sizeof(attr))
		memset((char *)ret_attr + sizeof(attr), 0, size - sizeof(attr));
	memcpy(ret_attr, &attr, size < sizeof(attr) ? size : sizeof(attr));
	ret_attr->size = size;
	return 0;
}

int pier_channel_error(const struct pier_channel *channel,
		       struct pier_channel_failure *ret_failure)
{
	const struct pier_result *first = &channel->first;

	if (!channel->broken || !ret_failure)
		return channel->broken;
	ret_failure->first = *first;
	ret_failure->flushed = channel->flushed;
	ret_failure->error_class = first->status ? pier_status_class(first->status,
								     first->opcode)
						 : PIER_CLASS_STOPPED;
	snprintf(ret_failure->sentence, sizeof(ret_failure->sentence), "%s",
		 channel->cause);
	return channel->broken;
}
