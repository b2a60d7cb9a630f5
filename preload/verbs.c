/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/environment.h"
#include "core/error.h"
#include "preload.h"

/*
 * The functions of libibverbs that stand before its own. The next ones in the order of
 * the loader are looked up with their versions: libibverbs still exports functions of
 * IBVERBS_1.0, whose structs have another layout.
 */

/* struct ibv_mr_init_attr of rdma-core 59 on; IBV_MR_INIT_ATTR_... are the bits. */
struct mr_init_attr {
	size_t length;
	int access;
	uint32_t comp_mask;
	uint64_t addr;
	uint64_t iova;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};

enum {
	HAS_ACCESS = 1 << 0,
	HAS_ADDR = 1 << 1,
	HAS_IOVA = 1 << 2,
};

/* clang-format off */
#define NEXT_FUNCTIONS(F) \
	F(reg_mr, "1.1", struct ibv_mr *, (struct ibv_pd *, void *, size_t, int)) \
	F(reg_mr_iova, "1.7", struct ibv_mr *, \
	  (struct ibv_pd *, void *, size_t, uint64_t, int)) \
	F(reg_mr_iova2, "1.8", struct ibv_mr *, \
	  (struct ibv_pd *, void *, size_t, uint64_t, unsigned int)) \
	F(reg_mr_ex, "1.15", struct ibv_mr *, (struct ibv_pd *, struct mr_init_attr *)) \
	F(rereg_mr, "1.1", int, \
	  (struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int)) \
	F(dereg_mr, "1.1", int, (struct ibv_mr *)) \
	F(dealloc_pd, "1.1", int, (struct ibv_pd *)) \
	F(close_device, "1.1", int, (struct ibv_context *))
/* clang-format on */

#define POINTER(name, version, type, parameters) type(*name) parameters;
static struct {
	NEXT_FUNCTIONS(POINTER)
} next;

#define LOOK_UP(name, version, ...) \
	*(void **)&next.name = dlvsym(RTLD_NEXT, "ibv_" #name, "IBVERBS_" version);
static void look_up(void)
{
	NEXT_FUNCTIONS(LOOK_UP)
}

enum {
	UNKNOWN, /* no call was made yet */
	ACTIVE,
	INACTIVE,
};
static atomic_int state;

/* At the first call, which may come from another library's constructor. */
static __attribute__((noinline)) bool read_state(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int found = preload_mode() == PRELOAD_OFF ? INACTIVE : ACTIVE;

	pthread_once(&once, look_up);
	atomic_store_explicit(&state, found, memory_order_release);
	return found == ACTIVE;
}

static inline bool is_active(void)
{
	return atomic_load_explicit(&state, memory_order_acquire) == ACTIVE ||
	       read_state();
}

/* Whether a call is for libibverbs alone. */
static inline bool passes(void)
{
	return !is_active() || preload_depth > 0;
}

/* Of the first object alone, which has the count of all. */
static int read_count(struct dl_phdr_info *info, size_t size, void *ret_count)
{
	(void)size;
	*(unsigned long long *)ret_count = info->dlpi_adds;
	return 1;
}

/* See preload_search_driver(). While no library is loaded, nothing is searched. */
static inline bool may_be_device(void)
{
	static atomic_ullong searched;
	unsigned long long last = atomic_load_explicit(&searched, memory_order_relaxed);
	unsigned long long count;

	if (last == PRELOAD_FOUND)
		return true;
	dl_iterate_phdr(read_count, &count);
	return count != last && preload_search_driver(count, &searched);
}

/*
 * The same for a registration, which is most often one of host memory. libibverbs calls
 * its own ibv_reg_mr_iova2() by its name, so it comes here again, deeper.
 */
static inline bool passes_memory(void)
{
	/* Not next.reg_mr: another thread may be looking up the rest. */
	if (atomic_load_explicit(&state, memory_order_acquire) == UNKNOWN)
		read_state();
	return preload_depth > 0 || !may_be_device();
}

#define DEEPER(call)                   \
	__extension__({                \
		struct ibv_mr *result; \
		preload_depth++;       \
		result = call;         \
		preload_depth--;       \
		result;                \
	})

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

typedef struct ibv_mr *registrar(const struct preload_request *request,
				 const void *original);

/*
 * Make the program's own call, which succeeds if the kernel has peer memory. If it fails,
 * the program gets its errno, and not that of the dma-buf.
 */
static struct ibv_mr *register_without(const struct preload_request *request,
				       struct preload_facts *facts, registrar *ask,
				       const void *original, int *ret_error)
{
	struct ibv_mr *mr = NULL;

	errno = EFAULT; /* of ib_umem_get() for an address that no page has */
	if (!pier_switched_off("PIER_PEERMEM"))
		mr = ask(request, original);
	*ret_error = mr ? 0 : pier_last_errno();
	facts->path = mr ? "peer memory" : "";
	preload_complain(mr ? "registered as peer memory" : "not registered",
			 pier_error_message());
	return mr;
}

static __attribute__((noinline)) struct ibv_mr *register_device(
	const struct preload_request *request, registrar *ask, const void *original)
{
	bool reports = preload_reports();
	uint64_t began = reports ? now() : 0;
	struct preload_facts facts;
	struct ibv_mr *mr = NULL;
	enum preload_outcome outcome;
	int before = errno, error = 0;

	preload_depth++;
	outcome = preload_register(request, &mr, reports ? &facts : NULL);
	if (outcome == PRELOAD_HOST) {
		errno = before;
		mr = ask(request, original);
	}
	if (outcome == PRELOAD_FAILED)
		mr = register_without(request, &facts, ask, original, &error);
	if (outcome != PRELOAD_HOST && reports)
		preload_report(request, &facts, now() - began, error,
			       outcome == PRELOAD_FAILED ? pier_error_message() : "");
	preload_depth--;
	if (outcome != PRELOAD_HOST)
		errno = error ? error : before;
	return mr;
}

static struct ibv_mr *ask_reg_mr(const struct preload_request *request,
				 const void *original)
{
	(void)original;
	return next.reg_mr(request->pd, request->addr, request->length, request->access);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (passes_memory())
		return DEEPER(next.reg_mr(pd, addr, length, access));
	return register_device(
		&(struct preload_request){ pd, addr, length, (uintptr_t)addr, access },
		ask_reg_mr, NULL);
}

static struct ibv_mr *ask_reg_mr_iova(const struct preload_request *request,
				      const void *original)
{
	(void)original;
	return next.reg_mr_iova(request->pd, request->addr, request->length,
				request->iova, request->access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
			       uint64_t iova, int access)
{
	if (passes_memory())
		return DEEPER(next.reg_mr_iova(pd, addr, length, iova, access));
	return register_device(
		&(struct preload_request){ pd, addr, length, iova, access },
		ask_reg_mr_iova, NULL);
}

static struct ibv_mr *ask_reg_mr_iova2(const struct preload_request *request,
				       const void *original)
{
	(void)original;
	return next.reg_mr_iova2(request->pd, request->addr, request->length,
				 request->iova, (unsigned int)request->access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	if (passes_memory())
		return next.reg_mr_iova2(pd, addr, length, iova, access);
	return register_device(
		&(struct preload_request){ pd, addr, length, iova, (int)access },
		ask_reg_mr_iova2, NULL);
}

static struct ibv_mr *ask_reg_mr_ex(const struct preload_request *request,
				    const void *original)
{
	return next.reg_mr_ex(request->pd, (struct mr_init_attr *)original);
}

/*
 * A dma-buf of the program, or a hint for the NIC (dmah), is left alone. Headers of
 * rdma-core 59 on declare the function, with a struct of their own.
 */
struct ibv_mr *reg_mr_ex(struct ibv_pd *pd,
			 struct mr_init_attr *attr) __asm__("ibv_reg_mr_ex");

struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct mr_init_attr *attr)
{
	struct preload_request request;
	bool alone = passes_memory();

	if (!next.reg_mr_ex)
		return pier_null_with(-EOPNOTSUPP);
	if (alone || (attr->comp_mask & ~(uint32_t)HAS_IOVA) != (HAS_ACCESS | HAS_ADDR))
		return next.reg_mr_ex(pd, attr);
	request = (struct preload_request){
		pd,	      (void *)(uintptr_t)attr->addr,
		attr->length, attr->comp_mask & HAS_IOVA ? attr->iova : attr->addr,
		attr->access,
	};
	return register_device(&request, ask_reg_mr_ex, attr);
}

/*
 * A dma-buf's region has no other memory: the program keeps the one that it has, as
 * ibv_rereg_mr(3) has it for IBV_REREG_MR_ERR_INPUT.
 */
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		 size_t length, int access)
{
	if (!passes() && (flags & IBV_REREG_MR_CHANGE_TRANSLATION) && preload_owns(mr)) {
		preload_complain("not registered again",
				 "ibv_rereg_mr() cannot change the memory of a region of "
				 "a GPU's memory: deregister it and register anew");
		errno = EOPNOTSUPP;
		return IBV_REREG_MR_ERR_INPUT;
	}
	return next.rereg_mr(mr, flags, pd, addr, length, access);
}

/*
 * Also inside pier: UCX's hook of munmap(2) may deregister there. Regions that pier
 * itself deregisters are no longer in the table.
 */
int ibv_dereg_mr(struct ibv_mr *mr)
{
	int before = errno, error = 0;
	bool owned = false;

	if (is_active()) {
		preload_depth++;
		error = preload_deregister(mr, &owned);
		preload_depth--;
	}
	errno = error ? error : before;
	return owned ? error : next.dereg_mr(mr);
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (!passes()) {
		int before = errno;

		preload_depth++;
		preload_forget_pd(pd);
		preload_depth--;
		errno = before;
	}
	return next.dealloc_pd(pd);
}

int ibv_close_device(struct ibv_context *context)
{
	if (!passes()) {
		int before = errno;

		preload_depth++;
		preload_forget_context(context);
		preload_depth--;
		errno = before;
	}
	return next.close_device(context);
}
