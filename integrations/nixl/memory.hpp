/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_MEMORY_HPP
#define PIER_NIXL_MEMORY_HPP

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "devices.hpp"
#include "nixl_abi.hpp"

namespace pier_nixl
{

/* The range of a memory that one key covers. */
struct memory_part {
	uint64_t offset, length; /* in the memory */
	uint64_t addr;		 /* of the first byte, for the key */
	uint32_t key;
};

/* The parts of a memory, in order. */
using part_list = std::vector<memory_part>;

/* The part that contains a byte of the memory. */
const memory_part &find_part(const part_list &parts, uint64_t offset);

/*
 * What has to be flushed: memory of the groups, of what came through the devices. Bit n
 * stands for number n, and those that are equal to it modulo 64.
 */
struct flush_set {
	uint64_t groups = 0;  /* local_memory::flush_number */
	uint64_t devices = 0; /* indices in the device_list of the owner */

	static uint64_t bit(size_t number)
	{
		return UINT64_C(1) << number % 64;
	}
};

/* Memory of this agent, registered with each of its devices. */
class local_memory
{
      public:
	/* A region, with what every request reads of it. */
	struct region {
		struct pier_mr *mr;
		struct pier_mr_cache *cache; /* that owns it; NULL: the memory does */
		uint64_t start;		     /* of the memory in a cached region */
		part_list parts;
	};

	local_memory(const nixlBlobDesc &of, nixl_mem_t type);
	local_memory(const local_memory &) = delete;
	void operator=(const local_memory &) = delete;
	~local_memory();

	/*
	 * Register the memory. The text of metaInfo chooses how: see README.md.
	 *
	 * Returns 0, or a negative errno after a line that gives the reason.
	 */
	int register_all(const device_list &devices, enum pier_policy policy,
			 const std::string &text);
	/* Returns 0, or the error of a region that stays registered. */
	int deregister_all();
	/*
	 * Make bytes that arrived through the devices, as in flush_set, visible to the
	 * GPU: in all memory of the flush_group. Returns 0, or the first error after all
	 * devices were tried.
	 */
	int flush(uint64_t devices) const;
	/* The form for peers, which remote_memory::read() reads. */
	int write(const std::string &process, std::string &ret_bytes) const;

	const uint64_t addr, length;
	const nixl_mem_t type;
	std::vector<region> regions; /* by the index of the device */
	/*
	 * What a flush of this memory also flushes: memory of the same kind and device
	 * that the NICs reach in the same way. "": none is necessary.
	 */
	std::string flush_group;
	uint8_t flush_number = 0; /* of the group, for peers */
	/* The agent has deregistered it: no request may begin to use it. */
	std::atomic<bool> is_gone{ false };

      private:
	const uint64_t unit; /* the GPU, by the number that the application uses */
	struct pier_buffer *buffer = nullptr;

	int wrap_fd(const std::string &text);
	int register_one(const device_list::device &device,
			 const struct pier_mr_attr &attr);
	int list_parts(region &of) const;
	void find_flush_group();
};

/* Memory of a peer, or of this agent as a peer of itself. */
class remote_memory
{
      public:
	remote_memory(uint64_t of, uint64_t bytes, nixl_mem_t kind);

	/* Returns false if the bytes, which may be hostile, are no form of write(). */
	bool read(const std::string &bytes);

	const uint64_t addr, length;
	const nixl_mem_t type;
	/* The process that registered it: agent_address::unix_name. */
	std::string process;
	uint8_t flush_number = 0;
	std::vector<part_list> regions; /* by the index of the peer's device */
};

/*
 * What NIXL holds of a memory. It frees this while requests may still use the memory, of
 * which they therefore have a share.
 */
template <class T> class memory_share : public nixlBackendMD
{
      public:
	memory_share(std::shared_ptr<T> of, bool is_private)
	    : nixlBackendMD(is_private), memory(std::move(of))
	{
	}

	const std::shared_ptr<T> memory;
};
using local_share = memory_share<local_memory>;
using remote_share = memory_share<const remote_memory>;

} // namespace pier_nixl

#endif
