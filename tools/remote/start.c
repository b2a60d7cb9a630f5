/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "start.h"

enum {
	/*
	 * Then SIGTERM, then SIGKILL. Together below the documented 5 s. A busy host may
	 * not run the server for 3 s, and a server that is killed leaves things behind.
	 */
	EXIT_WAIT_MS = 3500,
	TERM_MS = 1000,
};

extern char **environ;

/* ssh(1) joins its arguments with blanks and passes them to a shell. */
static void quote_for_shell(const char *text, char *ret_quoted, size_t size)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789_-+=:,./@%~";
	size_t used = 0;

	if (text[strspn(text, plain)] == '\0') {
		snprintf(ret_quoted, size, "%s", text);
		return;
	}
	used += (size_t)snprintf(ret_quoted, size, "'");
	for (; *text && used + 6 < size; text++)
		used += (size_t)snprintf(ret_quoted + used, size - used,
					 *text == '\'' ? "'\\''" : "%c", *text);
	snprintf(ret_quoted + used, size - used, "'");
}

static int spawn_server(struct remote *remote, char *const *argv, int in, int out,
			struct failure *failure)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, defaults;
	int error;

	sigemptyset(&none);
	sigemptyset(&defaults);
	sigaddset(&defaults, SIGPIPE);
	sigaddset(&defaults, SIGXFSZ);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &defaults);
	posix_spawnattr_setflags(&attributes,
				 POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	error = posix_spawnp(&remote->pid, argv[0], &actions, &attributes, argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	if (!error)
		return 0;
	remote->pid = 0;
	return fail(failure, EXIT_PEER, "cannot run %s: %s", remote->command,
		    strerror(error));
}

static int spawn_with_pipes(struct remote *remote, char *const *argv,
			    struct control *control)
{
	int to[2] = { -1, -1 }, from[2] = { -1, -1 }, result;

	if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0)
		result = fail(control->failure, EXIT_PEER, "pipe: %s", strerror(errno));
	else
		result = spawn_server(remote, argv, to[0], from[1], control->failure);
	if (to[0] >= 0)
		close(to[0]);
	if (from[1] >= 0)
		close(from[1]);
	control->out = to[1];
	control->in = from[0];
	return result;
}

static int start_local_server(struct remote *remote, struct control *control)
{
	char exe[] = "/proc/self/exe", server[] = "--server", local[] = "--local";
	char *command = (char *)control->protocol->command;
	char *argv[] = { exe, command, server, local, NULL };

	remote->local = true;
	snprintf(remote->command, sizeof(remote->command), "pier");
	return spawn_with_pipes(remote, argv, control);
}

int start_remote(struct remote *remote, const char *host, const struct shell *shell,
		 const char *remote_pier, struct control *control)
{
	/*
	 * The server needs neither the agent, credentials or display, nor anything
	 * configured for interactive sessions. scp(1) adds most of these options too.
	 * They follow the user's own options, because ssh_config(5) uses the first value
	 * of each.
	 */
	static const char *const ssh_options[] = {
		"-oForwardAgent=no",
		"-oForwardX11=no",
		"-oGSSAPIDelegateCredentials=no",
		"-oClearAllForwardings=yes",
		"-oPermitLocalCommand=no",
		"-oRemoteCommand=none",
		"-oRequestTTY=no",
		NULL,
	};
	char quoted[4096], bytes[SHELL_COMMAND_MAX], server[] = "--server";
	char *argv[SHELL_ARGV_MAX];
	size_t count;

	if (!host)
		return start_local_server(remote, control);
	count = shell_command(shell, host, ssh_options, bytes, argv);
	if (count == 0)
		return fail(control->failure, EXIT_USAGE, "--rsh is too long");
	quote_for_shell(remote_pier, quoted, sizeof(quoted));
	snprintf(remote->command, sizeof(remote->command), "%s", argv[0]);
	argv[count++] = quoted;
	argv[count++] = (char *)control->protocol->command;
	argv[count++] = server;
	argv[count] = NULL;
	return spawn_with_pipes(remote, argv, control);
}

/* Always false on a kernel without pidfds, which is before 5.3. */
static bool ended_within(pid_t pid, int ms)
{
	/* glibc has a function for it from 2.36 on. */
	struct pollfd pollfd = { .fd = (int)syscall(SYS_pidfd_open, pid, 0),
				 .events = POLLIN };
	bool ended = pollfd.fd >= 0 && poll(&pollfd, 1, ms) == 1;

	if (pollfd.fd >= 0)
		close(pollfd.fd);
	return ended;
}

bool remote_ends_within(const struct remote *remote, int ms)
{
	return remote->pid <= 0 || ended_within(remote->pid, ms);
}

/* Returns the wait status. */
static int reap_server(pid_t pid, int waited_ms)
{
	int left_ms = waited_ms < EXIT_WAIT_MS ? EXIT_WAIT_MS - waited_ms : 0;
	int status = 0;

	if (!ended_within(pid, left_ms)) {
		kill(pid, SIGTERM);
		if (!ended_within(pid, TERM_MS))
			kill(pid, SIGKILL);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

/* Writes how the server ended, or "" if it ended normally. */
static void wait_for_server(struct remote *remote, int waited_ms, char *ret_how,
			    size_t size)
{
	int status;

	ret_how[0] = '\0';
	if (remote->pid <= 0)
		return;
	status = reap_server(remote->pid, waited_ms);
	remote->pid = 0;
	if (WIFSIGNALED(status))
		snprintf(ret_how, size, "%s was killed by signal %d (%s)",
			 remote->command, WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) == 127 && !remote->local)
		snprintf(ret_how, size,
			 "%s exited with status 127; is pier installed there? Set its "
			 "path with --remote-pier",
			 remote->command);
	else if (WEXITSTATUS(status) != 0)
		snprintf(ret_how, size, "%s exited with status %d", remote->command,
			 WEXITSTATUS(status));
}

void end_remote(struct remote *remote, struct control *control)
{
	struct failure *failure = control->failure;
	size_t used = strlen(failure->text);
	char how[256];

	control_close(control);
	wait_for_server(remote, control->waited_ms, how, sizeof(how));
	if (control->signal_fd >= 0)
		close(control->signal_fd);
	control->signal_fd = -1;
	if (failure->status == EXIT_PEER && control->peer_closed && how[0])
		snprintf(failure->text + used, sizeof(failure->text) - used, ": %s", how);
}

int take_descriptors(struct control *control)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	control->in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	control->out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (null < 0 || control->in < 0 || control->out < 0 ||
	    dup2(null, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return fail(control->failure, EXIT_FILE,
			    "cannot take over standard input and output: %s",
			    strerror(errno));
	close(null);
	return 0;
}
