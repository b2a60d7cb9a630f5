/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory.hpp"

#include <cerrno>
#include <cstdlib>

#include "bytes.hpp"
#include "report.hpp"

namespace pier_nixl
{

static const char fd_prefix[] = "dmabuf:";
static const unsigned public_version = 1;

local_memory::local_memory(const nixlBlobDesc &of, nixl_mem_t kind)
    : nixlBackendMD(true), addr(of.addr), length(of.len), type(kind)
{
}

local_memory::~local_memory()
{
	deregister_all();
}

/* "dmabuf:FD" or "dmabuf:FD+OFFSET". */
static bool parse_fd(const std::string &text, int &ret_fd, uint64_t &ret_offset)
{
	const char *digits = text.c_str() + sizeof(fd_prefix) - 1;
	char *end;
	unsigned long long fd, offset = 0;

	if (*digits < '0' || *digits > '9')
		return false;
	errno = 0;
	fd = strtoull(digits, &end, 10);
	if (*end == '+' && end[1] >= '0' && end[1] <= '9')
		offset = strtoull(end + 1, &end, 10);
	if (*end || errno || fd > INT32_MAX)
		return false;
	ret_fd = (int)fd;
	ret_offset = offset;
	return true;
}

int local_memory::wrap_fd(const std::string &text)
{
	uint64_t offset;
	int fd;

	if (!parse_fd(text, fd, offset)) {
		report_line("metaInfo \"%s\" is not dmabuf:FD or dmabuf:FD+OFFSET, in "
			    "decimal",
			    text.c_str());
		return -EINVAL;
	}
	int error = pier_buffer_wrap_dmabuf(fd, offset, length, &buffer);

	if (error)
		report_failure("the memory of metaInfo");
	return error;
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
	struct pier_mr *mr;
	int error = 0;

	if (text.compare(0, sizeof(fd_prefix) - 1, fd_prefix) == 0) {
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
	attr.split = PIER_SPLIT_NEVER;
	for (size_t i = 0; !error && i < devices.all.size(); i++) {
		error = pier_reg_mr_attr(devices.all[i].pd, &attr, &mr);
		if (!error)
			regions.push_back({ mr, pier_mr_iova(mr), pier_mr_lkey(mr) });
		else
			report_failure("memory cannot be registered");
	}
	return error;
}

int local_memory::deregister_all()
{
	int error = 0;

	while (!error && !regions.empty()) {
		error = pier_dereg_mr(regions.back().mr);
		if (!error)
			regions.pop_back();
	}
	if (!error) {
		error = pier_buffer_free(buffer);
		buffer = nullptr;
	}
	return error;
}

int local_memory::write(std::string &ret_bytes) const
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	byte_writer bytes;
	int error;

	bytes.put_number(public_version, 1);
	bytes.put_number(regions.size(), 1);
	for (const region &one : regions) {
		error = pier_mr_remote(one.mr, &remote);
		if (error)
			return error;
		pier_remote_pack(&remote, wire);
		bytes.put_bytes(wire, sizeof(wire));
	}
	ret_bytes = std::move(bytes.out);
	return 0;
}

remote_memory::remote_memory(uint64_t of, uint64_t bytes, nixl_mem_t kind)
    : nixlBackendMD(false), addr(of), length(bytes), type(kind)
{
}

bool remote_memory::read(const std::string &bytes)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE] = {};
	byte_reader reader(bytes);
	size_t count;

	if (reader.number(1) != public_version)
		return false;
	count = reader.number(1);
	parts.resize(count);
	for (struct pier_remote &part : parts) {
		reader.bytes(wire, sizeof(wire));
		if (reader.failed() || pier_remote_unpack(wire, sizeof(wire), &part) ||
		    part.length < length)
			return false;
	}
	return count > 0 && reader.finished();
}

} // namespace pier_nixl
