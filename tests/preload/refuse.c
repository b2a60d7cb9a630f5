/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

#include "tests/preload/refuse.h"

static struct refusals wanted;

struct refusals *refusals(void)
{
	return &wanted;
}

/* Whether the call fails, with errno. */
static int is_refused(int error)
{
	wanted.calls++;
	if (error)
		errno = error;
	return error;
}

static void *next(const char *name, const char *version)
{
	void *symbol = dlvsym(RTLD_NEXT, name, version);

	if (!symbol)
		abort();
	return symbol;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *(*call)(struct ibv_pd *, void *, size_t, int);

	*(void **)&call = next("ibv_reg_mr", "IBVERBS_1.1");
	return is_refused(wanted.reg_mr) ? NULL : call(pd, addr, length, access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	struct ibv_mr *(*call)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);

	*(void **)&call = next("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	return is_refused(wanted.reg_dmabuf_mr)
		       ? NULL
		       : call(pd, offset, length, iova, fd, access);
}

/* The result is the errno. */
int ibv_dereg_mr(struct ibv_mr *mr)
{
	int (*call)(struct ibv_mr *);

	*(void **)&call = next("ibv_dereg_mr", "IBVERBS_1.1");
	return is_refused(wanted.dereg_mr) ? wanted.dereg_mr : call(mr);
}
