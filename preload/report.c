/* SPDX-License-Identifier: BSD-3-Clause */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pier/mr.h>

#include "preload.h"

/* Messages for the user: on standard error, and in the file PIER_DMABUF_REPORT. */

enum {
	LINE_MAX_BYTES = 1024,
	CAUSES = 64,
};

/* The text without its numbers: lengths and addresses make no other cause. */
static uint64_t hash_cause(const char *text)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	while (*text) {
		if (isdigit((unsigned char)*text)) {
			while (isxdigit((unsigned char)*text) || *text == 'x')
				text++;
			continue;
		}
		hash = (hash ^ (unsigned char)*text++) * UINT64_C(0x100000001b3);
	}
	return hash | 1;
}

/* Whether it is the first of its cause; without room for more causes, never. */
static bool is_new(uint64_t cause)
{
	static atomic_uint_fast64_t told[CAUSES];

	for (size_t i = 0; i < CAUSES; i++) {
		uint_fast64_t empty = 0;

		if (atomic_compare_exchange_strong(&told[i], &empty, cause))
			return true;
		if (empty == cause)
			return false;
	}
	return false;
}

static bool had_stderr;

static __attribute__((constructor)) void look_at_stderr(void)
{
	had_stderr = fcntl(STDERR_FILENO, F_GETFD) >= 0;
}

/*
 * Whether fd 2 is standard error, and not a file or socket of the program. It is that if
 * the process began without fd 2, or closed it; most fds of programs are closed on exec,
 * and standard error is not.
 */
static bool is_stderr(void)
{
	int flags = fcntl(STDERR_FILENO, F_GETFD);

	return had_stderr && flags >= 0 && !(flags & FD_CLOEXEC);
}

void preload_complain(const char *outcome, const char *sentence)
{
	int error = errno;
	char line[LINE_MAX_BYTES];
	int length;

	if (!is_stderr() || !is_new(hash_cause(sentence))) {
		errno = error;
		return;
	}
	length = snprintf(line, sizeof(line), "pier: memory of a GPU was %s: %s\n",
			  outcome, sentence);
	if (length >= (int)sizeof(line))
		length = sizeof(line) - 1;
	line[length - 1] = '\n';
	if (write(STDERR_FILENO, line, (size_t)length) < 0)
		errno = 0; /* nobody listens */
	errno = error;
}

static const char *report_path(void)
{
	const char *path = secure_getenv("PIER_DMABUF_REPORT");

	return path && path[0] ? path : NULL;
}

bool preload_reports(void)
{
	return report_path();
}

/* Tabs and ends of lines are the file's own. */
static void flatten(char *text)
{
	for (; *text; text++)
		if (iscntrl((unsigned char)*text))
			*text = ' ';
}

/*
 * One write(2) for each line, so that processes can share the file. It is not kept open:
 * a program may close any fd that it does not know, and open another in its place.
 */
static void append(const char *line, size_t length)
{
	const char *path = report_path();
	/* O_NONBLOCK: a FIFO that nobody reads holds no program up. */
	int fd = !path ? -1
		       : open(path,
			      O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY |
				      O_NONBLOCK,
			      0600);
	ssize_t written = fd < 0 ? -1 : write(fd, line, length);

	if (written != (ssize_t)length)
		preload_complain("registered without a line in PIER_DMABUF_REPORT",
				 strerror(written < 0 ? errno : ENOSPC));
	if (fd >= 0)
		close(fd);
}

void preload_report(const struct preload_request *request,
		    const struct preload_facts *facts, uint64_t nanoseconds, int error,
		    const char *sentence)
{
	char line[LINE_MAX_BYTES], kind[sizeof(facts->kind)], reason[512];
	struct timespec time;
	int length;

	snprintf(kind, sizeof(kind), "%s", facts->kind);
	flatten(kind);
	snprintf(reason, sizeof(reason), "%s", sentence);
	flatten(reason);
	clock_gettime(CLOCK_REALTIME, &time);
	length = snprintf(line, sizeof(line),
			  "1\t%lld.%06ld\t%d\t%s\t%p\t%zu\t%s\t%s\t%s\t%" PRIu64 ".%03u"
			  "\t%d\t%s\n",
			  (long long)time.tv_sec, time.tv_nsec / 1000, (int)getpid(),
			  request->pd->context->device->name, request->addr,
			  request->length, kind, facts->path, facts->mapping,
			  nanoseconds / 1000, (unsigned int)(nanoseconds % 1000), error,
			  reason);
	append(line, (size_t)length);
}
