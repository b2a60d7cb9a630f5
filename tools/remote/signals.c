/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "signals.h"

int open_signals(struct failure *failure)
{
	static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction action;
	sigset_t set;
	size_t i;
	int fd;

	sigemptyset(&set);
	/* signalfd(2) would deliver an ignored signal if it were blocked: respect
	 * nohup(1). */
	for (i = 0; i < sizeof(ending) / sizeof(ending[0]); i++)
		if (sigaction(ending[i], NULL, &action) == 0 &&
		    action.sa_handler != SIG_IGN)
			sigaddset(&set, ending[i]);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return fail(failure, EXIT_FILE, "signalfd: %s", strerror(errno));
	return fd;
}

int check_signals(int fd, struct failure *failure)
{
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof(info)) != sizeof(info))
		return 0;
	return fail(failure, EXIT_SIGNAL + (int)info.ssi_signo, "%s",
		    info.ssi_signo == SIGINT ? "interrupted" : "terminated by a signal");
}
