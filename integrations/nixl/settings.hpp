/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_SETTINGS_HPP
#define PIER_NIXL_SETTINGS_HPP

#include <cstdint>
#include <string>

#include <pier/channel.h>
#include <pier/mr.h>

#include "nixl_abi.hpp"

namespace pier_nixl
{

/*
 * What the user can choose: as a parameter of NIXL's createBackend(), or by an
 * environment variable where a program passes none. README.md describes them.
 */
struct settings {
	std::string device;  /* names with "," between them; "": pier chooses */
	std::string address; /* "IP" or "IP:PORT" to listen on; "": see README.md */
	uint32_t rails = 1;  /* the most rails of a link */
	enum pier_policy policy = PIER_POLICY_PEERMEM;
	bool cache = false; /* keep registrations after deregisterMem() */
	uint32_t timeout = 30; /* for the next completion, in seconds */
	uint32_t connect_timeout = 10; /* for the peer's answer, in seconds */
	/* As in struct pier_channel_attr. */
	uint32_t service_level = PIER_UNSET, traffic_class = PIER_UNSET;
};

/* The parameters with their defaults, for nixlBackendPlugin.get_backend_options. */
nixl_b_params_t default_parameters();

/* Read the settings. Returns 0, or -EINVAL after a line that names the mistake. */
int read_settings(const nixl_b_params_t &parameters, settings &ret_settings);

} // namespace pier_nixl

#endif
