/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "by_hand.h"
#include "commands.h"
#include "json.h"
#include "options.h"
#include "printable.h"
#include "remote/control.h"
#include "remote/start.h"
#include "run.h"
#include "units.h"

enum {
	/* Until the request sets it. */
	FIRST_TIMEOUT_MS = 30000,
	BAR_WIDTH = 50,
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

/*
 * listen      where to wait for the client, or NULL: it is at standard input and output
 * timeout_ms  how long to wait there
 */
static int run_server(bool local, const char *listen, uint32_t timeout_ms)
{
	struct failure failure = { 0 };
	struct tcp_address own = { "" }, client = { "" };
	struct control control = {
		.protocol = &perf_protocol,
		.in = -1,
		.out = -1,
		.signal_fd = -1,
		.timeout_ms = timeout_ms < FIRST_TIMEOUT_MS ? timeout_ms
							    : FIRST_TIMEOUT_MS,
		.peer = listen ? client.text : NULL,
		.by_hand = listen,
		.failure = &failure,
	};
	/* Not on the stack: it has room for a frame. */
	struct perf_session *session = calloc(1, sizeof(*session));

	if (!session) {
		print_error("pier perf: out of memory");
		return EXIT_DEVICE;
	}
	session->control = &control;
	if (!listen || accept_client(listen, timeout_ms, &own, &client, &failure) == 0) {
		if (!local)
			listen_for_client(listen ? own.text : NULL);
		serve_request(session, local);
		control_send_failure(&control);
	}
	close_side(&session->side);
	hang_up(&control);
	control_close(&control);
	/* In all other cases the client reports the failure to the user. */
	if (failure.status &&
	    (listen || (failure.status < EXIT_SIGNAL && control.peer_closed &&
			!control.failure_from_peer)))
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
	return run_server(options.local, NULL, FIRST_TIMEOUT_MS);
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
	struct perf_report here, there; /* the client and the server */
	uint32_t channels;		/* on all pairs of NICs */
	struct perf_result *results;	/* one for each size, so far */
	uint32_t result_count;
};

static double quantile_us(const struct perf_result *result, double part)
{
	return (double)histogram_quantile(&result->times, part) / 1e3;
}

/* The text may come from the other side, so it is escaped. */
static void print_side(const char *label, const struct perf_report *report)
{
	print_folded(stdout, "#   ", "# %s: %s, %s, %s%s%s%s%s", label, report->device,
		     report->memory, report->path, report->mapping[0] ? ", mapping " : "",
		     report->mapping, report->link[0] ? ", " : "", report->link);
	if (report->reason[0])
		print_folded(stdout, "#   ", "#   %s", report->reason);
}

static void print_header(const struct measurement *run)
{
	if (run->options.settings.latency)
		printf("%10s %10s %9s %9s %9s %9s %9s %9s\n", "bytes", "messages",
		       "min us", "p50 us", "p99 us", "p99.9 us", "max us", "mean us");
	else
		printf("%9s %10s %7s %7s %8s %8s %8s %8s %8s %7s\n", "bytes", "messages",
		       "GB/s", "Gbit/s", "Mmsg/s", "p50 us", "p99 us", "p99.9 us",
		       "CPU here", "there");
}

static const char csv_header[] =
	"test,bytes,messages,seconds,bytes_per_second,messages_per_second,min_us,p50_us,"
	"p99_us,p999_us,max_us,cpu_s_per_gib_here,cpu_s_per_gib_there\n";

/* The table and the CSV are printed line by line, while the command measures. */
static void print_perf_start(const struct measurement *run)
{
	const struct perf_settings *settings = &run->options.settings;
	char sizes[128] = "";

	if (run->options.format == PERF_CSV)
		fputs(csv_header, stdout);
	if (run->options.format != PERF_TABLE)
		return;
	if (!settings->latency)
		snprintf(sizes, sizeof(sizes),
			 ", channels: %" PRIu32 ", threads: %" PRIu32 ", depth: %" PRIu32
			 ", batches of %" PRIu32,
			 run->channels, settings->threads, settings->depth,
			 settings->batch);
	print_folded(stdout, "#   ", "# %s%s%s%s", run->options.test,
		     settings->both ? ", both directions" : "",
		     settings->events ? ", sleeping" : "", sizes);
	print_side("here", &run->here);
	print_side("there", &run->there);
	print_header(run);
	fflush(stdout);
}

static void print_row(const struct measurement *run, const struct perf_result *result)
{
	printf("%*" PRIu64 " %10" PRIu64, run->options.settings.latency ? 10 : 9,
	       result->size, result->messages);
	if (run->options.settings.latency)
		printf(" %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f",
		       (double)result->times.least / 1e3, quantile_us(result, 0.5),
		       quantile_us(result, 0.99), quantile_us(result, 0.999),
		       (double)result->times.most / 1e3,
		       histogram_mean(&result->times) / 1e3);
	else
		printf(" %7.3f %7.2f %8.4f %8.1f %8.1f %8.1f %8.3f %7.3f",
		       result->bytes_per_second / 1e9, result->bytes_per_second * 8 / 1e9,
		       result->messages_per_second / 1e6, quantile_us(result, 0.5),
		       quantile_us(result, 0.99), quantile_us(result, 0.999),
		       result->cpu_ns_per_gib / 1e9, result->peer_cpu_ns_per_gib / 1e9);
	printf("\n");
}

static void print_csv_row(const struct measurement *run, const struct perf_result *result)
{
	printf("%s,%" PRIu64 ",%" PRIu64 ",%.6f,%.0f,%.1f,%.3f,%.3f,%.3f,%.3f,%.3f,%.6f,"
	       "%.6f\n",
	       run->options.test, result->size, result->messages, result->seconds,
	       result->bytes_per_second, result->messages_per_second,
	       (double)result->times.least / 1e3, quantile_us(result, 0.5),
	       quantile_us(result, 0.99), quantile_us(result, 0.999),
	       (double)result->times.most / 1e3, result->cpu_ns_per_gib / 1e9,
	       result->peer_cpu_ns_per_gib / 1e9);
}

/* A bar for each quarter of a power of two that occurred. */
static void print_histogram(const struct histogram *times)
{
	const uint32_t width = HISTOGRAM_STEPS / 4;
	uint64_t most = 0;

	for (uint32_t pass = 0; pass < 2; pass++)
		for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i += width) {
			uint64_t sum = 0;

			for (uint32_t j = i; j < i + width; j++)
				sum += times->counts[j];
			if (pass == 0)
				most = sum > most ? sum : most;
			else if (sum)
				printf("# %12.3f us %10" PRIu64 " %.*s\n",
				       (double)histogram_bucket_start(i) / 1e3, sum,
				       (int)(sum * BAR_WIDTH / most),
				       "#################################################"
				       "#");
		}
}

static void print_perf_result(const struct measurement *run,
			      const struct perf_result *result)
{
	if (run->options.format == PERF_CSV)
		print_csv_row(run, result);
	if (run->options.format == PERF_TABLE) {
		print_row(run, result);
		if (run->options.histogram)
			print_histogram(&result->times);
	}
	fflush(stdout);
}

static void print_registration(const char *label, const struct perf_report *report)
{
	char size[32];

	format_bytes(report->registered, size, sizeof(size));
	printf("# registration %s: %s in %.1f us, deregistration %.1f us\n", label, size,
	       (double)report->register_ns / 1e3, (double)report->deregister_ns / 1e3);
}

/* The lines behind the table. */
static void print_perf_end(const struct measurement *run)
{
	if (run->options.format != PERF_TABLE)
		return;
	print_registration("here", &run->here);
	print_registration("there", &run->there);
	if (!run->options.settings.latency)
		printf("# times: from posting a batch to its completion; CPU: seconds "
		       "per "
		       "GiB\n");
}

static void print_report(struct json *json, const char *name,
			 const struct perf_report *report)
{
	json_open(json, name, '{');
	for (size_t i = 0; i < PERF_REPORT_TEXTS; i++)
		json_string(json, perf_report_texts[i].name,
			    (const char *)report + perf_report_texts[i].offset);
	json_uint(json, "registered_bytes", report->registered);
	json_uint(json, "register_ns", report->register_ns);
	json_uint(json, "deregister_ns", report->deregister_ns);
	json_close(json, '}');
}

static void print_settings(struct json *json, const struct measurement *run)
{
	const struct perf_settings *settings = &run->options.settings;

	json_open(json, "settings", '{');
	json_bool(json, "bidirectional", settings->both);
	json_bool(json, "events", settings->events);
	json_bool(json, "staged", settings->staged);
	json_string(json, "atomic",
		    settings->opcode == PIER_OP_COMPARE_SWAP ? "CMP_AND_SWAP"
		    : settings->opcode == PIER_OP_FETCH_ADD  ? "FETCH_AND_ADD"
							     : NULL);
	json_uint(json, "duration_ms", settings->iterations ? 0 : settings->duration_ms);
	json_uint(json, "iterations", settings->iterations);
	json_uint(json, "warm_up_ms", settings->warm_up_ms);
	json_uint(json, "tx_depth", settings->depth);
	json_uint(json, "rx_depth", settings->rx_depth);
	json_uint(json, "post_list", settings->batch);
	json_uint(json, "inline_size", settings->inline_size);
	json_uint(json, "rails", settings->rails);
	json_uint(json, "qp", settings->channels);
	json_uint(json, "threads", settings->threads);
	json_string(json, "channel", settings->channel);
	json_close(json, '}');
}

/* Pairs of the shortest time of a bucket, and how many were in it. */
static void print_buckets(struct json *json, const struct histogram *times)
{
	json_open(json, "histogram_ns", '[');
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		if (!times->counts[i])
			continue;
		json_open(json, NULL, '[');
		json_uint(json, NULL, histogram_bucket_start(i));
		json_uint(json, NULL, times->counts[i]);
		json_close(json, ']');
	}
	json_close(json, ']');
}

static void print_time(struct json *json, const char *name, const struct histogram *times,
		       double part)
{
	json_double(json, name, (double)histogram_quantile(times, part) / 1e3);
}

static void print_result(struct json *json, const struct perf_result *result,
			 bool histogram)
{
	const struct histogram *times = &result->times;

	json_open(json, NULL, '{');
	json_uint(json, "bytes", result->size);
	json_uint(json, "messages", result->messages);
	json_double(json, "seconds", result->seconds);
	json_double(json, "bytes_per_second", result->bytes_per_second);
	json_double(json, "messages_per_second", result->messages_per_second);
	json_double(json, "min_us", (double)times->least / 1e3);
	print_time(json, "p50_us", times, 0.5);
	print_time(json, "p99_us", times, 0.99);
	print_time(json, "p999_us", times, 0.999);
	json_double(json, "max_us", (double)times->most / 1e3);
	json_double(json, "mean_us", histogram_mean(&result->times) / 1e3);
	json_double(json, "cpu_s_per_gib_here", result->cpu_ns_per_gib / 1e9);
	json_double(json, "cpu_s_per_gib_there", result->peer_cpu_ns_per_gib / 1e9);
	if (histogram)
		print_buckets(json, times);
	json_close(json, '}');
}

/* All of it, as one value. */
static void print_perf_json(const struct measurement *run)
{
	struct json json = { .file = stdout };
	time_t now = time(NULL);
	struct tm utc;
	char date[32] = "";

	if (gmtime_r(&now, &utc))
		strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_open(&json, NULL, '{');
	json_string(&json, "test", run->options.test);
	json_string(&json, "date", date);
	print_settings(&json, run);
	print_report(&json, "here", &run->here);
	print_report(&json, "there", &run->there);
	json_open(&json, "results", '[');
	for (uint32_t i = 0; i < run->result_count; i++)
		print_result(&json, &run->results[i], run->options.histogram);
	json_close(&json, ']');
	json_close(&json, '}');
}

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

	struct tcp_address server;

	if (!options->host)
		return 0;
	if (options->connect) {
		if (call_server(options->host, options->connect, &measurement->control,
				&server) < 0)
			return -1;
		find_peer_addresses(server.text, &measurement->shell,
				    measurement->place.device, &measurement->peers);
		return 0;
	}
	if (split_shell(options->rsh, options->port, &measurement->shell,
			&measurement->failure) < 0)
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
	    (!options->connect &&
	     start_remote(&measurement->remote, options->host, &measurement->shell,
			  options->remote_pier, control) < 0) ||
	    control_exchange_preambles(control) < 0)
		return -1;
	if (options->host)
		connect_only_to(&measurement->peers);
	return send_perf_request(control, &measurement->session.request);
}

static int open_measurement(struct measurement *measurement)
{
	struct perf_session *session = &measurement->session;

	session->side.client = true;
	if (open_side(&session->side, &session->request.settings, &measurement->place,
		      !measurement->options.host, &measurement->control) < 0 ||
	    fill_sources(&session->side, &measurement->failure) < 0)
		return -1;
	measurement->here = session->side.report;
	measurement->there = session->side.peer_report;
	measurement->channels = session->side.lane_count;
	if (session->side.substitute && !measurement->options.quiet)
		print_error("pier perf: no usable RDMA device: using the software "
			    "NIC " PIER_SOFT_DEVICE);
	return 0;
}

static int measure_sizes(struct measurement *measurement)
{
	const struct perf_options *options = &measurement->options;

	print_perf_start(measurement);
	for (uint32_t i = 0; i < options->size_count; i++) {
		struct perf_result *result = &measurement->results[i];

		if (measure_size(&measurement->session, options->sizes[i], result) < 0)
			return -1;
		measurement->result_count++;
		print_perf_result(measurement, result);
	}
	if (control_send(&measurement->control, FRAME_PERF_END, NULL) < 0)
		return -1;
	print_perf_end(measurement);
	return 0;
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
	measurement->results = results;
	measurement->session.control = &measurement->control;
	measurement->control = (struct control){
		.protocol = &perf_protocol,
		.in = -1,
		.out = -1,
		.signal_fd = -1,
		.timeout_ms = options->settings.timeout_ms,
		.peer = options->host,
		.by_hand = options->connect,
		.failure = &measurement->failure,
	};
	plan_places(measurement);
	if (prepare_measurement(measurement) == 0 && start_server(measurement) == 0 &&
	    open_measurement(measurement) == 0)
		measure_sizes(measurement);
	control_send_failure(&measurement->control);
	close_side(&measurement->session.side);
	hang_up(&measurement->control);
	end_remote(&measurement->remote, &measurement->control);
	if (measurement->failure.status)
		print_failure(&measurement->failure);
	/* Also the sizes that were complete before a failure. */
	if (options->format == PERF_JSON && measurement->result_count)
		print_perf_json(measurement);
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
	return options.listen
		       ? run_server(false, options.listen, options.settings.timeout_ms)
		       : run_command(&options);
}
