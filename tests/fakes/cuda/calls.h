/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_CALLS_H
#define TESTS_FAKES_CUDA_CALLS_H

/* For tests that call the fake driver themselves: its functions, found by name. */

#include <dlfcn.h>

#include "abi.h"
#include "control.h"

struct fake_cuda_calls {
	void *library;
	struct fake_cuda *control;
	/* NULL: this version of the driver lacks the symbol. */
#define FAKE_CUDA_MEMBER(symbol, name, since, parameters) \
	__typeof__(&fake_##symbol) symbol;
	FAKE_CUDA_ENTRIES(FAKE_CUDA_MEMBER)
#undef FAKE_CUDA_MEMBER
};

/* True if the fake was found: a real driver's folder may precede it. */
static inline bool fake_cuda_load(struct fake_cuda_calls *ret_calls)
{
	struct fake_cuda *(*find)(void);

	ret_calls->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!ret_calls->library)
		return false;
	*(void **)&find = dlsym(ret_calls->library, "fake_cuda_control");
	if (!find)
		return false;
	ret_calls->control = find();
#define FAKE_CUDA_FIND(symbol, name, since, parameters) \
	*(void **)&ret_calls->symbol = dlsym(ret_calls->library, #symbol);
	FAKE_CUDA_ENTRIES(FAKE_CUDA_FIND)
#undef FAKE_CUDA_FIND
	return true;
}

#endif
