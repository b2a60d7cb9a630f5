/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../uverbs.h"

/*
 * For LD_PRELOAD: ibv_reg_dmabuf_mr() that also works on rxe, if the kernel has the
 * operation (the test guest's has) and libibverbs' provider lacks it. On every other
 * device, and with a libibverbs that supports it, it calls libibverbs' own.
 */

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
	__attribute__((visibility("default")));

typedef struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				     uint64_t iova, int fd, int access);

/*
 * What libibverbs takes an ibv_mr for: struct verbs_mr of its driver.h, which is
 * not installed. ibv_dereg_mr() reads both members behind it: memory of the type
 * MR, the first of the enum, would be given to madvise() by its address, which
 * here is an offset. Then the provider's rxe_dereg_mr() destroys mr->handle and
 * hands the struct to free().
 */
struct verbs_mr {
	struct ibv_mr ibv;
	enum {
		TYPE_MR,
		TYPE_NULL_MR,
		TYPE_IMPORTED_MR,
		TYPE_DMABUF_MR,
	} type;
	int access;
};

/* What rxe_reg_mr() of libibverbs 44 allocates. */
static_assert(sizeof(void *) != 8 || sizeof(struct verbs_mr) == 56,
	      "as libibverbs has it");

static struct ibv_mr *ask_kernel(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	struct verbs_mr *mr = malloc(sizeof(*mr));
	struct uverbs_mr kernel;
	int error;

	if (!mr) {
		errno = ENOMEM;
		return NULL;
	}
	error = uverbs_reg_dmabuf_mr(pd, offset, length, iova, fd, access, &kernel);
	if (error) {
		free(mr);
		errno = -error;
		return NULL;
	}
	*mr = (struct verbs_mr){
		.ibv = { .context = pd->context,
			 .pd = pd,
			 .addr = (void *)(uintptr_t)offset, /* as ibv_reg_dmabuf_mr() */
			 .length = length,
			 .handle = kernel.handle,
			 .lkey = kernel.lkey,
			 .rkey = kernel.rkey },
		.type = TYPE_DMABUF_MR,
		.access = access,
	};
	return &mr->ibv;
}

/* Looked up once, because it costs as much as a registration. */
static reg_dmabuf_mr *find_libibverbs(void)
{
	static _Atomic(reg_dmabuf_mr *) found;
	reg_dmabuf_mr *function = atomic_load(&found);

	if (!function) {
		/*
		 * Converted through void *, as POSIX specifies for functions from
		 * dlsym().
		 */
		void *symbol = dlsym(RTLD_NEXT, "ibv_reg_dmabuf_mr");

		function = (reg_dmabuf_mr *)symbol;
		atomic_store(&found, function);
	}
	return function;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	reg_dmabuf_mr *libibverbs = find_libibverbs();
	struct ibv_mr *mr;

	errno = EOPNOTSUPP;
	mr = libibverbs ? libibverbs(pd, offset, length, iova, fd, access) : NULL;
	if (mr || errno != EOPNOTSUPP)
		return mr;
	mr = ask_kernel(pd, offset, length, iova, fd, access);
	/* The kernel also returns EINVAL for a call meant for another driver. */
	if (!mr && errno == EINVAL)
		errno = uverbs_is_rxe(pd->context) ? EINVAL : EOPNOTSUPP;
	return mr;
}
