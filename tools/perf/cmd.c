/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "options.h"
#include "print.h"
#include "remote/control.h"
#include "remote/start.h"
#include "run.h"
#include "step.h"

enum {
	/* Until the request sets it. */
	FIRST_TIMEOUT_MS = 30000
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

struct server_options {
	bool server, local;
};

static const struct option_row rows[] = {
	{ 0, "server", NULL, NULL, option_on, offsetof(struct server_options, server) },
	{ 0, "local", NULL, NULL, option_on, offsetof(struct server_options, local) },
};

static const struct option_table server_option_table = {
	.command = "pier perf",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
};

/* Run `pier perf --server` for one client. Returns the exit status. */
static int serve_perf(int argc, char **argv)
{
	struct server_options options = { 0 };
	int status, count;

	count = parse_options(&server_option_table, argc, argv, &options, &status);
	if (count < 0)
		return status;
	if (count > 0) {
		print_error("pier perf: a server takes no arguments: the client sends "
			    "them");
		return EXIT_USAGE;
	}
	return run_server(options.local);
}

/* The client side of a measurement. */
struct measurement {
	struct perf_options options;
	struct perf_place place;
	struct shell shell; /* set if there is a host */
	struct peers peers;
	struct failure failure;
	struct control control;
	struct remote remote;
	struct perf_session session;
	struct perf_run run;
};

static void fill_place(struct perf_place *place, const char *memory, const char *device)
{
	snprintf(place->memory, sizeof(place->memory), "%s", memory);
	snprintf(place->device, sizeof(place->device), "%s", device ? device : "");
}

/* The bytes of a read come from the server. */
static void plan_places(struct measurement *measurement)
{
	const struct perf_options *options = &measurement->options;
	bool reads = options->settings.opcode == PIER_OP_READ;
	const char *remote_device = options->remote_device;

	if (!remote_device && !options->host)
		remote_device = options->device;
	fill_place(&measurement->place,
		   reads ? options->destination_memory : options->source_memory,
		   options->device);
	fill_place(&measurement->session.request.place,
		   reads ? options->source_memory : options->destination_memory,
		   remote_device);
	measurement->session.request.settings = options->settings;
}

/* Before open_signals(): a name lookup can take seconds, and Ctrl-C must end it. */
static int prepare_measurement(struct measurement *measurement)
{
	const struct perf_options *options = &measurement->options;

	if (!options->host)
		return 0;
	if (split_shell(options->rsh, &measurement->shell, &measurement->failure) < 0)
		return -1;
	find_peer_addresses(options->host, &measurement->shell, measurement->place.device,
			    &measurement->peers);
	return 0;
}

static int start_server(struct measurement *measurement)
{
	const struct perf_options *options = &measurement->options;
	struct control *control = &measurement->control;

	control->signal_fd = open_signals(&measurement->failure);
	if (control->signal_fd < 0 ||
	    start_remote(&measurement->remote, options->host, &measurement->shell,
			 options->remote_pier, control) < 0 ||
	    control_exchange_preambles(control) < 0)
		return -1;
	if (options->host)
		connect_only_to(&measurement->peers);
	return send_perf_request(control, &measurement->session.request);
}

static int open_measurement(struct measurement *measurement)
{
	struct perf_session *session = &measurement->session;
	struct perf_run *run = &measurement->run;

	session->side.client = true;
	if (open_side(&session->side, &session->request.settings, &measurement->place,
		      !measurement->options.host, &measurement->control) < 0 ||
	    fill_sources(&session->side, &measurement->failure) < 0)
		return -1;
	run->here = session->side.report;
	run->there = session->side.peer_report;
	run->channels = session->side.lane_count;
	if (session->side.substitute && !measurement->options.quiet)
		print_error("pier perf: no usable RDMA device: using the software "
			    "NIC " PIER_SOFT_DEVICE);
	return 0;
}

static int measure_sizes(struct measurement *measurement)
{
	const struct perf_options *options = &measurement->options;
	struct perf_run *run = &measurement->run;

	print_perf_start(run);
	for (uint32_t i = 0; i < options->size_count; i++) {
		struct perf_result *result = &run->results[i];

		if (measure_size(&measurement->session, options->sizes[i], result) < 0)
			return -1;
		run->result_count++;
		print_perf_result(run, result);
	}
	if (control_send(&measurement->control, FRAME_PERF_END, NULL) < 0)
		return -1;
	print_perf_end(run);
	return 0;
}

static int run_measurement(struct measurement *measurement)
{
	if (prepare_measurement(measurement) < 0 || start_server(measurement) < 0 ||
	    open_measurement(measurement) < 0)
		return -1;
	return measure_sizes(measurement);
}

/* Print the sizes that were complete before a failure, too. */
static void report_measurement(struct measurement *measurement)
{
	const struct perf_options *options = &measurement->options;

	if (measurement->failure.status)
		print_failure(&measurement->failure);
	if (options->format == PERF_JSON && measurement->run.result_count)
		print_perf_json(&measurement->run);
}

static int run_command(const struct perf_options *options)
{
	/* Not on the stack: the histograms are large. */
	struct measurement *measurement = calloc(1, sizeof(*measurement));
	struct perf_result *results = calloc(options->size_count, sizeof(*results));
	int status = EXIT_DEVICE;

	if (!measurement || !results) {
		print_error("pier perf: out of memory");
		goto out;
	}
	measurement->options = *options;
	measurement->run.options = &measurement->options;
	measurement->run.settings = &measurement->session.request.settings;
	measurement->run.results = results;
	measurement->session.control = &measurement->control;
	measurement->control = (struct control){
		.protocol = &perf_protocol,
		.in = -1,
		.out = -1,
		.signal_fd = -1,
		.timeout_ms = options->settings.timeout_ms,
		.peer = options->host,
		.failure = &measurement->failure,
	};
	plan_places(measurement);
	run_measurement(measurement);
	control_send_failure(&measurement->control);
	close_side(&measurement->session.side);
	end_remote(&measurement->remote, &measurement->control);
	report_measurement(measurement);
	status = measurement->failure.status;
out:
	free(results);
	free(measurement);
	return status;
}

int command_perf(int argc, char **argv)
{
	struct perf_options options;
	int status;

	if (argc > 1 && strcmp(argv[1], "--server") == 0)
		return serve_perf(argc, argv);
	if (parse_perf_options(argc, argv, &options, &status) < 0)
		return status;
	if (options.verbose)
		print_library_log();
	return run_command(&options);
}
