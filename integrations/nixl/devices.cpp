/* SPDX-License-Identifier: BSD-3-Clause */
#include "devices.hpp"

#include <algorithm>
#include <cerrno>

#include "clock.hpp"

namespace pier_nixl
{

device_list::~device_list()
{
	for (const device &one : all) {
		pier_mr_cache_destroy(one.cache);
		pier_pd_dealloc(one.pd);
		pier_device_close(one.handle);
	}
}

/* The destructor also closes a device that is open in part. */
int device_list::open_one(const std::string &name, const settings &chosen)
{
	struct pier_mr_cache_attr cache_attr;
	struct pier_device_attr attr;
	int error;

	if (find(name) >= 0)
		return 0;
	all.push_back({ name, nullptr, nullptr, nullptr, 0 });
	device &one = all.back();

	error = pier_device_open(name.c_str(), &one.handle);
	if (!error)
		error = pier_device_query(one.handle, &attr, sizeof(attr));
	if (!error)
		error = pier_pd_alloc(one.handle, &one.pd);
	if (error)
		return error;
	one.max_qp_wr = attr.max_qp_wr;
	if (!chosen.cache)
		return 0;
	pier_mr_cache_attr_init(&cache_attr);
	cache_attr.policy = chosen.policy;
	return pier_mr_cache_create(one.pd, &cache_attr, &one.cache);
}

/*
 * Paired with itself, an end returns its ports that are alike: as fast and as near as
 * the best. Only these can be rails together.
 */
int device_list::open_all(const settings &chosen)
{
	const char *names = chosen.device.empty() ? nullptr : chosen.device.c_str();
	std::vector<pier_rail_pair> pairs(PIER_RAILS_MAX);
	uint8_t bytes[PIER_RAILS_SIZE_MAX];
	int size, count, error;

	size = pier_rails_describe(nullptr, names, bytes, sizeof(bytes));
	if (size < 0)
		return size;
	description.assign((const char *)bytes, (size_t)size);
	count = pier_rails_choose(bytes, (size_t)size, bytes, (size_t)size, pairs.data(),
				  (uint32_t)pairs.size(), sizeof(pairs[0]));
	if (count < 0)
		return count;
	for (int i = 0; i < count; i++) {
		error = open_one(pairs[(size_t)i].device, chosen);
		if (error)
			return error;
	}
	return 0;
}

int device_list::find(const std::string &name) const
{
	for (size_t i = 0; i < all.size(); i++)
		if (all[i].name == name)
			return (int)i;
	return -1;
}

bool device_list::has_hardware() const
{
	return !std::ranges::all_of(all, [](const device &one) {
		return one.name.ends_with(PIER_SOFT_DEVICE);
	});
}

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

	error = pier_device_query_port(device.handle, pair.port, &port, sizeof(port));
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
				  (uint32_t)pairs.size(), sizeof(pairs[0]));
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
