/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "json.h"
#include "print.h"
#include "printable.h"
#include "units.h"

enum {
	BAR_WIDTH = 50
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

static void print_header(const struct perf_run *run)
{
	if (run->settings->latency)
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

void print_perf_start(const struct perf_run *run)
{
	const struct perf_settings *settings = run->settings;
	char sizes[128] = "";

	if (run->options->format == PERF_CSV)
		fputs(csv_header, stdout);
	if (run->options->format != PERF_TABLE)
		return;
	if (!settings->latency)
		snprintf(sizes, sizeof(sizes),
			 ", channels: %" PRIu32 ", threads: %" PRIu32 ", depth: %" PRIu32
			 ", batches of %" PRIu32,
			 run->channels, settings->threads, settings->depth,
			 settings->batch);
	print_folded(stdout, "#   ", "# %s%s%s%s", run->options->test,
		     settings->both ? ", both directions" : "",
		     settings->events ? ", sleeping" : "", sizes);
	print_side("here", &run->here);
	print_side("there", &run->there);
	print_header(run);
	fflush(stdout);
}

static void print_row(const struct perf_run *run, const struct perf_result *result)
{
	printf("%*" PRIu64 " %10" PRIu64, run->settings->latency ? 10 : 9, result->size,
	       result->messages);
	if (run->settings->latency)
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

static void print_csv_row(const struct perf_run *run, const struct perf_result *result)
{
	printf("%s,%" PRIu64 ",%" PRIu64 ",%.6f,%.0f,%.1f,%.3f,%.3f,%.3f,%.3f,%.3f,%.6f,"
	       "%.6f\n",
	       run->options->test, result->size, result->messages, result->seconds,
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

void print_perf_result(const struct perf_run *run, const struct perf_result *result)
{
	if (run->options->format == PERF_CSV)
		print_csv_row(run, result);
	if (run->options->format == PERF_TABLE) {
		print_row(run, result);
		if (run->options->histogram)
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

void print_perf_end(const struct perf_run *run)
{
	if (run->options->format != PERF_TABLE)
		return;
	print_registration("here", &run->here);
	print_registration("there", &run->there);
	if (!run->settings->latency)
		printf("# times: from posting a batch to its completion; CPU: seconds "
		       "per "
		       "GiB\n");
}

static void print_report(struct json *json, const char *name,
			 const struct perf_report *report)
{
	json_open(json, name, '{');
	json_string(json, "device", report->device);
	json_string(json, "driver", report->driver);
	json_string(json, "firmware", report->firmware);
	json_string(json, "link", report->link);
	json_string(json, "memory", report->memory);
	json_string(json, "memory_kind", report->memory_kind);
	json_string(json, "memory_driver", report->memory_driver);
	json_string(json, "path", report->path);
	json_string(json, "mapping", report->mapping);
	json_string(json, "reason", report->reason);
	json_string(json, "host", report->host);
	json_string(json, "kernel", report->kernel);
	json_string(json, "processor", report->processor);
	json_string(json, "pier", report->version);
	json_uint(json, "registered_bytes", report->registered);
	json_uint(json, "register_ns", report->register_ns);
	json_uint(json, "deregister_ns", report->deregister_ns);
	json_close(json, '}');
}

static void print_settings(struct json *json, const struct perf_run *run)
{
	const struct perf_settings *settings = run->settings;

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

void print_perf_json(const struct perf_run *run)
{
	struct json json = { .file = stdout };
	time_t now = time(NULL);
	struct tm utc;
	char date[32] = "";

	if (gmtime_r(&now, &utc))
		strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
	json_open(&json, NULL, '{');
	json_string(&json, "test", run->options->test);
	json_string(&json, "date", date);
	print_settings(&json, run);
	print_report(&json, "here", &run->here);
	print_report(&json, "there", &run->there);
	json_open(&json, "results", '[');
	for (uint32_t i = 0; i < run->result_count; i++)
		print_result(&json, &run->results[i], run->options->histogram);
	json_close(&json, ']');
	json_close(&json, '}');
}
