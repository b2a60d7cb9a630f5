/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dm.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/page.h"
#include "provider/soft/limits.h"
#include "region.h"
#include "segments.h"

struct soft_dm {
	struct ibv_dm ibv;
	int fd;
	char *memory;
	size_t length;
	atomic_uint users; /* regions */
};

/* mlx5_access_dm() of rdma-core's mlx5. Positive. */
static int check_words(const struct soft_dm *dm, uint64_t offset, size_t length)
{
	if (!pier_range_fits(offset, length, dm->length))
		return EFAULT;
	return (offset | length) & 3 ? EINVAL : 0;
}

static int copy_to_dm(struct ibv_dm *ibv, uint64_t offset, const void *source,
		      size_t length)
{
	struct soft_dm *dm = (struct soft_dm *)ibv;
	int error = check_words(dm, offset, length);

	if (!error)
		memcpy(dm->memory + offset, source, length);
	return error;
}

static int copy_from_dm(void *destination, struct ibv_dm *ibv, uint64_t offset,
			size_t length)
{
	const struct soft_dm *dm = (const struct soft_dm *)ibv;
	int error = check_words(dm, offset, length);

	if (!error)
		memcpy(destination, dm->memory + offset, length);
	return error;
}

static int check_attr(const struct ibv_alloc_dm_attr *attr)
{
	uint32_t page_log = (uint32_t)__builtin_ctzll(pier_host_page());

	if (attr->comp_mask || attr->length == 0 || attr->log_align_req > page_log)
		return pier_fail(EINVAL,
				 "soft0: comp_mask %#x, %zu bytes aligned to 2^%u of the "
				 "NIC's memory",
				 attr->comp_mask, attr->length, attr->log_align_req);
	if (attr->length > SOFT_MAX_DM || !pier_soft_may_write(0, attr->length))
		return pier_fail(ENOMEM, "soft0: %zu bytes of the NIC's memory",
				 attr->length);
	return 0;
}

/* 0 or -errno. */
static int map_memory(struct soft_dm *dm)
{
	pier_auto_fd fd = memfd_create("pier-soft-dm", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)dm->length) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SOFT_FINAL_SEALS) < 0)
		return pier_fail(errno, "soft0: %zu bytes of the NIC's memory: %m",
				 dm->length);
	dm->memory = mmap(NULL, dm->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (dm->memory == MAP_FAILED)
		return pier_fail(errno, "soft0: mapping %zu bytes: %m", dm->length);
	dm->fd = pier_take_fd(&fd);
	return 0;
}

struct ibv_dm *pier_soft_alloc_dm(struct ibv_context *context,
				  struct ibv_alloc_dm_attr *attr)
{
	int error = check_attr(attr);
	struct soft_dm *dm = error ? NULL : calloc(1, sizeof(*dm));

	if (!dm)
		return pier_null_with(error ? error : -ENOMEM);
	dm->ibv.context = context;
	dm->ibv.memcpy_to_dm = copy_to_dm;
	dm->ibv.memcpy_from_dm = copy_from_dm;
	dm->length = attr->length;
	error = map_memory(dm);
	if (!error)
		return &dm->ibv;
	free(dm);
	return pier_null_with(error);
}

int pier_soft_free_dm(struct ibv_dm *ibv)
{
	struct soft_dm *dm = (struct soft_dm *)ibv;

	if (atomic_load(&dm->users) > 0)
		return -pier_fail(EBUSY, "soft0: regions still use the NIC's memory");
	munmap(dm->memory, dm->length);
	pier_close_fd(dm->fd);
	free(dm);
	return 0;
}

/* The rules of UVERBS_METHOD_DM_MR_REG in the kernel. */
struct ibv_mr *pier_soft_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *ibv, uint64_t offset,
				   size_t length, unsigned int access)
{
	struct soft_dm *dm = (struct soft_dm *)ibv;

	if (!(access & IBV_ACCESS_ZERO_BASED) || ibv->context != pd->context ||
	    !pier_range_fits(offset, length, dm->length))
		return pier_null_with(pier_fail(
			EINVAL,
			"soft0: %zu bytes at offset %llu of %zu bytes of the NIC's "
			"memory, access %#x: such a region is zero-based, and of the "
			"device that allocated the memory",
			length, (unsigned long long)offset, dm->length, access));
	return pier_soft_reg_zero_based(pd, dm->fd, offset, length,
					(int)(access & ~IBV_ACCESS_ZERO_BASED),
					&dm->users);
}

int pier_soft_export_dm(struct ibv_dm *dm)
{
	return fcntl(((struct soft_dm *)dm)->fd, F_DUPFD_CLOEXEC, 0);
}
