/* SPDX-License-Identifier: BSD-3-Clause */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "next_option.h"
#include "remote/network.h"
#include "remote/signals.h"
#include "remote/start.h"
#include "run.h"
#include "server.h"
#include "step.h"

enum {
	/* Until the request sets it. */
	FIRST_TIMEOUT_MS = 30000
};

enum {
	OPTION_SERVER = 256,
	OPTION_LOCAL,
};

static const struct option server_option_names[] = {
	{ "server", no_argument, NULL, OPTION_SERVER },
	{ "local", no_argument, NULL, OPTION_LOCAL },
	{ NULL, 0, NULL, 0 },
};

/* The other side of a network connection may not make calls of this process fail. */
static int check_place(const struct perf_place *place, bool local,
		       struct failure *failure)
{
	if (!local && strstr(place->device, PIER_FAULT_DEVICE ":"))
		return fail(failure, EXIT_DEVICE,
			    "the server does not accept a fault plan for its device");
	return 0;
}

static int serve_request(struct perf_session *session, bool local)
{
	struct control *control = session->control;
	struct perf_request *request = &session->request;

	control->signal_fd = open_signals(control->failure);
	if (control->signal_fd < 0 || take_descriptors(control) < 0 ||
	    control_exchange_preambles(control) < 0 ||
	    receive_perf_request(control, request) < 0)
		return -1;
	control->timeout_ms = request->settings.timeout_ms;
	if (check_place(&request->place, local, control->failure) < 0 ||
	    open_side(&session->side, &request->settings, &request->place, local,
		      control) < 0 ||
	    fill_sources(&session->side, control->failure) < 0)
		return -1;
	return serve_sizes(session);
}

static int run_server(bool local)
{
	struct failure failure = { 0 };
	struct control control = {
		.protocol = &perf_protocol,
		.in = -1,
		.out = -1,
		.signal_fd = -1,
		.timeout_ms = FIRST_TIMEOUT_MS,
		.failure = &failure,
	};
	/* Not on the stack: it has room for a frame. */
	struct perf_session *session = calloc(1, sizeof(*session));

	if (!session) {
		print_error("pier perf: out of memory");
		return EXIT_DEVICE;
	}
	session->control = &control;
	if (!local)
		listen_for_client();
	serve_request(session, local);
	control_send_failure(&control);
	close_side(&session->side);
	control_close(&control);
	/* In all other cases the client reports the failure to the user. */
	if (failure.status && failure.status < EXIT_SIGNAL && control.peer_closed &&
	    !control.failure_from_peer)
		print_failure(&failure);
	if (control.signal_fd >= 0)
		close(control.signal_fd);
	free(session);
	return failure.status;
}

int serve_perf(int argc, char **argv)
{
	bool local = false;
	int option;

	while ((option = next_option(argc, argv, ":", server_option_names)) != -1) {
		if (option == '?')
			return EXIT_USAGE;
		local = local || option == OPTION_LOCAL;
	}
	if (optind < argc) {
		print_error("pier perf: a server takes no arguments: the client sends "
			    "them");
		return EXIT_USAGE;
	}
	return run_server(local);
}
