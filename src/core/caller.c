/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "caller.h"

enum {
	SYMBOL_SIZE = 128,
};

PIER_THREAD_LOCAL const void *pier_caller;

/* Print the offset of the call: the return address may belong to the next line. */
static void print_symbol(uintptr_t call, const Dl_info *info, const struct link_map *map,
			 char *ret_text, size_t size)
{
	if (info->dli_sname)
		snprintf(ret_text, size, "(%.*s+%#zx)", SYMBOL_SIZE - 32, info->dli_sname,
			 (size_t)(call - (uintptr_t)info->dli_saddr));
	else
		/* Not dli_fbase: for a program that is not PIE, l_addr is 0. */
		snprintf(ret_text, size, "(+%#zx)", (size_t)(call - map->l_addr));
}

void pier_print_caller(const void *caller, char *ret_text, size_t size)
{
	uintptr_t call = (uintptr_t)caller - 1;
	struct link_map *map = NULL;
	char symbol[SYMBOL_SIZE];
	size_t path, room;
	Dl_info info;

	if (!caller || !dladdr1((void *)call, &info, (void **)&map, RTLD_DL_LINKMAP) ||
	    !map) {
		snprintf(ret_text, size, "%p", caller);
		return;
	}
	print_symbol(call, &info, map, symbol, sizeof(symbol));
	path = strlen(info.dli_fname);
	room = size > strlen(symbol) ? size - strlen(symbol) - 1 : 0;
	snprintf(ret_text, size, "%s%s", info.dli_fname + (path > room ? path - room : 0),
		 symbol);
}
