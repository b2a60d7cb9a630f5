/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "start.h"
#include "units.h"

enum {
	SSH_OUTPUT_MAX = 65536,
	SSH_QUERY_MS = 5000,
};

extern char **environ;

/*
 * Take the next word off *text, unquoted in place. Returns NULL at the end.
 *
 * quote  set if the text ends inside quotes
 */
static char *next_word(char **text, char *quote)
{
	char *from = *text + strspn(*text, " \t"), *word = from, *to = from;

	if (!*from)
		return NULL;
	for (; *from && (*quote || (*from != ' ' && *from != '\t')); from++) {
		if (*quote ? *from == *quote : (*from == '\'' || *from == '"'))
			*quote = *quote ? '\0' : *from;
		else
			*to++ = *from;
	}
	*text = *from ? from + 1 : from;
	*to = '\0';
	return word;
}

/* Returns whether the file name of the first word is "ssh". */
static bool shell_is_ssh(const struct shell *shell)
{
	const char *slash = strrchr(shell->words[0], '/');

	return strcmp(slash ? slash + 1 : shell->words[0], "ssh") == 0;
}

/* Before the user's own options: ssh uses the first value of each. */
static int add_port(struct shell *shell, uint32_t port, struct failure *failure)
{
	if (!shell_is_ssh(shell))
		return fail(failure, EXIT_USAGE,
			    "--port is for ssh, and --rsh or PIER_RSH runs '%s': write "
			    "the port into that command",
			    shell->words[0]);
	snprintf(shell->port, sizeof(shell->port), "-p%" PRIu32, port);
	memmove(shell->words + 2, shell->words + 1,
		shell->count * sizeof(shell->words[0]));
	shell->words[1] = shell->port;
	shell->count++;
	return 0;
}

int split_shell(const char *rsh, uint32_t port, struct shell *ret_shell,
		struct failure *failure)
{
	char *rest = ret_shell->bytes, *word = NULL, quote = '\0';

	ret_shell->count = 0;
	if (strlen(rsh) >= sizeof(ret_shell->bytes))
		return fail(failure, EXIT_USAGE, "--rsh is too long");
	strcpy(ret_shell->bytes, rsh);
	while (ret_shell->count < SHELL_WORDS_MAX && (word = next_word(&rest, &quote)))
		ret_shell->words[ret_shell->count++] = word;
	ret_shell->words[ret_shell->count] = NULL;
	if (quote)
		return fail(failure, EXIT_USAGE, "--rsh: a quote %c is not closed",
			    quote);
	if (ret_shell->count == 0 || next_word(&rest, &quote))
		return fail(failure, EXIT_USAGE,
			    "--rsh must be a command of 1 to %d words", SHELL_WORDS_MAX);
	return port ? add_port(ret_shell, port, failure) : 0;
}

const char *variable_or(const char *name, const char *value)
{
	const char *found = secure_getenv(name);

	return found && found[0] ? found : value;
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

/*
 * Write the arguments that reach a host: the words with the host in place of each %h, and
 * % in place of %%; or, if there is no %h, the words as they are and then the host.
 *
 * ssh_options  NULL-terminated; before the host, if the shell is ssh
 * bytes        holds the arguments
 *
 * Returns how many there are, and room for 4 more; or 0 if they are too long.
 */
static size_t shell_command(const struct shell *shell, const char *host,
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

/*
 * Ask ssh(1) which name or address it connects to for host, which may be an alias from
 * ssh_config(5). With -G it prints the configuration for a host and does not connect.
 * Takes up to 5 s. Returns false if ssh does not answer.
 */
static bool ask_ssh_for_host(const struct shell *shell, const char *host, char *ret_name,
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

enum {
	/*
	 * Then SIGTERM, then SIGKILL. Together below the documented 5 s. A busy host may
	 * not run the server for 3 s, and a server that is killed leaves things behind.
	 */
	EXIT_WAIT_MS = 3500,
	TERM_MS = 1000,
};

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

/* Returns the wait status. ret_stopped: by this process, because it did not end */
static int reap_server(pid_t pid, int waited_ms, bool *ret_stopped)
{
	int left_ms = waited_ms < EXIT_WAIT_MS ? EXIT_WAIT_MS - waited_ms : 0;
	int status = 0;

	*ret_stopped = !ended_within(pid, left_ms);
	if (*ret_stopped) {
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
	bool stopped;
	int status;

	ret_how[0] = '\0';
	if (remote->pid <= 0)
		return;
	status = reap_server(remote->pid, waited_ms, &stopped);
	remote->pid = 0;
	if (stopped)
		snprintf(ret_how, size, "%s closed its output and did not end",
			 remote->command);
	else if (WIFSIGNALED(status))
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

/* Whether it is an address of this host that a peer can connect to: not link-local. */
static bool is_own_address(const char *text)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST,
				  .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	bool ours;
	int fd;

	/* A scope, as in fe80::1%eth0, means nothing on another host. */
	if (strchr(text, '%') || getaddrinfo(text, NULL, &hints, &found) != 0)
		return false;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ours = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
	return ours;
}

/* The user has not set PIER_SOFT_PEERS. */
static bool peers_are_ours;

/*
 * sshd(8) sets SSH_CONNECTION to the client's address and port and the server's address
 * and port. Other remote shells do not provide the address: listen on all of them.
 */
void listen_for_client(const char *own)
{
	const char *connection = secure_getenv("SSH_CONNECTION");
	char address[INET6_ADDRSTRLEN] = "";

	if (own)
		snprintf(address, sizeof(address), "%s", own);
	else if (connection)
		sscanf(connection, "%*s %*s %45s", address);
	setenv("PIER_SOFT_ADDRESS", is_own_address(address) ? address : "::", 0);
	peers_are_ours = !secure_getenv("PIER_SOFT_PEERS");
	setenv("PIER_SOFT_PEERS", "none", 0);
}

void connect_onward_to(const char *addresses)
{
	if (!peers_are_ours || !addresses[0])
		return;
	setenv("PIER_SOFT_PEERS", addresses, 1);
	/* If both ends listen, either may have to call, and the next server never does.
	 */
	unsetenv("PIER_SOFT_ADDRESS");
}

/* Returns false if the address is not added: soft0 cannot use link-local ones. */
static bool add_address(struct peers *peers, const struct addrinfo *one)
{
	char text[INET6_ADDRSTRLEN], *list = peers->list;
	size_t size = sizeof(peers->list), used = strlen(list);

	if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof(text), NULL, 0,
			NI_NUMERICHOST) != 0 ||
	    strchr(text, '%') || used + strlen(text) + 2 > size)
		return false;
	snprintf(list + used, size - used, "%s%s", used ? "," : "", text);
	return true;
}

static bool resolve_host(const char *name, struct peers *peers)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	int count = 0;

	if (getaddrinfo(name, NULL, &hints, &found) != 0)
		return false;
	peers->list[0] = '\0';
	for (const struct addrinfo *one = found; one && count < PEER_ADDRESSES_MAX;
	     one = one->ai_next)
		count += add_address(peers, one);
	freeaddrinfo(found);
	return count > 0;
}

static bool find_addresses(const char *host, const struct shell *shell,
			   struct peers *peers)
{
	const char *user_end = strrchr(host, '@');
	char name[NI_MAXHOST];

	if (resolve_host(user_end ? user_end + 1 : host, peers))
		return true;
	return shell_is_ssh(shell) && ask_ssh_for_host(shell, host, name, sizeof(name)) &&
	       resolve_host(name, peers);
}

void find_peer_addresses(const char *host, const struct shell *shell, const char *device,
			 struct peers *ret_peers)
{
	/* Only soft0 connects to addresses. */
	bool may_call = !*device || strstr(device, "soft");

	if (!may_call || secure_getenv("PIER_SOFT_PEERS") ||
	    !find_addresses(host, shell, ret_peers))
		strcpy(ret_peers->list, "none");
}

void connect_only_to(const struct peers *peers)
{
	peers_are_ours = !secure_getenv("PIER_SOFT_PEERS");
	setenv("PIER_SOFT_PEERS", peers->list, 0);
}

void forget_peers(void)
{
	if (peers_are_ours)
		unsetenv("PIER_SOFT_PEERS");
}
