/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_SHELL_H
#define PIER_TOOLS_CP_SHELL_H

#include <stdbool.h>
#include <stddef.h>

#include "failure.h"

enum {
	SHELL_WORDS_MAX = 63,
	SHELL_BYTES_MAX = 4096
};

/* The command line of a remote shell, in words. Points into itself: do not copy. */
struct shell {
	char bytes[SHELL_BYTES_MAX];
	char *words[SHELL_WORDS_MAX + 1]; /* NULL after the last */
	size_t count;			  /* at least 1 */
};

/* Split rsh at blanks; 'a b' and "a b" are one word. Returns 0, or -1 with a failure. */
int split_shell(const char *rsh, struct shell *ret_shell, struct failure *failure);

/* Whether it is ssh(1): the file name of the first word decides. */
bool shell_is_ssh(const struct shell *shell);

/*
 * Ask ssh(1) which name or address it connects to for host, an alias in
 * ssh_config(5), say. Takes seconds at most. False if ssh does not answer.
 */
bool ask_ssh_for_host(const struct shell *shell, const char *host, char *ret_name,
		      size_t size);

#endif
