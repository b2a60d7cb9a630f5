/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

#include "buffer/buffer.h"
#include "core/page.h"
#include "piece.h"
#include "core/error.h"
#include "core/log.h"

struct pier_check_limits pier_limits_of(const struct pier_pd *pd)
{
	const struct pier_device *device = pd->device;

	return (struct pier_check_limits){
		.page = pier_host_page(),
		.max_mr_size = device->limits.max_mr_size,
		.lacking_access = device->lacking_access,
		.dmabuf = device->dmabuf,
		.takes_memfd = device->provider->takes_memfd,
		.device = device->name,
	};
}

/* What a user can do about an errno of a registration; "" if nothing is known. */
static const char *registration_hint(int error, enum pier_path path, char *text,
				     size_t size)
{
	struct rlimit limit;

	if (error == EFAULT && path == PIER_PATH_HOST)
		return " (not mapped, not writable, or a mapping of device memory, which "
		       "has to be registered as a dma-buf)";
	if (error == EFAULT && path == PIER_PATH_PEERMEM)
		return " (the kernel has no peer memory module for this memory, such as "
		       "nvidia-peermem)";
	/* The driver's own of the device, which no limit of the process is about. */
	if (error == ENOMEM && (path == PIER_PATH_DMABUF || path == PIER_PATH_PEERMEM))
		return " (of a GPU's memory: is its BAR used up?)";
	/* Pages beyond it: ENOMEM; no page at all: EPERM (ib_umem_get()). */
	if ((error != ENOMEM && error != EPERM) || getrlimit(RLIMIT_MEMLOCK, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY)
		return "";
	snprintf(text, size, " (RLIMIT_MEMLOCK is %" PRIu64 " KiB; see ulimit -l)",
		 (uint64_t)limit.rlim_cur / 1024);
	return text;
}

int pier_fail_registration(int error, const struct pier_pd *pd, uint64_t length,
			   enum pier_path path)
{
	static const char *const names[] = {
		[PIER_PATH_HOST] = "host memory",
		[PIER_PATH_DMABUF] = "a dma-buf",
		[PIER_PATH_PEERMEM] = "peer memory",
		[PIER_PATH_STAGED] = "a copy in host memory",
		[PIER_PATH_MIXED] = "ranges of several kinds",
	};
	char text[64];

	return pier_fail_because(error, "registering %" PRIu64 " bytes as %s on %s%s",
				 length, names[path], pd->device->name,
				 registration_hint(error, path, text, sizeof(text)));
}

static void set_part(const struct pier_piece *piece, struct ibv_mr *mr,
		     enum pier_path path, struct pier_mr_part *ret_part)
{
	*ret_part = (struct pier_mr_part){
		.mr = mr,
		.length = piece->range.length,
		.iova = piece->iova,
		.path = path,
	};
}

static int check_pages(const struct pier_piece *piece, const void *addr)
{
	struct pier_check_limits limits;

	if (piece->checked)
		return 0;
	limits = pier_limits_of(piece->pd);
	return pier_check_host(&limits, (uintptr_t)addr, piece->range.length, piece->iova,
			       piece->access);
}

int pier_register_pages(const struct pier_piece *piece, void *addr, enum pier_path path,
			struct pier_mr_part *ret_part)
{
	struct ibv_mr *mr;
	int error = check_pages(piece, addr);

	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = piece->pd->device->provider->reg_mr(piece->pd->pd, addr, piece->range.length,
						 piece->iova, piece->access);
	if (!mr)
		return pier_fail_registration(errno ? errno : EIO, piece->pd,
					      piece->range.length, path);
	set_part(piece, mr, path, ret_part);
	return 0;
}

int pier_check_numbers(struct pier_check_limits limits, const struct pier_piece *piece,
		       int fd, uint64_t offset)
{
	limits.trust_fd = true;
	if (pier_check_dmabuf(&limits, offset, piece->range.length, piece->iova, fd,
			      piece->access) == 0)
		return 0;
	limits.trust_fd = false;
	return pier_check_dmabuf(&limits, offset, piece->range.length, piece->iova, fd,
				 piece->access);
}

/* By the rule that is broken, if pier knows it. */
static int refuse_fd(const struct pier_piece *piece, int fd, uint64_t offset, int refusal)
{
	struct pier_check_limits limits = pier_limits_of(piece->pd);
	int error = pier_check_dmabuf(&limits, offset, piece->range.length, piece->iova,
				      fd, piece->access);

	if (error)
		return error;
	return pier_fail_registration(refusal, piece->pd, piece->range.length,
				      PIER_PATH_DMABUF);
}

int pier_register_fd(const struct pier_piece *piece, int fd, uint64_t offset,
		     struct pier_mr_part *ret_part)
{
	struct ibv_mr *mr;
	int error = 0;

	if (!piece->checked)
		error = pier_check_numbers(pier_limits_of(piece->pd), piece, fd, offset);
	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = piece->pd->device->provider->reg_dmabuf_mr(piece->pd->pd, offset,
							piece->range.length, piece->iova,
							fd, piece->access);
	if (!mr)
		return refuse_fd(piece, fd, offset, errno ? errno : EIO);
	set_part(piece, mr, PIER_PATH_DMABUF, ret_part);
	return 0;
}

int pier_register_piece(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	if (piece->range.source == PIER_MR_HOST)
		return pier_register_pages(piece, piece->range.addr, PIER_PATH_HOST,
					   ret_part);
	if (piece->range.source == PIER_MR_DMABUF)
		return pier_register_fd(piece, piece->range.fd, piece->range.offset,
					ret_part);
	return pier_register_buffer(piece, ret_part);
}
