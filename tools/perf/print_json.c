/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <time.h>

#include "json.h"
#include "print.h"

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
