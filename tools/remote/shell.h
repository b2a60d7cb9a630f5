/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_REMOTE_SHELL_H
#define PIER_TOOLS_REMOTE_SHELL_H

#include <stdbool.h>
#include <stddef.h>

#include "failure.h"

enum {
	SHELL_WORDS_MAX = 63,
	SHELL_BYTES_MAX = 4096,
	SHELL_COMMAND_MAX = 2 * SHELL_BYTES_MAX,
	/* The words, options for ssh, the host, the command of the other side, and NULL.
	 */
	SHELL_ARGV_MAX = SHELL_WORDS_MAX + 16,
};

/* The command line of a remote shell, in words. It points into itself: do not copy it. */
struct shell {
	char bytes[SHELL_BYTES_MAX];
	char *words[SHELL_WORDS_MAX + 1]; /* NULL after the last */
	size_t count;			  /* at least 1 */
};

/* Split rsh at blanks; quotes, as in 'a b' or "a b", keep a word together. */
int split_shell(const char *rsh, struct shell *ret_shell, struct failure *failure);

/* Returns whether the file name of the first word is "ssh". */
bool shell_is_ssh(const struct shell *shell);

/*
 * Write the arguments that reach a host: the words with the host in place of each %h, and
 * % in place of %%; or, if there is no %h, the words as they are and then the host.
 *
 * ssh_options  NULL-terminated; before the host, if the shell is ssh
 * bytes        holds the arguments
 *
 * Returns how many there are, and room for 4 more; or 0 if they are too long.
 */
size_t shell_command(const struct shell *shell, const char *host,
		     const char *const *ssh_options, char bytes[SHELL_COMMAND_MAX],
		     char *ret_argv[SHELL_ARGV_MAX]);

/*
 * Ask ssh(1) which name or address it connects to for host, which may be an alias from
 * ssh_config(5). Takes up to 5 s. Returns false if ssh does not answer.
 */
bool ask_ssh_for_host(const struct shell *shell, const char *host, char *ret_name,
		      size_t size);

#endif
