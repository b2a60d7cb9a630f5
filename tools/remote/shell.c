/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shell.h"
#include "units.h"

enum {
	SSH_OUTPUT_MAX = 65536,
	SSH_QUERY_MS = 5000,
};

extern char **environ;

/* Take the next word off *text, unquoted in place. Returns NULL at the end. */
static char *next_word(char **text)
{
	char *from = *text + strspn(*text, " \t"), *word = from, *to = from;
	char quote = '\0';

	if (!*from)
		return NULL;
	for (; *from && (quote || (*from != ' ' && *from != '\t')); from++) {
		if (quote ? *from == quote : (*from == '\'' || *from == '"'))
			quote = quote ? '\0' : *from;
		else
			*to++ = *from;
	}
	*text = *from ? from + 1 : from;
	*to = '\0';
	return word;
}

int split_shell(const char *rsh, struct shell *ret_shell, struct failure *failure)
{
	char *rest = ret_shell->bytes, *word = NULL;

	ret_shell->count = 0;
	if (strlen(rsh) >= sizeof(ret_shell->bytes))
		return fail(failure, EXIT_USAGE, "--rsh is too long");
	strcpy(ret_shell->bytes, rsh);
	while (ret_shell->count < SHELL_WORDS_MAX && (word = next_word(&rest)))
		ret_shell->words[ret_shell->count++] = word;
	ret_shell->words[ret_shell->count] = NULL;
	if (ret_shell->count == 0 || next_word(&rest))
		return fail(failure, EXIT_USAGE,
			    "--rsh must be a command of 1 to %d words", SHELL_WORDS_MAX);
	return 0;
}

bool shell_is_ssh(const struct shell *shell)
{
	const char *slash = strrchr(shell->words[0], '/');

	return strcmp(slash ? slash + 1 : shell->words[0], "ssh") == 0;
}

/*
 * Append a word to *bytes, with the host in place of each %h and % in place of %%.
 * Returns false if it does not fit.
 */
static bool expand_word(const char *word, const char *host, char **bytes, const char *end)
{
	char *to = *bytes;

	for (; *word; word++) {
		bool placeholder = word[0] == '%' && (word[1] == 'h' || word[1] == '%');
		const char *text = placeholder && word[1] == 'h' ? host : word;
		size_t length = text == host ? strlen(host) : 1;

		if (length >= (size_t)(end - to))
			return false;
		memcpy(to, text, length);
		to += length;
		word += placeholder;
	}
	*to = '\0';
	*bytes = to + 1;
	return true;
}

static bool has_placeholder(const char *word)
{
	for (; (word = strchr(word, '%')); word += 1 + (word[1] == '%'))
		if (word[1] == 'h')
			return true;
	return false;
}

static size_t add_ssh_options(const char *const *options, char **argv, size_t count)
{
	for (; *options; options++)
		argv[count++] = (char *)*options;
	return count;
}

size_t shell_command(const struct shell *shell, const char *host,
		     const char *const *ssh_options, char bytes[SHELL_COMMAND_MAX],
		     char *ret_argv[SHELL_ARGV_MAX])
{
	bool ssh = shell_is_ssh(shell), placed = false;
	const char *end = bytes + SHELL_COMMAND_MAX;
	size_t count = 0;

	for (size_t i = 0; i < shell->count; i++)
		placed = placed || has_placeholder(shell->words[i]);
	for (size_t i = 0; i < shell->count; i++) {
		if (ssh && has_placeholder(shell->words[i])) {
			count = add_ssh_options(ssh_options, ret_argv, count);
			ssh = false;
		}
		ret_argv[count++] = placed ? bytes : shell->words[i];
		if (placed && !expand_word(shell->words[i], host, &bytes, end))
			return 0;
	}
	if (ssh)
		count = add_ssh_options(ssh_options, ret_argv, count);
	if (!placed)
		ret_argv[count++] = (char *)host;
	ret_argv[count] = NULL;
	return count;
}

/* Returns the pid, or 0. Discards its errors: ssh repeats them for the real call. */
static pid_t start_ssh_query(const struct shell *shell, const char *host, int out)
{
	static const char *const options[] = { "-G", NULL };
	char bytes[SHELL_COMMAND_MAX], *argv[SHELL_ARGV_MAX];
	posix_spawn_file_actions_t actions;
	pid_t pid = 0;

	if (shell_command(shell, host, options, bytes, argv) == 0)
		return 0;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY,
					 0);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY,
					 0);
	if (posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ) != 0)
		pid = 0;
	posix_spawn_file_actions_destroy(&actions);
	return pid;
}

/* Read until end of file, the deadline, or a full buffer. */
static void read_ssh_output(int in, char *ret_answer, size_t size)
{
	uint64_t now = now_ns(), deadline = now + (uint64_t)SSH_QUERY_MS * 1000000;
	struct pollfd pollfd = { .fd = in, .events = POLLIN };
	size_t used = 0;

	for (; now < deadline && used + 1 < size; now = now_ns()) {
		ssize_t count;

		if (poll(&pollfd, 1, (int)((deadline - now) / 1000000) + 1) != 1)
			continue;
		count = read(in, ret_answer + used, size - 1 - used);
		if (count <= 0)
			break;
		used += (size_t)count;
	}
	ret_answer[used] = '\0';
}

/* The value of the line "hostname VALUE". */
static bool find_hostname(const char *answer, char *ret_name, size_t size)
{
	static const char key[] = "hostname ";
	const char *line = answer, *end;

	for (; (end = strchr(line, '\n')); line = end + 1) {
		size_t skip = sizeof(key) - 1, length = (size_t)(end - line);

		if (length <= skip || strncmp(line, key, skip) != 0)
			continue;
		if (length - skip >= size)
			return false;
		memcpy(ret_name, line + skip, length - skip);
		ret_name[length - skip] = '\0';
		return true;
	}
	return false;
}

/* ssh(1): with -G it prints the configuration for a host and does not connect. */
bool ask_ssh_for_host(const struct shell *shell, const char *host, char *ret_name,
		      size_t size)
{
	char answer[SSH_OUTPUT_MAX] = "";
	int fds[2];
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return false;
	pid = start_ssh_query(shell, host, fds[1]);
	close(fds[1]);
	if (pid > 0)
		read_ssh_output(fds[0], answer, sizeof(answer));
	close(fds[0]);
	if (pid <= 0)
		return false;
	/* It has answered, or the time is up. */
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return find_hostname(answer, ret_name, size);
}
