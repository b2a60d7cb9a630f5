/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DEVICES_HPP
#define PIER_NIXL_DEVICES_HPP

#include <string>
#include <vector>

#include <pier/pier.h>

#include "settings.hpp"

namespace pier_nixl
{

/*
 * The devices of an agent, open from its start to its end. All memory is registered
 * with each of them, because NIXL registers memory before it names a peer.
 */
class device_list
{
      public:
	struct device {
		std::string name;
		struct pier_device *handle;
		struct pier_pd *pd;
		uint32_t max_qp_wr;
	};

	device_list() = default;
	device_list(const device_list &) = delete;
	void operator=(const device_list &) = delete;
	~device_list();

	/* Returns 0, or a negative errno with a sentence in pier_error_message(). */
	int open_all(const settings &chosen);
	/* Returns the index of a device, or -1. */
	int find(const std::string &name) const;
	/* Whether a device reaches other hosts without further settings. */
	bool has_hardware() const;

	std::vector<device> all;
	std::string description; /* pier_rails_describe() */

      private:
	int open_one(const std::string &name);
};

} // namespace pier_nixl

#endif
