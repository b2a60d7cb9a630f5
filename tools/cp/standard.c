/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "path.h"
#include "standard.h"

static int fail_input(struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot read standard input: %s",
		    strerror(errno));
}

static int fail_output(struct failure *failure)
{
	return fail(failure, EXIT_FILE, "cannot write to standard output: %s",
		    strerror(errno));
}

int open_standard_input(struct standard *standard, struct failure *failure)
{
	standard->fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	standard->stop = eventfd(0, EFD_CLOEXEC);
	/* Reading nothing fails for a directory, or if it is open only for writing. */
	return standard->fd < 0 || standard->stop < 0 || read(standard->fd, NULL, 0) < 0
		       ? fail_input(failure)
		       : 0;
}

int open_standard_output(struct standard *standard, struct failure *failure)
{
	struct stat stat;

	standard->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	standard->stop = eventfd(0, EFD_CLOEXEC);
	if (standard->fd < 0 || standard->stop < 0 || fstat(standard->fd, &stat) < 0 ||
	    dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return fail_output(failure);
	/* A pipe that poll(2) finds writable has room for that, and not always for more:
	 * pipe(7). */
	standard->most = S_ISREG(stat.st_mode) ? DIRECT_SIZE : PIPE_BUF;
	return 0;
}

/* Wait until the descriptor is ready: 0, or -1 with errno. Its flags are shared with
 * other processes, so O_NONBLOCK is left as it is. */
static int await_standard(const struct standard *standard, short events)
{
	struct pollfd fds[] = {
		{ .fd = standard->fd, .events = events },
		{ .fd = standard->stop, .events = POLLIN },
	};
	int ready;

	do
		ready = poll(fds, 2, -1);
	while (ready < 0 && errno == EINTR);
	if (ready > 0 && fds[1].revents)
		errno = ECANCELED;
	return ready < 0 || fds[1].revents ? -1 : 0;
}

int read_standard(struct standard *standard, void *ret_data, size_t *length,
		  struct failure *failure)
{
	size_t wanted = *length;

	*length = 0;
	while (*length < wanted && !standard->ended) {
		ssize_t count;

		if (await_standard(standard, POLLIN) < 0)
			return fail_input(failure);
		count = read(standard->fd, (char *)ret_data + *length, wanted - *length);
		if (count < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (count < 0)
			return fail_input(failure);
		/* A terminal would go on after this. */
		standard->ended = count == 0;
		*length += (size_t)count;
	}
	return 0;
}

int write_standard(struct standard *standard, const void *data, size_t length,
		   struct failure *failure)
{
	const char *from = data;

	while (length > 0) {
		size_t part = length < standard->most ? length : standard->most;
		ssize_t count;

		if (await_standard(standard, POLLOUT) < 0)
			return fail_output(failure);
		count = write(standard->fd, from, part);
		if (count < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (count < 0)
			return fail_output(failure);
		from += count;
		length -= (size_t)count;
	}
	return 0;
}

void stop_standard(struct standard *standard)
{
	if (standard)
		eventfd_write(standard->stop, 1);
}

void close_standard(struct standard *standard)
{
	close_fd(standard->fd);
	close_fd(standard->stop);
}
