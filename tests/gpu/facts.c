/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Prints facts about the machine and its GPU as a block for docs/hardware.md, and checks
 * that pier reports the same.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

static void say_machine(void)
{
	struct utsname kernel;
	time_t now = time(NULL);
	char date[32];

	uname(&kernel);
	strftime(date, sizeof(date), "%Y-%m-%d", gmtime(&now));
	gpu_say("date: %s; pier %s", date, pier_version());
	gpu_say("kernel: %s %s, %s", kernel.sysname, kernel.release, kernel.machine);
}

/* Prints the NIC of the other programs, and why pier chose none if that is soft0. */
static void say_nic(void)
{
	struct pier_device *device = NULL;

	if (!getenv("PIER_GPU_NIC") && pier_device_open(NULL, &device))
		gpu_say("no NIC: %s", pier_error_message());
	expect_ok(pier_device_close(device));
	expect_ok(gpu_open_device(false, &device));
	gpu_say("NIC: %s", pier_device_name(device));
	expect_ok(pier_device_close(device));
}

static void tells_what_there_is(void **state)
{
	(void)state;
	gpu_say("----- for docs/hardware.md");
	say_machine();
	gpu.vendor->say_facts();
	say_nic();
	gpu_say("-----");
}

/* The backend exists and has the same number of devices. */
static void is_what_pier_tells(void **state)
{
	struct pier_backend_info *list = NULL;
	char devices[32];
	uint32_t count;
	bool found = false;

	(void)state;
	snprintf(devices, sizeof(devices), "%d device%s,", gpu.count,
		 gpu.count == 1 ? "" : "s");
	expect_ok(pier_backend_list(&list, &count, sizeof(*list)));
	for (size_t i = 0; i < count; i++) {
		if (strcmp(list[i].name, gpu.vendor->name) != 0)
			continue;
		found = true;
		gpu_say("pier's backend %s: %s", list[i].name, list[i].detail);
		assert_true(list[i].available);
		assert_true(list[i].dmabuf);
		assert_non_null(strstr(list[i].detail, devices));
	}
	assert_true(found);
	free(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(tells_what_there_is, gpu_setup,
						gpu_teardown),
		cmocka_unit_test_setup_teardown(is_what_pier_tells, gpu_setup,
						gpu_teardown),
	};

	gpu_open();
	return cmocka_run_group_tests_name("gpu_facts", tests, NULL, NULL);
}
