/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "progress.h"
#include "units.h"

enum {
	INTERVAL_NS = 200000000,
	BAR_MAX = 40,
};

void begin_progress(struct progress *progress, uint64_t total)
{
	progress->terminal = isatty(STDERR_FILENO);
	progress->total = total;
	progress->started_ns = now_ns();
	progress->drawn_ns = 0;
}

/* Not the last column: some terminals wrap there. */
static unsigned int terminal_columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < 2)
		return 79;
	return size.ws_col - 1u;
}

static void format_time(double seconds, char *ret_text, size_t size)
{
	unsigned long whole = seconds < 359999 ? (unsigned long)(seconds + 0.5) : 359999;

	if (whole >= 3600)
		snprintf(ret_text, size, "%lu:%02lu:%02lu", whole / 3600, whole / 60 % 60,
			 whole % 60);
	else
		snprintf(ret_text, size, "%lu:%02lu", whole / 60, whole % 60);
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

void show_progress(struct progress *progress, uint64_t bytes)
{
	char text[128], done[32], left[32];
	double part, seconds, rate;
	uint64_t now;

	if (!progress->shown)
		return;
	now = now_ns();
	if (now - progress->drawn_ns < INTERVAL_NS)
		return;
	progress->drawn_ns = now;
	seconds = (double)(now - progress->started_ns) / 1e9;
	rate = seconds > 0 ? (double)bytes / seconds : 0;
	part = progress->total ? (double)bytes / (double)progress->total : 1;
	format_bytes(bytes, done, sizeof(done));
	format_time(rate > 0 ? (double)(progress->total - bytes) / rate : 359999, left,
		    sizeof(left));
	snprintf(text, sizeof(text), "%3u%% %s, %.2f GB/s, %s left",
		 (unsigned int)(part * 100), done, rate / 1e9, left);
	progress->drawn = true;
	if (progress->terminal)
		draw_bar(text, terminal_columns(), part);
	else
		fprintf(stderr, "%s\n", text);
}

void end_progress(struct progress *progress)
{
	if (progress->drawn && progress->terminal)
		fputs("\r\033[K", stderr);
	progress->drawn = false;
}
