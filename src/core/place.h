/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_PLACE_H
#define PIER_CORE_PLACE_H

#include <stddef.h>

/*
 * Write what addr2line(1) takes of a call, given the address that it returns to:
 * "OBJECT(FUNCTION+0x1f)", or "OBJECT(+0x1234)" where the function is not among
 * the dynamic symbols, or the bare address where no object has it. An object's
 * path that is too long loses its beginning. `size` is at least 64.
 */
void pier_print_place(const void *place, char *ret_text, size_t size);

#endif
