/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

#include "segment.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "device/device.h"

enum {
	/*
	 * ENOTSUPP of the kernel (include/linux/errno.h), which is not for programs, but
	 * which exporters return: nv_dma_buf_attach() of NVIDIA's nv-dmabuf.c (seen in
	 * UCX's pull request 11571).
	 */
	KERNEL_ENOTSUPP = 524,
	/*
	 * MLX5_MAX_UMR_PAGES in the kernel's mlx5 driver: without the capability
	 * umr_extended_translation_offset a dma-buf of that many pages is EINVAL.
	 */
	UMR_PAGES = 65536,
	HINT = 256,
};

/* A hint for the user about the errno of a registration, or "". */
static const char *registration_hint(int error, const struct pier_pd *pd, uint64_t length,
				     enum pier_path path, char text[HINT])
{
	uint64_t umr = UMR_PAGES * (uint64_t)pier_host_page();
	struct rlimit limit;

	if (error == EFAULT && path == PIER_PATH_HOST)
		return " (not mapped, not writable, or a mapping of device memory, which "
		       "has to be registered as a dma-buf)";
	if (error == EFAULT && path == PIER_PATH_PEERMEM)
		return " (the kernel has no peer memory module for this memory, such as "
		       "nvidia-peermem)";
	if (error == KERNEL_ENOTSUPP)
		return " (the driver of the memory does not let this NIC attach: their "
		       "places in the PCIe tree or the mapping do not suit; dmesg has "
		       "the reason)";
	if (error == EINVAL && path == PIER_PATH_DMABUF && length >= umr &&
	    pd->device->limits.vendor_id == PIER_VENDOR_MELLANOX) {
		snprintf(text, HINT,
			 " (maybe UMR of this mlx5 device, such as a virtual function, "
			 "has no extended translation offsets: it then takes only "
			 "dma-bufs of less than %" PRIu64 " MiB)",
			 umr >> 20);
		return text;
	}
	/*
	 * pier's own rules hold. amdgpu_dma_buf_pin() returns EINVAL, and older versions
	 * of amdgpu_dma_buf_map() EBUSY, for memory that cannot leave the device.
	 */
	if ((error == EINVAL || error == EBUSY) && path == PIER_PATH_DMABUF)
		return " (maybe the driver of the memory cannot pin it where this NIC "
		       "reaches it, as amdgpu if the two have no peer-to-peer; dmesg has "
		       "the reason)";
	/* Memory of the device, which no limit of the process covers. */
	if (error == ENOMEM && (path == PIER_PATH_DMABUF || path == PIER_PATH_PEERMEM))
		return " (of a GPU's memory: is its BAR used up?)";
	/* Too many pages are ENOMEM, a limit of 0 is EPERM (ib_umem_get()). */
	if ((error != ENOMEM && error != EPERM) || getrlimit(RLIMIT_MEMLOCK, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY)
		return "";
	snprintf(text, HINT, " (RLIMIT_MEMLOCK is %" PRIu64 " KiB; see ulimit -l)",
		 (uint64_t)limit.rlim_cur / 1024);
	return text;
}

/*
 * Drivers may take longer regions than they report: ionic counts pages of 4 KiB, and its
 * kernel driver checks nothing (ionic_query_device()). So they are asked first.
 */
static bool is_too_long(int error, const struct pier_pd *pd, uint64_t length)
{
	return length > pd->device->limits.max_mr_size &&
	       (error == EINVAL || error == E2BIG || error == EFBIG ||
		error == EOVERFLOW);
}

int pier_fail_registration(int error, const struct pier_pd *pd, uint64_t length,
			   enum pier_path path)
{
	static const char *const names[] = {
		[PIER_PATH_HOST] = "host memory",
		[PIER_PATH_DMABUF] = "a dma-buf",
		[PIER_PATH_PEERMEM] = "peer memory",
		[PIER_PATH_BOUNCE] = "a bounce buffer",
		[PIER_PATH_MIXED] = "ranges of several kinds",
	};
	char text[HINT];

	if (is_too_long(error, pd, length))
		return pier_fail(E2BIG,
				 "registering %" PRIu64 " bytes as %s on %s: errno %d; "
				 "its max_mr_size is %" PRIu64 " bytes",
				 length, names[path], pd->device->name, error,
				 pd->device->limits.max_mr_size);
	return pier_fail_because(error == KERNEL_ENOTSUPP ? EOPNOTSUPP : error,
				 "registering %" PRIu64 " bytes as %s on %s%s", length,
				 names[path], pd->device->name,
				 registration_hint(error, pd, length, path, text));
}

static void set_part(const struct pier_segment *segment, struct ibv_mr *mr,
		     enum pier_path path, struct pier_mr_part *ret_part)
{
	*ret_part = (struct pier_mr_part){
		.mr = mr,
		.start = segment->start,
		.length = segment->range.length,
		.iova = segment->iova,
		.path = path,
	};
}

static int check_pages(const struct pier_segment *segment, const void *addr)
{
	struct pier_check_limits limits;

	if (segment->checked)
		return 0;
	limits = pier_limits_of(segment->region->pd);
	return pier_check_host(&limits, (uintptr_t)addr, segment->range.length,
			       segment->iova, segment->region->access);
}

int pier_register_pages(const struct pier_segment *segment, void *addr,
			enum pier_path path, struct pier_mr_part *ret_part)
{
	const struct pier_pd *pd = segment->region->pd;
	struct ibv_mr *mr;
	int error = check_pages(segment, addr);

	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = pd->device->provider->reg_mr(pd->pd, addr, segment->range.length,
					  segment->iova, segment->region->access);
	if (!mr)
		return pier_fail_registration(errno ? errno : EIO, segment->region->pd,
					      segment->range.length, path);
	set_part(segment, mr, path, ret_part);
	return 0;
}

static int check_fd(const struct pier_segment *segment, int fd, uint64_t offset)
{
	struct pier_check_limits limits;

	if (segment->checked)
		return 0;
	limits = pier_limits_of(segment->region->pd);
	return pier_check_dmabuf_numbers(&limits, offset, segment->range.length,
					 segment->iova, fd, segment->region->access);
}

/* Name the rule that is broken, if pier knows it. */
static int explain_refusal(const struct pier_segment *segment, int fd, uint64_t offset,
			   int refusal)
{
	struct pier_check_limits limits = pier_limits_of(segment->region->pd);
	int error = pier_check_dmabuf(&limits, offset, segment->range.length,
				      segment->iova, fd, segment->region->access);

	if (error)
		return error;
	return pier_fail_registration(refusal, segment->region->pd, segment->range.length,
				      PIER_PATH_DMABUF);
}

int pier_register_fd(const struct pier_segment *segment, int fd, uint64_t offset,
		     struct pier_mr_part *ret_part)
{
	const struct pier_pd *pd = segment->region->pd;
	const struct pier_provider *provider = pd->device->provider;
	struct ibv_mr *mr;
	int error = check_fd(segment, fd, offset);

	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = (segment->data_direct ? provider->reg_data_direct_mr
				   : provider->reg_dmabuf_mr)(
		pd->pd, offset, segment->range.length, segment->iova, fd,
		segment->region->access);
	if (!mr)
		return explain_refusal(segment, fd, offset, errno ? errno : EIO);
	set_part(segment, mr, PIER_PATH_DMABUF, ret_part);
	return 0;
}
