/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_ABI_CHECK_H
#define TESTS_FAKES_CUDA_ABI_CHECK_H

/*
 * Whether what the fake declares was compared with cuda.h when this was compiled: NULL,
 * or why not. Where they differ nothing is compiled.
 */
const char *fake_cuda_abi_unchecked(void);

#endif
