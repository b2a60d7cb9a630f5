/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plot.h"
#include "print.h"

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

/* Both write a program that draws the run as "svg" or "png" on standard output. */
static void write_gnuplot_script(FILE *file, const struct perf_run *run,
				 const char *format)
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

static void write_matplotlib_script(FILE *file, const struct perf_run *run,
				    const char *format)
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

extern char **environ;

enum {
	DRAW_MS = 60000,
	PICTURE_PATH_MAX = 4096,
};

/*
 * Each reads a script from its standard input and writes the picture to its output. None
 * runs code of the current folder: python3 -I does not look for modules there, and
 * gnuplot -d reads no .gnuplot. matplotlib looks for its matplotlibrc there, so the
 * scripts of Python leave the folder.
 */
static const struct plotter {
	const char *argv[4];
	const char *probe[5]; /* exits with 0 if the program can draw */
	void (*write_script)(FILE *file, const struct perf_run *run, const char *format);
} plotters[] = {
	{ { "gnuplot", "-d" }, { "gnuplot", "--version" }, write_gnuplot_script },
	{ { "python3", "-I", "-" },
	  { "python3", "-I", "-c", "import os; os.chdir('/'); import matplotlib" },
	  write_matplotlib_script },
};

/* Returns the wait status; kills the process if it does not end. */
static int await_process(pid_t pid)
{
	/* glibc has a function for it from 2.36 on. */
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), status = 0;
	struct pollfd pollfd = { .fd = pidfd, .events = POLLIN };

	if (pidfd < 0 || poll(&pollfd, 1, DRAW_MS) != 1)
		kill(pid, SIGKILL);
	if (pidfd >= 0)
		close(pidfd);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/* Returns whether the program ran and exited with 0. */
static bool run_program(const char *const *argv, int in, int out, int err)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none;
	pid_t pid;
	int error;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	error = posix_spawnp(&pid, argv[0], &actions, &attributes, (char *const *)argv,
			     environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return !error && await_process(pid) == 0;
}

static const struct plotter *find_plotter(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	const struct plotter *found = NULL;

	for (size_t i = 0; null >= 0 && !found && i < 2; i++)
		if (run_program(plotters[i].probe, null, null, null))
			found = &plotters[i];
	if (null >= 0)
		close(null);
	return found;
}

/* "svg" or "png", or NULL. */
static const char *picture_format(const char *path)
{
	const char *dot = strrchr(path, '.');

	if (!dot || (strcmp(dot, ".svg") != 0 && strcmp(dot, ".png") != 0))
		return NULL;
	return dot + 1;
}

int check_plot(const char *path, struct failure *failure)
{
	if (!picture_format(path))
		return fail(failure, EXIT_USAGE,
			    "cannot draw '%s': the name must end in .svg or .png", path);
	if (!find_plotter())
		return fail(failure, EXIT_FILE,
			    "cannot draw '%s': install gnuplot or Python's matplotlib",
			    path);
	return 0;
}

/* Returns a descriptor of the script, at its start; or -1 with errno set. */
static int open_script(const struct plotter *plotter, const struct perf_run *run,
		       const char *format)
{
	int fd = memfd_create("script", MFD_CLOEXEC), copy = fd < 0 ? -1 : dup(fd);
	FILE *file = copy < 0 ? NULL : fdopen(copy, "w");

	if (!file) {
		if (copy >= 0)
			close(copy);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	plotter->write_script(file, run, format);
	if (fclose(file) != 0 || lseek(fd, 0, SEEK_SET) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* The picture gets its name when it is complete. */
static int draw_to(const struct plotter *plotter, int script, const char *path,
		   struct failure *failure)
{
	char partial[PICTURE_PATH_MAX];
	mode_t mask = umask(0);
	bool drawn;
	int fd;

	umask(mask);
	snprintf(partial, sizeof(partial), "%s.XXXXXX", path);
	fd = mkostemp(partial, O_CLOEXEC);
	if (fd < 0)
		return fail(failure, EXIT_FILE, "cannot write '%s': %s", path,
			    strerror(errno));
	drawn = run_program(plotter->argv, script, fd, STDERR_FILENO);
	fchmod(fd, 0666 & ~mask);
	if (close(fd) == 0 && drawn && rename(partial, path) == 0)
		return 0;
	fail(failure, EXIT_FILE, "cannot draw '%s': %s", path,
	     drawn ? strerror(errno) : "the program failed");
	unlink(partial);
	return -1;
}

int draw_plot(const struct perf_run *run, const char *path, struct failure *failure)
{
	const struct plotter *plotter = find_plotter();
	int script, result;

	if (!plotter)
		return fail(failure, EXIT_FILE, "cannot draw '%s': no program for it",
			    path);
	script = open_script(plotter, run, picture_format(path));
	if (script < 0)
		return fail(failure, EXIT_FILE, "cannot draw '%s': %s", path,
			    strerror(errno));
	result = draw_to(plotter, script, path, failure);
	close(script);
	return result;
}
