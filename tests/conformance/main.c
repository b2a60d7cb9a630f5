/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"
#include "child.h"
#include "world.h"

/*
 * Requirements on every device with the memory of every backend. The cases name neither:
 * the program takes both as options, and runs once for each pair.
 */

enum {
	EXIT_SKIPPED = 77, /* meson's exit status for a skipped test */
};

/* Set in a process that a case has started: see child.h. */
static const char *child_role;
static int child_stream = -1;

static void read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "peer-device", required_argument, NULL, 'p' },
		{ "backend", required_argument, NULL, 'b' },
		{ "case", required_argument, NULL, 'c' },
		{ "vague-errors", no_argument, NULL, 'v' },
		{ "child", required_argument, NULL, 'r' },
		{ "stream", required_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	test_device = getenv("PIER_TEST_DEVICE");
	test_peer_device = getenv("PIER_TEST_PEER_DEVICE");
	test_backend = getenv("PIER_TEST_BACKEND");
	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (option == 'd')
			test_device = optarg;
		else if (option == 'p')
			test_peer_device = optarg;
		else if (option == 'b')
			test_backend = optarg;
		else if (option == 'c')
			cmocka_set_test_filter(optarg);
		else if (option == 'v')
			test_vague = true;
		else if (option == 'r')
			child_role = optarg;
		else if (option == 's')
			child_stream = atoi(optarg);
		else
			exit(2);
	}
	if (!test_peer_device)
		test_peer_device = test_device;
	if (test_device && test_backend && optind == argc)
		return;
	fprintf(stderr,
		"usage: %s --device NAME [--peer-device NAME] --backend SPEC "
		"[--case PATTERN] [--vague-errors]\n",
		argv[0]);
	exit(2);
}

/*
 * If the device or the memory is missing, or they do not fit each other, all cases are
 * skipped; if the device has no channels, those that need channels. The cases report any
 * other failure.
 */
static void look_for_problem(const char *device)
{
	static char problem[1024], no_channels[1024];
	struct end end = { 0 };
	int error = end_open(&end, device);

	if (error == -EOPNOTSUPP || error == -ENODEV) {
		snprintf(problem, sizeof(problem), "%s", pier_error_message());
		world_problem = problem;
	} else if (!error && pier_device_check_channels(end.device)) {
		snprintf(no_channels, sizeof(no_channels), "%s", pier_error_message());
		world_no_channels = no_channels;
	}
	end_close(&end);
}

int main(int argc, char **argv)
{
	static int (*const groups[])(void) = {
		/* clang-format off */
		run_message_cases,
		run_onesided_cases,
		run_wait_cases,
		run_scope_cases,
		run_error_cases,
		run_lifetime_cases,
		run_registration_cases,
		run_form_cases,
		run_asynchronous_cases,
		run_dmabuf_cases,
		run_handshake_cases,
		run_counter_cases,
		run_counter_imm_cases,
		run_ping_pong_cases,
		run_vector_cases,
		run_subregion_cases,
		run_cache_cases,
		run_post_cases,
		run_transfer_cases,
		run_ring_cases,
		run_receiver_cases,
		run_receive_cases,
		run_recovery_cases,
		run_shared_queue_cases,
		run_process_cases,
		run_group_cases,
		/* clang-format on */
	};
	int failed = 0;

	read_options(argc, argv);
	if (child_role)
		return child_play(child_role, child_stream);
	look_for_problem(test_device);
	if (test_peer_device != test_device)
		look_for_problem(test_peer_device);
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
		failed += groups[i]();
	if (failed)
		return EXIT_FAILURE;
	return cases_run > 0 ? EXIT_SUCCESS : EXIT_SKIPPED;
}
