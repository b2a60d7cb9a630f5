/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_MEMORY_HPP
#define PIER_NIXL_MEMORY_HPP

#include <string>
#include <vector>

#include "devices.hpp"
#include "nixl_abi.hpp"

namespace pier_nixl
{

/* Memory of this agent, registered with each of its devices. */
class local_memory : public nixlBackendMD
{
      public:
	/* A region, with what every request reads of it. */
	struct region {
		struct pier_mr *mr;
		uint64_t iova;
		uint32_t lkey;
	};

	local_memory(const nixlBlobDesc &of, nixl_mem_t type);
	~local_memory() override;

	/*
	 * Register the memory. The text of metaInfo chooses how: see README.md.
	 *
	 * Returns 0, or a negative errno after a line that gives the reason.
	 */
	int register_all(const device_list &devices, enum pier_policy policy,
			 const std::string &text);
	/* Returns 0, or the error of the region that is still in use. */
	int deregister_all();
	/* The form for peers, which remote_memory::read() reads. */
	int write(std::string &ret_bytes) const;

	const uint64_t addr, length;
	const nixl_mem_t type;
	std::vector<region> regions; /* by the index of the device */

      private:
	struct pier_buffer *buffer = nullptr;

	int wrap_fd(const std::string &text);
};

/* Memory of a peer, or of this agent as a peer of itself. */
class remote_memory : public nixlBackendMD
{
      public:
	remote_memory(uint64_t of, uint64_t bytes, nixl_mem_t kind);

	/* Returns false if the bytes, which may be hostile, are no form of write(). */
	bool read(const std::string &bytes);

	const uint64_t addr, length;
	const nixl_mem_t type;
	std::vector<pier_remote> parts; /* by the index of the peer's device */
};

} // namespace pier_nixl

#endif
