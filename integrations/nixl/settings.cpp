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
	{ "cache", "PIER_NIXL_CACHE" },
	{ "timeout", "PIER_NIXL_TIMEOUT" },
	{ "connect_timeout", "PIER_NIXL_CONNECT_TIMEOUT" },
};

nixl_b_params_t default_parameters()
{
	nixl_b_params_t parameters;

	for (const auto &known : parameters_known)
		parameters[known.name] = "";
	return parameters;
}

static bool is_known(const std::string &name)
{
	for (const auto &known : parameters_known)
		if (name == known.name)
			return true;
	return false;
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

/* Read a number from 1 to `most`, unless the text is empty. */
static int read_number(const std::string &text, const char *name, uint32_t most,
		       uint32_t &ret_number)
{
	unsigned long number;
	char *end;

	if (text.empty())
		return 0;
	number = strtoul(text.c_str(), &end, 10);
	if (*end || text[0] == '-' || number < 1 || number > most) {
		report_line("%s=%s is not a number from 1 to %u", name, text.c_str(),
			    most);
		return -EINVAL;
	}
	ret_number = (uint32_t)number;
	return 0;
}

/* A parameter that has no effect is a mistake in its name. */
static int check_names(const nixl_b_params_t &parameters)
{
	std::string names;

	for (const auto &known : parameters_known)
		names += (names.empty() ? "" : ", ") + std::string(known.name);
	for (const auto &given : parameters)
		if (!is_known(given.first)) {
			report_line("unknown parameter \"%s\"; the parameters are %s",
				    given.first.c_str(), names.c_str());
			return -EINVAL;
		}
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

static int read_cache(const std::string &text, settings &ret_settings)
{
	if (!text.empty() && text != "on" && text != "off") {
		report_line("cache=%s (PIER_NIXL_CACHE) is not \"on\" or \"off\"",
			    text.c_str());
		return -EINVAL;
	}
	ret_settings.cache = text == "on";
	return 0;
}

int read_settings(const nixl_b_params_t &parameters, settings &ret_settings)
{
	int error = check_names(parameters);

	ret_settings.device = value_of(parameters, "device");
	ret_settings.address = value_of(parameters, "address");
	ret_settings.rails = std::min<uint32_t>(count_names(ret_settings.device),
						PIER_RAILS_MAX);
	if (!error)
		error = read_number(value_of(parameters, "rails"),
				    "rails (PIER_NIXL_RAILS)", PIER_RAILS_MAX,
				    ret_settings.rails);
	if (!error)
		error = read_number(value_of(parameters, "timeout"),
				    "timeout (PIER_NIXL_TIMEOUT)", 3600,
				    ret_settings.timeout);
	if (!error)
		error = read_number(value_of(parameters, "connect_timeout"),
				    "connect_timeout (PIER_NIXL_CONNECT_TIMEOUT)", 3600,
				    ret_settings.connect_timeout);
	if (!error)
		error = read_cache(value_of(parameters, "cache"), ret_settings);
	return error ? error : read_policy(value_of(parameters, "policy"), ret_settings);
}

} // namespace pier_nixl
