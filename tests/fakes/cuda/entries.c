/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "fake.h"

/*
 * dlsym() must not find functions that are newer than the driver. Each symbol is
 * therefore an indirect function: dlsym() calls its resolver, which returns NULL for an
 * older version.
 */
#define DEFINE(symbol, name, since, parameters)                                        \
	__attribute__((used)) static __typeof__(&fake_##symbol) resolve_##symbol(void) \
	{                                                                              \
		return fake_driver.control.version >= (since) ? fake_##symbol : NULL;  \
	}                                                                              \
	CUresult symbol parameters                                                     \
		__attribute__((ifunc("resolve_" #symbol), visibility("default")));

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
FAKE_CUDA_ENTRIES(DEFINE)

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type);
#define MEMBER(type, member, offset) \
	_Static_assert(offsetof(type, member) == (offset), #type "." #member);
#include "layouts.h"
#undef SIZE
#undef MEMBER

struct entry {
	const char *name;
	int since;
	void *function;
};

#define ENTRY(symbol, name, since, parameters) { #name, since, (void *)fake_##symbol },
static const struct entry entries[] = { FAKE_CUDA_ENTRIES(ENTRY) };

#define COUNT (sizeof(entries) / sizeof(entries[0]))
_Static_assert(COUNT <= FAKE_CUDA_MAX_CALLS, "the control block has too few calls");

void fake_name_calls(struct fake_cuda *control)
{
	struct fake_cuda_call *next = control->call;

	for (size_t i = 0; i < COUNT; i++)
		if (!fake_cuda_call(control, entries[i].name)) {
			size_t length = strlen(entries[i].name);

			memcpy(next->name, entries[i].name, length + 1);
			next++;
		}
}

/* Returns the newest form that both the driver and the caller support. */
static const struct entry *find_entry(const char *name, int version, bool *ret_known)
{
	const struct entry *found = NULL;

	*ret_known = false;
	for (size_t i = 0; i < COUNT; i++) {
		if (strcmp(entries[i].name, name) != 0 ||
		    entries[i].since > fake_driver.control.version)
			continue;
		*ret_known = true;
		if (entries[i].since <= version &&
		    (!found || entries[i].since > found->since))
			found = &entries[i];
	}
	return found;
}

static CUresult find_function(const char *name, void **ret, int version, cuuint64_t flags,
			      CUdriverProcAddressQueryResult *ret_status)
{
	const struct entry *found;
	bool known;

	/* With per-thread default streams the functions are the same here. */
	if (!name || !ret || version > fake_driver.control.version ||
	    flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM |
				  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
		return CUDA_ERROR_INVALID_VALUE;
	found = find_entry(name, version, &known);
	*ret = found ? found->function : NULL;
	*ret_status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
		      : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
			      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

/* The first form has no status, and returns an error instead. */
CUresult fake_cuGetProcAddress(const char *name, void **ret, int version,
			       cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status;
	CUresult result;

	FAKE_ENTER("cuGetProcAddress", FAKE_NEEDS_NOTHING);
	result = find_function(name, ret, version, flags, &status);
	return result == CUDA_SUCCESS && !*ret ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult fake_cuGetProcAddress_v2(const char *name, void **ret, int version,
				  cuuint64_t flags,
				  CUdriverProcAddressQueryResult *ret_status)
{
	CUdriverProcAddressQueryResult status;
	CUresult result;

	FAKE_ENTER("cuGetProcAddress", FAKE_NEEDS_NOTHING);
	result = find_function(name, ret, version, flags, &status);
	if (result == CUDA_SUCCESS && ret_status)
		*ret_status = status;
	return result;
}
