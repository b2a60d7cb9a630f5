/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "port.h"

/* Whether the port is down, or cannot be asked because its device is gone. */
static bool explain_port(const struct rail *rail, char *ret_text, size_t size)
{
	struct pier_channel_attr channel;
	struct pier_port_attr port;

	pier_channel_attr_init(&channel);
	if (!rail->channel || pier_channel_query(rail->channel, &channel) < 0)
		return false;
	if (pier_query_port(rail->device, channel.port, &port) < 0)
		snprintf(ret_text, size, "%s", pier_error_message());
	else if (!port.active)
		snprintf(ret_text, size,
			 "port %u of %s is down: check the cable, the switch and "
			 "(InfiniBand) the subnet manager",
			 channel.port, pier_device_name(rail->device));
	else
		return false;
	return true;
}

static bool find_down_port(const struct transfer *transfer, char *ret_text, size_t size)
{
	for (uint32_t i = 0; i < transfer->link.rail_count; i++)
		if (explain_port(&transfer->link.rails[i], ret_text, size))
			return true;
	return false;
}

bool is_port_down(const struct transfer *transfer)
{
	char text[256];

	return find_down_port(transfer, text, sizeof(text));
}

void name_down_port(struct transfer *transfer)
{
	struct failure *failure = transfer->failure, symptom = *failure;
	char text[256];

	if (failure->status != EXIT_PEER || !find_down_port(transfer, text, sizeof(text)))
		return;
	snprintf(failure->text, sizeof(failure->text), "%s (%.*s)", text,
		 (int)(sizeof(failure->text) - sizeof(text) - sizeof(" ()")),
		 symptom.text);
	transfer->control->answers = true;
}
