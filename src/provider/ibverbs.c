/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>

#include <infiniband/verbs.h>

#include "core/log.h"
#include "verbs_functions.h"

/*
 * libibverbs, opened at its first use instead of linked (-Dlibibverbs=opened). The
 * functions here have libibverbs' own names, so that the rest of the library and the
 * inline functions of <infiniband/verbs.h> are the same in both builds. Hidden symbols:
 * they replace nothing in the rest of the program.
 *
 * Each is looked up with its version, as by the linker and by NCCL (ibvsymbols.cc):
 * libibverbs still exports the functions of IBVERBS_1.0, whose structs have another
 * layout, and dlsym(3) could return one of those.
 *
 * The columns are those of PIER_VERBS_FUNCTIONS, whose names get their "ibv_" here.
 */
/* clang-format off */
#define FUNCTIONS(F) \
	PIER_VERBS_FUNCTIONS(IBV_##F) \
	F(ibv_open_device, "1.1", struct ibv_context *, NULL, \
	  (struct ibv_device *device), (device)) \
	F(ibv_close_device, "1.1", int, -1, (struct ibv_context *context), (context)) \
	F(ibv_query_port, "1.1", int, ELIBACC, \
	  (struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr), \
	  (context, port, attr)) \
	F(ibv_get_async_event, "1.1", int, -1, \
	  (struct ibv_context *context, struct ibv_async_event *event), (context, event)) \
	F(ibv_ack_async_event, "1.1", void, (void)0, \
	  (struct ibv_async_event *event), (event)) \
	F(_ibv_query_gid_ex, "1.11", int, ELIBACC, \
	  (struct ibv_context *context, uint32_t port, uint32_t index, \
	   struct ibv_gid_entry *entry, uint32_t flags, size_t size), \
	  (context, port, index, entry, flags, size)) \
	F(_ibv_query_gid_table, "1.11", ssize_t, -ELIBACC, \
	  (struct ibv_context *context, struct ibv_gid_entry *entries, size_t count, \
	   uint32_t flags, size_t size), \
	  (context, entries, count, flags, size)) \
	/* Without optimisation the macro of this name calls one or the other. */ \
	F(ibv_reg_mr_iova, "1.7", struct ibv_mr *, NULL, \
	  (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access), \
	  (pd, addr, length, iova, access)) \
	F(ibv_reg_mr_iova2, "1.8", struct ibv_mr *, NULL, \
	  (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access), \
	  (pd, addr, length, iova, access)) \
	/* soft0 needs neither a status' name nor a rate: any rate is valid there. */ \
	F(ibv_wc_status_str, "1.1", const char *, "no libibverbs to name it", \
	  (enum ibv_wc_status status), (status)) \
	F(ibv_rate_to_mbps, "1.1", int, 1, (enum ibv_rate rate), (rate))
/* clang-format on */

#define DECLARE_POINTER(name, ...)     __typeof__(&(name)) pointer_##name;
#define IBV_DECLARE_POINTER(name, ...) DECLARE_POINTER(ibv_##name, )
static struct {
	FUNCTIONS(DECLARE_POINTER)
} opened;

#define DESCRIBE_SYMBOL(name, version, ...) \
	{ #name, "IBVERBS_" version, (void **)&opened.pointer_##name },
#define IBV_DESCRIBE_SYMBOL(name, version, ...) DESCRIBE_SYMBOL(ibv_##name, version, )
static const struct {
	const char *name, *version;
	void **pointer;
} symbols[] = { FUNCTIONS(DESCRIBE_SYMBOL) };

/* All pointers or none, so that no object is made that nothing can destroy. */
static void look_up_symbols(void *library)
{
	void *found[sizeof(symbols) / sizeof(symbols[0])];
	size_t count = sizeof(found) / sizeof(found[0]);

	for (size_t i = 0; i < count; i++) {
		/* A preloaded library comes first, as for programs that are linked. */
		found[i] = dlvsym(RTLD_DEFAULT, symbols[i].name, symbols[i].version);
		if (!found[i])
			found[i] = dlvsym(library, symbols[i].name, symbols[i].version);
		if (!found[i]) {
			pier_info("libibverbs.so.1 has no %s@%s", symbols[i].name,
				  symbols[i].version);
			dlclose(library);
			return;
		}
	}
	for (size_t i = 0; i < count; i++)
		*symbols[i].pointer = found[i];
}

/* It stays open: the threads and objects of its providers may outlive all of ours. */
static void open_library(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library)
		look_up_symbols(library);
	else
		pier_info("%s", dlerror());
}

/* glibc's pthread_once(3) starts again in a child of a process that was inside it. */
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define DEFINE_FUNCTION(name, version, type, failure, parameters, arguments) \
	type(name) parameters                                                \
	{                                                                    \
		pthread_once(&once, open_library);                           \
		if (opened.pointer_##name)                                   \
			return opened.pointer_##name arguments;              \
		errno = ELIBACC;                                             \
		return failure;                                              \
	}
#define IBV_DEFINE_FUNCTION(name, ...) DEFINE_FUNCTION(ibv_##name, __VA_ARGS__)
FUNCTIONS(DEFINE_FUNCTION)
