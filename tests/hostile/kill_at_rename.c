/* SPDX-License-Identifier: BSD-3-Clause */

/* Preload it: the process is killed just before it renames a file. */

#include <signal.h>

int interposed_renameat(int from_directory, const char *from, int to_directory,
			const char *to) __asm__("renameat");

int interposed_renameat(int from_directory, const char *from, int to_directory,
			const char *to)
{
	(void)from_directory;
	(void)from;
	(void)to_directory;
	(void)to;
	return raise(SIGKILL);
}
