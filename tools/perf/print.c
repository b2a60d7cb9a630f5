/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
	bool against = run->earlier.test[0];

	if (run->settings->latency)
		printf("%10s %10s %9s %9s %9s %9s %9s %9s", "bytes", "messages", "min us",
		       "p50 us", "p99 us", "p99.9 us", "max us", "mean us");
	else
		printf("%9s %10s %7s %7s %8s %8s %8s %8s", "bytes", "messages", "GB/s",
		       "Gbit/s", "Mmsg/s", "p50 us", "p99 us", "p99.9 us");
	if (!run->settings->latency)
		printf(" %8s %7s", "CPU here", "there");
	printf("%s\n", against ? " x before" : "");
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

/* The ratio to the earlier bandwidth, or to the earlier median. */
static void print_ratio(const struct perf_run *run, const struct perf_result *result)
{
	const struct earlier_result *earlier = find_earlier_result(&run->earlier,
								   result->size);
	double now = run->settings->latency ? quantile_us(result, 0.5)
					    : result->bytes_per_second;
	double before;

	if (!run->earlier.test[0])
		return;
	before = !earlier		  ? 0
		 : run->settings->latency ? earlier->median_us
					  : earlier->bytes_per_second;
	if (before > 0)
		printf(" %8.2f", now / before);
	else
		printf(" %8s", "-");
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
	print_ratio(run, result);
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
