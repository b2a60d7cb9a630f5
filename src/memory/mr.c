/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <pier/verbs.h>

#include "memory/buffer.h"
#include "memory/check.h"
#include "memory/mr.h"
#include "memory/page.h"
#include "util/checked.h"
#include "util/error.h"
#include "util/object.h"

static_assert((int)PIER_ACCESS_LOCAL_WRITE == IBV_ACCESS_LOCAL_WRITE, "as verbs");
static_assert((int)PIER_ACCESS_REMOTE_WRITE == IBV_ACCESS_REMOTE_WRITE, "as verbs");
static_assert((int)PIER_ACCESS_REMOTE_READ == IBV_ACCESS_REMOTE_READ, "as verbs");
static_assert((int)PIER_ACCESS_REMOTE_ATOMIC == IBV_ACCESS_REMOTE_ATOMIC, "as verbs");
static_assert((int)PIER_ACCESS_RELAXED_ORDERING == IBV_ACCESS_RELAXED_ORDERING,
	      "as verbs");

const char *pier_path_name(enum pier_path path)
{
	static const char *const names[] = {
		[PIER_PATH_HOST] = "host",
		[PIER_PATH_DMABUF] = "dma-buf",
		[PIER_PATH_PEERMEM] = "peermem",
		[PIER_PATH_STAGED] = "staged",
	};

	if (path < PIER_PATH_HOST || path > PIER_PATH_STAGED)
		return "unknown";
	return names[path];
}

static struct pier_check_limits limits_of(const struct pier_pd *pd)
{
	const struct pier_device *device = pd->device;

	return (struct pier_check_limits){
		.page = pier_host_page(),
		.max_mr_size = device->limits.max_mr_size,
		.dmabuf = device->dmabuf,
		.takes_memfd = device->provider->takes_memfd,
		.device = device->name,
	};
}

/* What a user can do about an errno of a registration; "" if nothing is known. */
static const char *registration_hint(int error, bool dmabuf, char *text, size_t size)
{
	struct rlimit limit;

	if (error == EFAULT && !dmabuf)
		return " (not mapped, not writable, or a mapping of device memory, which "
		       "has to be registered as a dma-buf)";
	/* Pages beyond it: ENOMEM; no page at all: EPERM (ib_umem_get()). */
	if ((error != ENOMEM && error != EPERM) || getrlimit(RLIMIT_MEMLOCK, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY)
		return "";
	snprintf(text, size, " (RLIMIT_MEMLOCK is %" PRIu64 " KiB; see ulimit -l)",
		 (uint64_t)limit.rlim_cur / 1024);
	return text;
}

/* Takes over `mr`, which the provider has just given, and its errno if it has not. */
static int adopt(struct pier_mr *region, struct ibv_mr *mr, struct pier_mr **ret_mr)
{
	char text[64];
	bool dmabuf = region->path == PIER_PATH_DMABUF;
	int error = errno ? errno : EIO;

	if (!mr) {
		pier_fail_because(error, "registering %zu bytes as %s on %s%s",
				  region->length, dmabuf ? "a dma-buf" : "host memory",
				  region->pd->device->name,
				  registration_hint(error, dmabuf, text, sizeof(text)));
		free(region);
		return -error;
	}
	region->mr = mr;
	atomic_fetch_add(&region->pd->children, 1);
	pier_object_born(PIER_OBJECT_MR);
	*ret_mr = region;
	return 0;
}

static int new_region(struct pier_pd *pd, uint64_t iova, size_t length, int access,
		      enum pier_path path, struct pier_mr **ret_region)
{
	struct pier_mr *region = calloc(1, sizeof(*region));

	if (!region)
		return pier_fail(ENOMEM, "registering %zu bytes: out of memory", length);
	*region = (struct pier_mr){
		.iova = iova, .length = length, .access = access, .path = path, .pd = pd
	};
	*ret_region = region;
	return 0;
}

int pier_check_region(const struct pier_pd *pd, uint64_t address, size_t length,
		      int access)
{
	struct pier_check_limits limits = limits_of(pd);

	return pier_check_host(&limits, address, length, address, access);
}

int pier_reg_host(struct pier_pd *pd, void *addr, size_t length, uint64_t iova,
		  int access, struct pier_mr **ret_mr)
{
	struct pier_check_limits limits = limits_of(pd);
	struct pier_mr *region = NULL;
	int error = pier_check_host(&limits, (uintptr_t)addr, length, iova, access);

	if (!error)
		error = new_region(pd, iova, length, access, PIER_PATH_HOST, &region);
	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	return adopt(region,
		     pd->device->provider->reg_mr(pd->pd, addr, length, iova, access),
		     ret_mr);
}

int pier_reg_mr(struct pier_pd *pd, void *addr, size_t length, int access,
		struct pier_mr **ret_mr)
{
	return pier_reg_host(pd, addr, length, (uintptr_t)addr, access, ret_mr);
}

int pier_reg_dmabuf_mr(struct pier_pd *pd, uint64_t offset, size_t length, uint64_t iova,
		       int fd, int access, struct pier_mr **ret_mr)
{
	struct pier_check_limits limits = limits_of(pd);
	struct pier_mr *region = NULL;
	int error = pier_check_dmabuf(&limits, offset, length, iova, fd, access);

	if (!error)
		error = new_region(pd, iova, length, access, PIER_PATH_DMABUF, &region);
	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	return adopt(region,
		     pd->device->provider->reg_dmabuf_mr(pd->pd, offset, length, iova, fd,
							 access),
		     ret_mr);
}

int pier_dereg_mr(struct pier_mr *mr)
{
	int error;

	if (!mr)
		return 0;
	pier_clear_error();
	error = mr->pd->device->provider->dereg_mr(mr->mr);
	if (error)
		return pier_fail_because(error, "deregistering %zu bytes on %s",
					 mr->length, mr->pd->device->name);
	atomic_fetch_sub(&mr->pd->children, 1);
	if (mr->buffer)
		pier_buffer_unhold(mr->buffer);
	free(mr);
	pier_object_gone(PIER_OBJECT_MR);
	return 0;
}

uint64_t pier_mr_iova(const struct pier_mr *mr)
{
	return mr->iova;
}

size_t pier_mr_length(const struct pier_mr *mr)
{
	return mr->length;
}

uint32_t pier_mr_lkey(const struct pier_mr *mr)
{
	return mr->mr->lkey;
}

uint32_t pier_mr_rkey(const struct pier_mr *mr)
{
	return mr->mr->rkey;
}

int pier_mr_access(const struct pier_mr *mr)
{
	return mr->access;
}

enum pier_path pier_mr_path(const struct pier_mr *mr)
{
	return mr->path;
}

bool pier_mr_encloses(const struct pier_mr *mr, uint64_t addr, uint64_t length)
{
	return addr >= mr->iova && pier_range_fits(addr - mr->iova, length, mr->length);
}

struct ibv_mr *pier_mr_verbs(const struct pier_mr *mr)
{
	return mr->mr;
}
