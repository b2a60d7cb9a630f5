/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_ABI_CHECK_H
#define TESTS_FAKES_CUDA_ABI_CHECK_H

/*
 * NULL if the fake's declarations were compared with cuda.h at compile time, otherwise
 * the reason why not. If they differ, compiling fails.
 */
const char *fake_cuda_abi_unchecked(void);

#endif
