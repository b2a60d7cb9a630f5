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

	service_level = chosen.service_level;
	traffic_class = chosen.traffic_class;
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
	attr.service_level = devices.service_level;
	attr.traffic_class = devices.traffic_class;
	ret_end = { nullptr, (uint32_t)index, pair.peer_device, port.max_msg_size,
		    pair.speed };
	return pier_channel_create(device.pd, &attr, &ret_end.channel);
}

channel_maker::~channel_maker()
{
	for (const channel_end &one : ends)
		pier_channel_destroy(one.channel);
}

int channel_maker::begin(const device_list &devices, const std::string &theirs,
			 uint32_t rails, uint32_t timeout_s, bool initiates, int socket)
{
	int count;

	from = &devices;
	is_initiator = initiates;
	stream = socket;
	end = clock_now() + std::chrono::seconds(timeout_s);
	pairs.resize(std::min<uint32_t>(rails, PIER_RAILS_MAX));
	count = pier_rails_choose(devices.description.data(), devices.description.size(),
				  theirs.data(), theirs.size(), pairs.data(),
				  (uint32_t)pairs.size(), sizeof(pairs[0]));
	pairs.resize((size_t)std::max(count, 0));
	return std::min(count, 0);
}

/* One after the other, because they share the socket. */
int channel_maker::step()
{
	int result = 1, left;

	while (result == 1 && connected < pairs.size()) {
		if (ends.size() == connected) {
			channel_end made;

			result = make_channel(*from, pairs[connected], is_initiator,
					      made);
			if (result)
				return result;
			ends.push_back(made);
			result = pier_channel_handshake_start(made.channel, stream,
							      stream, left_ms(end));
			if (result)
				return result;
		}
		result = pier_channel_handshake_step(ends.back().channel, fds, &left);
		connected += result == 1;
	}
	if (result == 0)
		wake = clock_now() + std::chrono::milliseconds(left);
	return result;
}

} // namespace pier_nixl
