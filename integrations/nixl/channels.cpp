/* SPDX-License-Identifier: BSD-3-Clause */
#include "channels.hpp"

#include <algorithm>
#include <cerrno>

#include "clock.hpp"

namespace pier_nixl
{

static int make_channel(const device_list &devices, const pier_rail_pair &pair,
			bool initiates, channel_end &ret_end)
{
	int index = devices.find(pair.device);
	struct pier_channel_attr attr;
	struct pier_port_attr port;
	int error;

	if (index < 0)
		return -ENODEV;
	const device_list::device &device = devices.all[(size_t)index];

	error = pier_query_port(device.handle, pair.port, &port);
	if (error)
		return error;
	pier_channel_attr_init(&attr);
	attr.port = pair.port;
	attr.max_send_sge = 1;
	attr.max_recv_sge = 1;
	attr.max_send_wr = initiates
				   ? std::min<uint32_t>(PIER_NIXL_SENDS, device.max_qp_wr)
				   : 1;
	attr.max_recv_wr = initiates ? 1 : PIER_NIXL_RECEIVES;
	ret_end = { nullptr, (uint32_t)index, pair.peer_device, port.max_msg_size,
		    pair.speed };
	return pier_channel_create(device.pd, &attr, &ret_end.channel);
}

int make_channels(const device_list &devices, const std::string &theirs, uint32_t rails,
		  uint32_t timeout_s, bool initiates, int socket,
		  std::vector<channel_end> &ret_ends)
{
	auto end = clock_now() + std::chrono::seconds(timeout_s);
	std::vector<pier_rail_pair> pairs(std::min<uint32_t>(rails, PIER_RAILS_MAX));
	channel_end made;
	int count, error;

	count = pier_rails_choose(devices.description.data(), devices.description.size(),
				  theirs.data(), theirs.size(), pairs.data(),
				  (uint32_t)pairs.size());
	if (count < 0)
		return count;
	for (int i = 0; i < count; i++) {
		error = make_channel(devices, pairs[(size_t)i], initiates, made);
		if (error)
			return error;
		ret_ends.push_back(made);
		error = pier_channel_handshake(made.channel, socket, socket,
					       std::max(left_ms(end), 1));
		if (error)
			return error;
	}
	return 0;
}

} // namespace pier_nixl
