/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <pier/transfer.h>

#include "report.hpp"

namespace pier_nixl
{

/* A fault plan contains commas, and goes with one name. */
static uint32_t count_names(const std::string &devices)
{
	if (devices.starts_with("fault:"))
		return 1;
	return (uint32_t)std::count(devices.begin(), devices.end(), ',') + 1;
}

/* Returns false if the text is no number from `least` to `most`. */
static bool read_number(const std::string &text, uint32_t least, uint32_t most,
			uint32_t &ret_number)
{
	char *end;
	unsigned long number = strtoul(text.c_str(), &end, 10);

	ret_number = (uint32_t)number;
	return !*end && text[0] != '-' && number >= least && number <= most;
}

static_assert(PIER_RAILS_MAX == 64, "the number in the table");

/* The parameters, in the order of reading: rails after device. */
static const struct {
	const char *name, *variable, *values;
	/* Returns false if the text, which is not empty, is none of the values. */
	bool (*read)(const std::string &text, settings &of);
} parameters_known[] = {
	{ "device", "PIER_DEVICE", "",
	  [](const std::string &text, settings &of) {
		  of.device = text;
		  of.rails = std::min<uint32_t>(count_names(text), PIER_RAILS_MAX);
		  return true;
	  } },
	{ "rails", "PIER_NIXL_RAILS", "a number from 1 to 64",
	  [](const std::string &text, settings &of) {
		  return read_number(text, 1, PIER_RAILS_MAX, of.rails);
	  } },
	{ "address", "PIER_NIXL_ADDRESS", "",
	  [](const std::string &text, settings &of) {
		  of.address = text;
		  return true;
	  } },
	{ "policy", "PIER_NIXL_POLICY", "\"direct\", \"peermem\" or \"any\"",
	  [](const std::string &text, settings &of) {
		  of.policy = text == "direct"	  ? PIER_POLICY_DIRECT
			      : text == "peermem" ? PIER_POLICY_PEERMEM
						  : PIER_POLICY_ANY;
		  return of.policy != PIER_POLICY_ANY || text == "any";
	  } },
	{ "cache", "PIER_NIXL_CACHE", "\"on\" or \"off\"",
	  [](const std::string &text, settings &of) {
		  of.cache = text == "on";
		  return of.cache || text == "off";
	  } },
	{ "timeout", "PIER_NIXL_TIMEOUT", "a number from 1 to 3600",
	  [](const std::string &text, settings &of) {
		  return read_number(text, 1, 3600, of.timeout);
	  } },
	{ "connect_timeout", "PIER_NIXL_CONNECT_TIMEOUT", "a number from 1 to 3600",
	  [](const std::string &text, settings &of) {
		  return read_number(text, 1, 3600, of.connect_timeout);
	  } },
	{ "service_level", "PIER_NIXL_SERVICE_LEVEL", "a number from 0 to 15",
	  [](const std::string &text, settings &of) {
		  return read_number(text, 0, 15, of.service_level);
	  } },
	{ "traffic_class", "PIER_NIXL_TRAFFIC_CLASS", "a number from 0 to 254",
	  [](const std::string &text, settings &of) {
		  return read_number(text, 0, 254, of.traffic_class);
	  } },
};

nixl_b_params_t default_parameters()
{
	nixl_b_params_t parameters;

	for (const auto &known : parameters_known)
		parameters[known.name] = "";
	return parameters;
}

/* A parameter that has no effect is a mistake in its name. */
static int check_names(const nixl_b_params_t &parameters)
{
	const nixl_b_params_t possible = default_parameters();
	std::string names;

	for (const auto &known : parameters_known)
		names += (names.empty() ? "" : ", ") + std::string(known.name);
	for (const auto &given : parameters)
		if (possible.find(given.first) == possible.end()) {
			report_line("unknown parameter \"%s\"; the parameters are %s",
				    given.first.c_str(), names.c_str());
			return -EINVAL;
		}
	return 0;
}

/* An empty parameter counts as not given: NIXL passes default_parameters() back. */
int read_settings(const nixl_b_params_t &parameters, settings &ret_settings)
{
	int error = check_names(parameters);

	for (const auto &known : parameters_known) {
		auto given = parameters.find(known.name);
		const char *variable = secure_getenv(known.variable);
		std::string text = given != parameters.end() ? given->second : "";

		if (text.empty() && variable)
			text = variable;
		if (error || text.empty() || known.read(text, ret_settings))
			continue;
		report_line("%s=%s (%s) is not %s", known.name, text.c_str(),
			    known.variable, known.values);
		error = -EINVAL;
	}
	return error;
}

} // namespace pier_nixl
