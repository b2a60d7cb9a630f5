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

static int create_cache(struct pier_pd *pd, enum pier_policy policy,
			struct pier_mr_cache **ret_cache)
{
	struct pier_mr_cache_attr attr;

	pier_mr_cache_attr_init(&attr);
	attr.policy = policy;
	return pier_mr_cache_create(pd, &attr, ret_cache);
}

int device_list::open_one(const std::string &name, const settings &chosen)
{
	device one = { name, nullptr, nullptr, nullptr, 0 };
	struct pier_device_attr attr;
	int error;

	if (find(name) >= 0)
		return 0;
	error = pier_device_open(name.c_str(), &one.handle);
	if (error)
		return error;
	error = pier_device_query(one.handle, &attr, sizeof(attr));
	if (!error)
		error = pier_pd_alloc(one.handle, &one.pd);
	if (!error && chosen.cache)
		error = create_cache(one.pd, chosen.policy, &one.cache);
	if (error) {
		pier_pd_dealloc(one.pd);
		pier_device_close(one.handle);
		return error;
	}
	one.max_qp_wr = attr.max_qp_wr;
	all.push_back(one);
	return 0;
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
	const std::string soft = PIER_SOFT_DEVICE;

	for (const device &one : all)
		if (one.name.size() < soft.size() ||
		    one.name.compare(one.name.size() - soft.size(), soft.size(), soft))
			return true;
	return false;
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
