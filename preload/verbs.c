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

/* A call of the program's. */
struct call {
	struct preload_request request;
	struct ibv_mr *(*ask)(const struct call *call); /* calls libibverbs' own */
};

/*
 * One, and how many libraries were loaded after the first `last`. Of the first object
 * alone, which has the count of all.
 */
static int count_more(struct dl_phdr_info *info, size_t size, void *last)
{
	(void)size;
	return 1 + (int)(info->dlpi_adds - (uintptr_t)last);
}

static atomic_ullong searched;

static __attribute__((noinline)) bool search_driver(void)
{
	read_state();
	return preload_search_driver((unsigned int)dl_iterate_phdr(count_more, NULL) - 1,
				     &searched);
}

/*
 * See preload_search_driver(). While no library is loaded, nothing is searched. The first
 * search reads the state, too, which other threads then need not.
 */
static inline bool may_be_device(void)
{
	unsigned long long last = atomic_load_explicit(&searched, memory_order_acquire);

	return last == PRELOAD_FOUND ||
	       (dl_iterate_phdr(count_more, (void *)(uintptr_t)last) != 1 &&
		search_driver());
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/*
 * Make the program's own call, which succeeds if the kernel has peer memory. If it fails,
 * the program gets its errno, and not that of the dma-buf.
 */
static struct ibv_mr *register_without(const struct call *call,
				       struct preload_facts *facts, int *ret_error)
{
	struct ibv_mr *mr = NULL;

	errno = EFAULT; /* of ib_umem_get() for an address that no page has */
	if (!pier_switched_off("PIER_PEERMEM"))
		mr = call->ask(call);
	*ret_error = mr ? 0 : pier_last_errno();
	facts->path = mr ? "peer memory" : "";
	preload_complain(mr ? "registered as peer memory" : "not registered",
			 pier_error_message());
	return mr;
}

static __attribute__((noinline)) struct ibv_mr *register_device(const struct call *call)
{
	bool reports = preload_reports();
	uint64_t began = reports ? now() : 0;
	struct preload_facts facts;
	struct ibv_mr *mr = NULL;
	enum preload_outcome outcome;
	int before = errno, error = 0;

	outcome = preload_register(&call->request, &mr, reports ? &facts : NULL);
	if (outcome == PRELOAD_HOST) {
		errno = before;
		return call->ask(call);
	}
	if (outcome == PRELOAD_FAILED)
		mr = register_without(call, &facts, &error);
	if (reports)
		preload_report(&call->request, &facts, now() - began, error,
			       outcome == PRELOAD_FAILED ? pier_error_message() : "");
	errno = error ? error : before;
	return mr;
}

/*
 * Most often it is host memory. libibverbs calls its own ibv_reg_mr_iova2() by its name,
 * which passes, deeper. Inline: what a registration of host memory costs is counted.
 */
static inline __attribute__((always_inline)) struct ibv_mr *register_memory(
	const struct call *call)
{
	struct ibv_mr *mr;

	preload_depth++;
	mr = may_be_device() ? register_device(call) : call->ask(call);
	preload_depth--;
	return mr;
}

static struct ibv_mr *ask_reg_mr(const struct call *call)
{
	const struct preload_request *r = &call->request;

	return next.reg_mr(r->pd, r->addr, r->length, r->access);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (preload_depth > 0)
		return next.reg_mr(pd, addr, length, access);
	return register_memory(&(struct call){
		{ pd, addr, length, (uintptr_t)addr, access }, .ask = ask_reg_mr });
}

static struct ibv_mr *ask_reg_mr_iova(const struct call *call)
{
	const struct preload_request *r = &call->request;

	return next.reg_mr_iova(r->pd, r->addr, r->length, r->iova, r->access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
			       uint64_t iova, int access)
{
	if (preload_depth > 0)
		return next.reg_mr_iova(pd, addr, length, iova, access);
	return register_memory(&(struct call){ { pd, addr, length, iova, access },
					       .ask = ask_reg_mr_iova });
}

static struct ibv_mr *ask_reg_mr_iova2(const struct call *call)
{
	const struct preload_request *r = &call->request;

	return next.reg_mr_iova2(r->pd, r->addr, r->length, r->iova,
				 (unsigned int)r->access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	if (preload_depth > 0)
		return next.reg_mr_iova2(pd, addr, length, iova, access);
	return register_memory(&(struct call){ { pd, addr, length, iova, (int)access },
					       .ask = ask_reg_mr_iova2 });
}

struct call_ex {
	struct call call;
	struct mr_init_attr *attr;
};

static struct ibv_mr *ask_reg_mr_ex(const struct call *call)
{
	return next.reg_mr_ex(call->request.pd, ((const struct call_ex *)call)->attr);
}

/*
 * A dma-buf of the program, or a hint for the NIC (dmah), is left alone. Headers of
 * rdma-core 59 on declare the function, with a struct of their own.
 */
struct ibv_mr *reg_mr_ex(struct ibv_pd *pd,
			 struct mr_init_attr *attr) __asm__("ibv_reg_mr_ex");

struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct mr_init_attr *attr)
{
	struct call_ex ex = { .call.ask = ask_reg_mr_ex, .attr = attr };
	bool alone = passes();

	if (!next.reg_mr_ex)
		return pier_null_with(-EOPNOTSUPP);
	if (alone || (attr->comp_mask & ~(uint32_t)HAS_IOVA) != (HAS_ACCESS | HAS_ADDR))
		return next.reg_mr_ex(pd, attr);
	ex.call.request = (struct preload_request){
		pd,	      (void *)(uintptr_t)attr->addr,
		attr->length, attr->comp_mask & HAS_IOVA ? attr->iova : attr->addr,
		attr->access,
	};
	return register_memory(&ex.call);
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
