/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <pier/transfer.h>

#include "report.hpp"

namespace pier_nixl
{

/* The parameters and their environment variables. */
static const struct {
	const char *name, *variable;
} parameters_known[] = {
	{ "device", "PIER_DEVICE" },
	{ "rails", "PIER_NIXL_RAILS" },
	{ "address", "PIER_NIXL_ADDRESS" },
	{ "policy", "PIER_NIXL_POLICY" },
};

nixl_b_params_t default_parameters()
{
	nixl_b_params_t parameters;

	for (const auto &known : parameters_known)
		parameters[known.name] = "";
	return parameters;
}

/* An empty parameter counts as not given: NIXL passes default_parameters() back. */
static std::string value_of(const nixl_b_params_t &parameters, const std::string &name)
{
	auto found = parameters.find(name);
	const char *value = nullptr;

	if (found != parameters.end() && !found->second.empty())
		return found->second;
	for (const auto &known : parameters_known)
		if (name == known.name)
			value = secure_getenv(known.variable);
	return value ? value : "";
}

/* A fault plan contains commas, and goes with one name. */
static uint32_t count_names(const std::string &devices)
{
	if (devices.compare(0, 6, "fault:") == 0)
		return 1;
	return (uint32_t)std::count(devices.begin(), devices.end(), ',') + 1;
}

static int read_rails(const std::string &text, settings &ret_settings)
{
	char *end;
	unsigned long count;

	if (text.empty()) {
		ret_settings.rails = count_names(ret_settings.device);
	} else {
		count = strtoul(text.c_str(), &end, 10);
		if (*end || text[0] == '-' || count < 1 || count > PIER_RAILS_MAX) {
			report_line("rails=%s (PIER_NIXL_RAILS) is not a number from 1 "
				    "to %d",
				    text.c_str(), PIER_RAILS_MAX);
			return -EINVAL;
		}
		ret_settings.rails = (uint32_t)count;
	}
	ret_settings.rails = std::min<uint32_t>(ret_settings.rails, PIER_RAILS_MAX);
	return 0;
}

static int read_policy(const std::string &text, settings &ret_settings)
{
	if (text.empty() || text == "peermem") {
		ret_settings.policy = PIER_POLICY_PEERMEM;
	} else if (text == "direct") {
		ret_settings.policy = PIER_POLICY_DIRECT;
	} else if (text == "any") {
		ret_settings.policy = PIER_POLICY_ANY;
	} else {
		report_line("policy=%s (PIER_NIXL_POLICY) is not \"direct\", \"peermem\" "
			    "or \"any\"",
			    text.c_str());
		return -EINVAL;
	}
	return 0;
}

int read_settings(const nixl_b_params_t &parameters, settings &ret_settings)
{
	int error;

	ret_settings.device = value_of(parameters, "device");
	ret_settings.address = value_of(parameters, "address");
	error = read_rails(value_of(parameters, "rails"), ret_settings);
	return error ? error : read_policy(value_of(parameters, "policy"), ret_settings);
}

} // namespace pier_nixl
