/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "bytes.hpp"
#include "report.hpp"

namespace pier_nixl
{

static const char fd_prefix[] = "dmabuf:";
static const unsigned public_version = 3;

const memory_part &find_part(const part_list &parts, uint64_t offset)
{
	auto after = std::upper_bound(
		parts.begin() + 1, parts.end(), offset,
		[](uint64_t at, const memory_part &one) { return at < one.offset; });

	return after[-1];
}

local_memory::local_memory(const nixlBlobDesc &of, nixl_mem_t kind)
    : addr(of.addr), length(of.len), type(kind), unit(of.devId)
{
}

local_memory::~local_memory()
{
	deregister_all();
}

/* "dmabuf:FD" or "dmabuf:FD+OFFSET". */
int local_memory::wrap_fd(const std::string &text)
{
	const char *digits = text.c_str() + sizeof(fd_prefix) - 1;
	unsigned long long fd, offset = 0;
	char *end;

	errno = 0;
	fd = strtoull(digits, &end, 10);
	if (*end == '+' && isdigit((unsigned char)end[1]))
		offset = strtoull(end + 1, &end, 10);
	if (!isdigit((unsigned char)*digits) || *end || errno || fd > INT32_MAX) {
		report_line("metaInfo \"%s\" is not dmabuf:FD or dmabuf:FD+OFFSET, in "
			    "decimal",
			    text.c_str());
		return -EINVAL;
	}
	int error = pier_buffer_wrap_dmabuf((int)fd, offset, length, &buffer);

	if (error)
		report_failure("the memory of metaInfo");
	return error;
}

/*
 * A device, or the NIC that reads back a byte of it, flushes all that came over the same
 * mapping. A dma-buf does not name its device; the application does.
 */
void local_memory::find_flush_group()
{
	struct pier_buffer *found = nullptr;
	struct pier_buffer_info info;

	if (type != VRAM_SEG)
		return;
	flush_group = "memory " + std::to_string(unit);
	if (!buffer && pier_buffer_wrap((void *)addr, length, &found) == 0 &&
	    pier_buffer_query(found, &info, sizeof(info)) == 0)
		flush_group += std::string(" ") + info.backend + ":" + info.unit + ":" +
			       info.kind;
	pier_buffer_free(found);
	for (const region &one : regions) {
		struct pier_mr_info mr_info;

		pier_mr_query(one.mr, &mr_info, sizeof(mr_info));
		flush_group += std::string(" ") + pier_mapping_name(mr_info.mapping);
	}
}

/* A cached region can be larger than the memory. */
int local_memory::list_parts(region &of) const
{
	struct pier_mr_part_info part;

	for (uint32_t i = 0; i < pier_mr_parts(of.mr); i++) {
		int error = pier_mr_part(of.mr, i, &part, sizeof(part));

		if (error)
			return error;
		uint64_t first = std::max(part.offset, of.start);
		uint64_t end = std::min(part.offset + part.length, of.start + length);

		if (first < end)
			of.parts.push_back({ first - of.start, end - first,
					     part.iova + (first - part.offset),
					     part.lkey });
	}
	return 0;
}

/*
 * Nothing of an fd is kept: the region would keep the dma-buf and its memory, and no
 * event tells that the program has freed them. A cache does not divide a range that is
 * longer than the device registers at once.
 */
int local_memory::register_one(const device_list::device &device,
			       const struct pier_mr_attr &attr)
{
	region made = {};
	int error = 0;

	if (device.cache && !buffer &&
	    pier_mr_cache_get(device.cache, attr.ranges, attr.access, &made.mr) == 0) {
		made.cache = device.cache;
		made.start = addr - pier_mr_iova(made.mr);
	} else {
		error = pier_mr_reg_attr(device.pd, &attr, &made.mr);
	}
	if (error)
		return error;
	regions.push_back(made);
	return list_parts(regions.back());
}

/*
 * Host memory is not looked up in the backends, which takes long for each region. The
 * text of other backends of NIXL, such as a file's name, says nothing about memory.
 */
int local_memory::register_all(const device_list &devices, enum pier_policy policy,
			       const std::string &text)
{
	struct pier_mr_range range = pier_mr_range_host((void *)addr, length);
	struct pier_mr_attr attr;
	int error = 0;

	if (text.starts_with(fd_prefix)) {
		error = wrap_fd(text);
		if (error)
			return error;
		range = pier_mr_range_buffer(buffer, 0, length);
		/* A NIC takes a memfd as host memory. */
		if (type == DRAM_SEG)
			policy = PIER_POLICY_ANY;
	} else if (type == VRAM_SEG) {
		range = pier_mr_range_pointer((void *)addr, length);
	}
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	attr.policy = policy;
	attr.split = PIER_SPLIT_PIECES;
	for (size_t i = 0; !error && i < devices.all.size(); i++) {
		error = register_one(devices.all[i], attr);
		if (error)
			report_failure("memory cannot be registered");
	}
	if (!error)
		find_flush_group();
	return error;
}

int local_memory::deregister_all()
{
	int error = 0;

	while (!error && !regions.empty()) {
		const region &last = regions.back();

		error = last.cache ? pier_mr_cache_put(last.cache, last.mr)
				   : pier_mr_dereg(last.mr);
		/* After an error, a cache has the region back and tries again later. */
		if (!error || last.cache)
			regions.pop_back();
	}
	if (!error) {
		error = pier_buffer_free(buffer);
		buffer = nullptr;
	}
	return error;
}

int local_memory::flush(uint64_t devices) const
{
	int error = 0;

	for (size_t i = 0; i < regions.size(); i++)
		if (devices & flush_set::bit(i)) {
			int failed = pier_mr_sync_for_device(regions[i].mr, 0, 1);

			error = error ? error : failed;
		}
	return error;
}

int local_memory::write(const std::string &process, std::string &ret_bytes) const
{
	byte_writer bytes;

	bytes.put_number(public_version, 1);
	bytes.put_string(process);
	bytes.put_number(flush_number, 1);
	bytes.put_number(regions.size(), 1);
	for (const region &one : regions) {
		std::vector<pier_remote> all(pier_mr_parts(one.mr)), parts(all.size());
		uint32_t count;
		int error = pier_mr_remote_vec(one.mr, all.data(), (uint32_t)all.size(),
					       &count);

		if (!error)
			error = pier_remote_vec_sub(all.data(), count, one.start, length,
						    parts.data(), (uint32_t)parts.size(),
						    &count);
		if (error)
			return error;
		std::string wire(PIER_REMOTE_VEC_WIRE_SIZE(count), 0);

		error = pier_remote_vec_pack(parts.data(), count, &wire[0], wire.size());
		if (error < 0)
			return error;
		bytes.put_string(wire);
	}
	ret_bytes = std::move(bytes.out);
	return 0;
}

remote_memory::remote_memory(uint64_t of, uint64_t bytes, nixl_mem_t kind)
    : addr(of), length(bytes), type(kind)
{
}

static bool read_parts(const std::string &wire, uint64_t length, part_list &ret_parts)
{
	std::vector<pier_remote> parts(wire.size() / PIER_REMOTE_VEC_WIRE_SIZE(0) + 1);
	uint64_t offset = 0;
	uint32_t count;

	if (pier_remote_vec_unpack(wire.data(), wire.size(), parts.data(),
				   (uint32_t)parts.size(), &count))
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if (parts[i].length == 0)
			continue;
		ret_parts.push_back(
			{ offset, parts[i].length, parts[i].addr, parts[i].rkey });
		offset += parts[i].length;
	}
	return !ret_parts.empty() && offset >= length;
}

bool remote_memory::read(const std::string &bytes)
{
	byte_reader reader(bytes);

	if (reader.number(1) != public_version)
		return false;
	process = reader.string();
	flush_number = (uint8_t)reader.number(1);
	regions.resize(reader.number(1));
	for (part_list &parts : regions)
		if (!read_parts(reader.string(), length, parts))
			return false;
	return !regions.empty() && reader.finished();
}

} // namespace pier_nixl
