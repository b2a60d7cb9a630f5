/* SPDX-License-Identifier: BSD-3-Clause */
/* A shared object that is not a backend. */
#include <pier/export.h>

PIER_API extern const int pier_something_else;

const int pier_something_else = 1;
