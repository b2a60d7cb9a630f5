/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The backend of NIXL through the declared ABI, without NIXL:
 *
 *	nixl_agents --device NAME --backend NAME
 */
#include "agent.hpp"

#include <cstdio>
#include <cstdlib>

static struct test_census before;

/* The backend reports itself unavailable where it is. */
static bool is_available()
{
	struct pier_buffer *buffer = nullptr;
	struct pier_device *device = nullptr;

	if (options.backend != "host" &&
	    pier_buffer_alloc(options.backend.c_str(), 4096, &buffer)) {
		printf("skip: %s\n", pier_error_message());
		return false;
	}
	pier_buffer_free(buffer);
	if (pier_device_open(options.device.c_str(), &device)) {
		printf("skip: %s\n", pier_error_message());
		return false;
	}
	pier_device_close(device);
	return true;
}

static int take_census(void **)
{
	/* What a process opens once. */
	{
		test_agent first("first");
		test_memory memory(4096);
	}
	before = test_take_census();
	return 0;
}

static int compare_census(void **)
{
	test_assert_census(&before);
	return 0;
}

static void programs_other_than_nixl_are_refused(void **)
{
	assert_int_equal(setenv("PIER_NIXL_ANY_VERSION", "0", 1), 0);
	assert_null(test_load_plugin());
	assert_int_equal(setenv("PIER_NIXL_ANY_VERSION", "1", 1), 0);
	assert_non_null(test_load_plugin());
}

static void unknown_values_of_parameters_are_refused(void **)
{
	const std::pair<std::string, std::string> wrong[] = {
		{ "rails", "0" },	   { "rails", "x" },
		{ "rails", "65" },	   { "policy", "bounce" },
		{ "address", "here" },	   { "device", "none0" },
		{ "address", "1.2.3.4:" }, { "timeout", "0" },
		{ "devise", "soft0" },	   { "connect_timeout", "3601" },
		{ "cache", "1" },
	};

	for (const auto &one : wrong) {
		nixl_b_params_t parameters = { { "device", options.device }, one };
		nixlBackendInitParams init;
		nixlBackendEngine *engine;

		parameters[one.first] = one.second;
		init.localAgent = "one";
		init.type = "PIER";
		init.customParams = &parameters;
		engine = test_load_plugin()->create_engine(&init);
		assert_non_null(engine);
		assert_true(engine->getInitErr());
		test_load_plugin()->destroy_engine(engine);
	}
}

int main(int argc, char **argv)
{
	std::vector<CMUnitTest> tests = {
		cmocka_unit_test(programs_other_than_nixl_are_refused),
		cmocka_unit_test(unknown_values_of_parameters_are_refused),
	};

	options.program = argv[0];
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--device"))
			options.device = argv[i + 1];
		else if (!strcmp(argv[i], "--backend"))
			options.backend = argv[i + 1];
		else if (!strcmp(argv[i], "--victim"))
			return run_victim(atoi(argv[i + 1]));
	}
	setenv("PIER_NIXL_ANY_VERSION", "1", 1);
	if (!is_available())
		return 77;
	for (const auto &more :
	     { transfer_tests(), notice_tests(), failure_tests(), crowd_tests() })
		tests.insert(tests.end(), more.begin(), more.end());
	for (CMUnitTest &test : tests) {
		test.setup_func = take_census;
		test.teardown_func = compare_census;
	}
	return _cmocka_run_group_tests("nixl", tests.data(), tests.size(), nullptr,
				       nullptr);
}
