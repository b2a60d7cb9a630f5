/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The backend of NIXL through the declared ABI, without NIXL:
 *
 *	nixl_agents --device NAME --backend NAME
 */
#include "agent.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

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

static void refuse(const std::string &name, const std::string &value)
{
	nixl_b_params_t parameters = { { "device", options.device } };
	nixlBackendInitParams init;
	nixlBackendEngine *engine;

	parameters[name] = value;
	init.localAgent = "one";
	init.type = "PIER";
	init.customParams = &parameters;
	engine = test_load_plugin()->create_engine(&init);
	assert_non_null(engine);
	assert_true(engine->getInitErr());
	test_load_plugin()->destroy_engine(engine);
}

static void unknown_values_of_parameters_are_refused(void **)
{
	const std::pair<std::string, std::string> wrong[] = {
		{ "rails", "0" },	   { "rails", "x" },
		{ "rails", "65" },	   { "policy", "bounce" },
		{ "address", "here" },	   { "device", "none0" },
		{ "address", "1.2.3.4:" }, { "timeout", "0" },
		{ "devise", "soft0" },	   { "connect_timeout", "3601" },
		{ "cache", "1" },	   { "service_level", "16" },
		{ "traffic_class", "-1" }, { "traffic_class", "255" },
	};

	for (const auto &one : wrong)
		refuse(one.first, one.second);
}

/* The line on standard error names each parameter that NIXL can ask for. */
static void unknown_parameters_are_refused_with_the_list(void **)
{
	int saved = dup(STDERR_FILENO), file = memfd_create("stderr", MFD_CLOEXEC);
	std::string printed(4096, 0);

	assert_true(saved >= 0 && file >= 0);
	assert_true(dup2(file, STDERR_FILENO) >= 0);
	refuse("devise", "soft0");
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	assert_true(pread(file, &printed[0], printed.size() - 1, 0) > 0);
	close(saved);
	close(file);
	assert_true(printed.find("unknown parameter \"devise\"") != std::string::npos);
	for (const auto &known : test_load_plugin()->get_backend_options())
		assert_true(printed.find(known.first) != std::string::npos);
}

/* Of the channels that were created: those with these attributes, and others. */
static uint32_t expected_level, expected_class;
static std::atomic<int> as_expected, others;

/* In place of libpier's: what the plugin asks for. */
extern "C" int pier_channel_create(struct pier_pd *pd,
				   const struct pier_channel_attr *attr,
				   struct pier_channel **ret_channel)
{
	static const auto next = reinterpret_cast<decltype(&pier_channel_create)>(
		dlsym(RTLD_NEXT, "pier_channel_create"));

	if (attr->service_level == expected_level &&
	    attr->traffic_class == expected_class)
		as_expected++;
	else
		others++;
	return next(pd, attr, ret_channel);
}

static void expect_classes(const nixl_b_params_t &parameters, uint32_t level,
			   uint32_t traffic)
{
	test_memory source(4096), target(4096);

	expected_level = level;
	expected_class = traffic;
	as_expected = others = 0;
	test_agent one("one", parameters), two("two", parameters);

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target.addr, 4096 } }),
		NIXL_SUCCESS);
	assert_int_equal(as_expected, 2);
	assert_int_equal(others, 0);
}

static void channels_have_the_service_level_and_traffic_class(void **)
{
	expect_classes({ { "service_level", "3" }, { "traffic_class", "104" } }, 3, 104);
	expect_classes({}, PIER_UNSET, PIER_UNSET);
}

int main(int argc, char **argv)
{
	std::vector<CMUnitTest> tests = {
		cmocka_unit_test(programs_other_than_nixl_are_refused),
		cmocka_unit_test(unknown_values_of_parameters_are_refused),
		cmocka_unit_test(unknown_parameters_are_refused_with_the_list),
		cmocka_unit_test(channels_have_the_service_level_and_traffic_class),
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
