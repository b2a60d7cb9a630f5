/* SPDX-License-Identifier: BSD-3-Clause */
#include "abi_check.h"

#ifdef HAVE_CUDA_TYPEDEFS_H

#include <stddef.h>

/* For the types of functions that newer forms have replaced. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

#if CUDA_VERSION >= 13000

#define VALUE(name, value)                                                         \
	_Static_assert((int)(name) == (int)(value), #name " has another value in " \
							  "cuda.h");
#include "values.h"
#undef VALUE

#define SIZE(type, size) \
	_Static_assert(sizeof(type) == (size), #type " has another size in cuda.h");
#define MEMBER(type, member, offset)                       \
	_Static_assert(offsetof(type, member) == (offset), \
		       #type "." #member " has another place in cuda.h");
#include "layouts.h"
#undef SIZE
#undef MEMBER

/* Uses cuda.h's own types; each form of a function has a type for its version. */
#include "entries.h"

#define COMPARE(symbol, name, since, parameters)                                \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&fake_##symbol), \
						    PFN_##name##_v##since),     \
		       #symbol " has other parameters in cudaTypedefs.h");
FAKE_CUDA_ENTRIES(COMPARE)

#define UNCHECKED NULL
#else
#define UNCHECKED "cuda.h is older than that of CUDA 13.0"
#endif

#else
#include <stddef.h>

#define UNCHECKED "no cudaTypedefs.h (CUDA's toolkit) where this was built"
#endif

const char *fake_cuda_abi_unchecked(void)
{
	return UNCHECKED;
}
