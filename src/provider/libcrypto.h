/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_LIBCRYPTO_H
#define PIER_LIBCRYPTO_H

/*
 * NULL in builds that link libcrypto. In the others, call it before any function of
 * libcrypto, and again until it returns 0.
 *
 * Errors: -ELIBACC: it is missing or too old.
 */
int pier_open_libcrypto(void) __attribute__((weak, visibility("hidden")));

#endif
