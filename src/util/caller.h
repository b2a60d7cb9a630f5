/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_UTIL_CALLER_H
#define PIER_UTIL_CALLER_H

#include <stddef.h>

/*
 * Write a return address as addr2line(1) takes the call before it:
 * "OBJECT(FUNCTION+0x1f)"; "OBJECT(+0x1234)" if the function is not among the dynamic
 * symbols; the bare address if no loaded object contains it. An object path that is
 * too long loses its beginning. `size` is at least 64.
 */
void pier_print_caller(const void *caller, char *ret_text, size_t size);

#endif
