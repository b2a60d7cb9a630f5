/* SPDX-License-Identifier: BSD-3-Clause */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "json.h"
#include "progress.h"
#include "units.h"

enum {
	INTERVAL_NS = 200000000,
	/* The rate is an average of about this many seconds. */
	RATE_SECONDS = 5,
	BAR_MAX = 40,
};

bool reader_is_behind(int fd)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLOUT };

	return poll(&pollfd, 1, 0) == 0;
}

static bool is_known(const struct progress *progress)
{
	return progress->total <= INT64_MAX;
}

static void add_total(struct json *json, const struct progress *progress)
{
	if (is_known(progress))
		json_uint(json, "total", progress->total);
	else
		json_string(json, "total", NULL);
}

static void print_start(const struct progress *progress)
{
	struct json json = { .file = stdout, .line = true };

	json_open(&json, NULL, '{');
	json_string(&json, "event", "start");
	add_total(&json, progress);
	json_close(&json, '}');
	fflush(stdout);
}

void begin_progress(struct progress *progress, uint64_t total)
{
	progress->terminal = !progress->json && isatty(STDERR_FILENO);
	progress->total = total;
	progress->bytes = 0;
	progress->rate = 0;
	progress->started_ns = progress->counted_ns = now_ns();
	progress->drawn_ns = 0;
	if (progress->shown && progress->json)
		print_start(progress);
}

void skip_progress(struct progress *progress, uint64_t bytes)
{
	progress->bytes = bytes;
	progress->counted_ns = now_ns();
}

/* Not the last column: some terminals wrap there. */
static unsigned int terminal_columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < 2)
		return 79;
	return size.ws_col - 1u;
}

static void draw_bar(const char *text, unsigned int width, double part)
{
	unsigned int bar, filled, i;
	int cut = (int)width;

	bar = width > strlen(text) + 3 ? width - (unsigned int)strlen(text) - 3 : 0;
	if (bar > BAR_MAX)
		bar = BAR_MAX;
	/* Return to the first column and erase the line. */
	fprintf(stderr, "\r\033[K%.*s", cut, text);
	if (bar >= 8) {
		filled = (unsigned int)(part * bar);
		fputs(" [", stderr);
		for (i = 0; i < bar; i++)
			fputc(i < filled ? '#' : ' ', stderr);
		fputc(']', stderr);
	}
	fflush(stderr);
}

/* The weight of the newest interval grows with its length, so a pause counts, too. */
static void update_rate(struct progress *progress, uint64_t bytes, uint64_t now)
{
	bool first = progress->rate <= 0;
	double seconds = (double)(now - progress->counted_ns) / 1e9, rate, weight;

	if (seconds <= 0)
		return;
	rate = (double)(bytes - progress->bytes) / seconds;
	weight = first ? 1 : seconds / (seconds + RATE_SECONDS);
	progress->rate += weight * (rate - progress->rate);
	progress->bytes = bytes;
	progress->counted_ns = now;
}

/* Negative: unknown, because nothing moves, or the total is. */
static double seconds_left(const struct progress *progress)
{
	if (progress->bytes >= progress->total)
		return 0;
	return progress->rate >= 1 && is_known(progress)
		       ? (double)(progress->total - progress->bytes) / progress->rate
		       : -1;
}

static void print_text(struct progress *progress)
{
	char text[192], done[32], total[32], rate[32], left[64] = "";
	double seconds = seconds_left(progress), part = is_known(progress);

	if (progress->total && is_known(progress))
		part = (double)progress->bytes / (double)progress->total;
	format_bytes(progress->bytes, done, sizeof(done));
	format_bytes(progress->total, total, sizeof(total));
	format_rate(progress->rate, rate, sizeof(rate));
	if (seconds >= 0)
		format_duration(seconds, left, sizeof(left));
	if (is_known(progress))
		snprintf(text, sizeof(text), "%3u%% %s of %s, %s%s%s%s",
			 (unsigned int)(part * 100), done, total, rate,
			 left[0] ? ", " : "", left, left[0] ? " left" : "");
	else
		snprintf(text, sizeof(text), "%s, %s", done, rate);
	progress->drawn = true;
	if (progress->terminal)
		draw_bar(text, terminal_columns(), part);
	else
		fprintf(stderr, "%s\n", text);
}

static void print_event(const struct progress *progress, uint64_t now)
{
	struct json json = { .file = stdout, .line = true };
	double left = seconds_left(progress);

	json_open(&json, NULL, '{');
	json_string(&json, "event", "progress");
	json_uint(&json, "bytes", progress->bytes);
	add_total(&json, progress);
	json_double(&json, "seconds", (double)(now - progress->started_ns) / 1e9);
	json_double(&json, "bytes_per_second", progress->rate);
	if (left >= 0)
		json_double(&json, "seconds_left", left);
	else
		json_string(&json, "seconds_left", NULL);
	json_close(&json, '}');
	fflush(stdout);
}

void show_progress(struct progress *progress, uint64_t bytes)
{
	uint64_t now;

	if (!progress->shown)
		return;
	now = now_ns();
	if (now - progress->drawn_ns < INTERVAL_NS ||
	    reader_is_behind(progress->json ? STDOUT_FILENO : STDERR_FILENO))
		return;
	update_rate(progress, bytes, now);
	progress->drawn_ns = now;
	if (progress->json)
		print_event(progress, now);
	else
		print_text(progress);
}

void end_progress(struct progress *progress)
{
	if (progress->drawn && progress->terminal)
		fputs("\r\033[K", stderr);
	progress->drawn = false;
}
