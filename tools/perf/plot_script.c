/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plot_script.h"

/* Gbit/s, or the median in microseconds. */
static double value_now(const struct perf_run *run, const struct perf_result *result)
{
	return run->settings->latency
		       ? (double)histogram_quantile(&result->times, 0.5) / 1e3
		       : result->bytes_per_second * 8 / 1e9;
}

static double value_before(const struct perf_run *run,
			   const struct earlier_result *earlier)
{
	return run->settings->latency ? earlier->median_us
				      : earlier->bytes_per_second * 8 / 1e9;
}

static const char *value_label(const struct perf_run *run)
{
	return run->settings->latency ? "median latency, us" : "bandwidth, Gbit/s";
}

/* The other side chooses part of the text: it must not become part of the program. */
static void write_plain(FILE *file, const char *text)
{
	for (; *text; text++)
		fputc(isalnum((unsigned char)*text) || strchr("_:,. ", *text) ? *text
									      : '-',
		      file);
}

static void write_title(FILE *file, const struct perf_run *run)
{
	write_plain(file, run->options->test);
	fputs(", ", file);
	write_plain(file, run->here.device);
	fputs(" ", file);
	write_plain(file, run->here.memory);
	fputs(" and ", file);
	write_plain(file, run->there.device);
	fputs(" ", file);
	write_plain(file, run->there.memory);
}

void write_gnuplot_script(FILE *file, const struct perf_run *run, const char *format)
{
	const struct earlier_run *earlier = &run->earlier;

	fprintf(file, "$now << END\n");
	for (uint32_t i = 0; i < run->result_count; i++)
		fprintf(file, "%" PRIu64 " %.6f\n", run->results[i].size,
			value_now(run, &run->results[i]));
	fprintf(file, "END\n$before << END\n");
	for (uint32_t i = 0; i < earlier->count; i++)
		fprintf(file, "%" PRIu64 " %.6f\n", earlier->results[i].size,
			value_before(run, &earlier->results[i]));
	fprintf(file, "END\nset terminal %s size 900,560\nset title \"",
		strcmp(format, "svg") == 0 ? "svg" : "pngcairo");
	write_title(file, run);
	fprintf(file,
		"\" noenhanced\nset xlabel \"message size, bytes\"\nset ylabel \"%s\"\n"
		"set logscale x 2\nset yrange [0:*]\nset grid\nset key left top\n"
		"set style data linespoints\n",
		value_label(run));
	/* One point has no range, which gnuplot warns about. */
	if (run->result_count == 1 && !earlier->count)
		fprintf(file, "set xrange [%f:%f]\n", (double)run->results[0].size / 2,
			(double)run->results[0].size * 2);
	fprintf(file, "plot $now title \"this run\"%s\n",
		earlier->count ? ", $before title \"earlier run\"" : "");
}

void write_matplotlib_script(FILE *file, const struct perf_run *run, const char *format)
{
	const struct earlier_run *earlier = &run->earlier;

	fprintf(file, "import os, sys\nos.chdir('/')\nimport "
		      "matplotlib\nmatplotlib.use(\"Agg\")\n"
		      "from matplotlib import pyplot\n");
	fprintf(file, "now = [");
	for (uint32_t i = 0; i < run->result_count; i++)
		fprintf(file, "(%" PRIu64 ", %.6f), ", run->results[i].size,
			value_now(run, &run->results[i]));
	fprintf(file, "]\n");
	fprintf(file, "before = [");
	for (uint32_t i = 0; i < earlier->count; i++)
		fprintf(file, "(%" PRIu64 ", %.6f), ", earlier->results[i].size,
			value_before(run, &earlier->results[i]));
	fprintf(file,
		"]\nfigure, axes = pyplot.subplots(figsize=(9, 5.6))\n"
		"axes.plot(*zip(*now), marker=\"o\", label=\"this run\")\n"
		"if before:\n"
		"    axes.plot(*zip(*before), marker=\"s\", label=\"earlier run\")\n"
		"axes.set_xscale(\"log\", base=2)\naxes.set_ylim(bottom=0)\n"
		"axes.set_xlabel(\"message size, bytes\")\naxes.grid(True)\n"
		"axes.legend()\n");
	fprintf(file, "axes.set_ylabel(\"%s\")\naxes.set_title(\"", value_label(run));
	write_title(file, run);
	fprintf(file, "\")\nfigure.savefig(sys.stdout.buffer, format=\"%s\")\n", format);
}
