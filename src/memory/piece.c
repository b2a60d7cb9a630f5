/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

#include "memory/buffer.h"
#include "memory/page.h"
#include "memory/piece.h"
#include "util/error.h"
#include "util/log.h"

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
	ret_part->mr = mr;
	ret_part->length = piece->range.length;
	ret_part->iova = piece->iova;
	ret_part->path = path;
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

/* addr: of host memory, or a device's own pointer. */
static int register_pages(const struct pier_piece *piece, void *addr, enum pier_path path,
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

static int register_fd(const struct pier_piece *piece, int fd, uint64_t offset,
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

bool pier_wants_dmabuf(const struct pier_pd *pd, const struct pier_buffer *buffer)
{
	return buffer->backend->dmabuf ||
	       (buffer->backend->memfd && pd->device->provider->takes_memfd);
}

static int register_dmabuf(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	struct pier_dmabuf dmabuf;
	int error;

	if (!piece->pd->device->dmabuf)
		return pier_fail_no_dmabuf(piece->pd->device->name);
	error = pier_export_for(piece->range.buffer, piece->range.offset,
				piece->range.length, piece->place, &dmabuf);
	if (error)
		return error;
	error = register_fd(piece, dmabuf.fd, dmabuf.offset, ret_part);
	/* The region has a reference of its own to the dma-buf, if there is one. */
	pier_close_dmabuf(&dmabuf);
	return error;
}

int pier_reach_buffer(const struct pier_buffer *buffer, uint64_t offset, void **ret_addr)
{
	if (!buffer->memory.cpu)
		return pier_fail(EOPNOTSUPP,
				 "memory of the backend %s cannot be registered as host "
				 "memory: the CPU does not reach it",
				 buffer->backend->name);
	*ret_addr = (char *)buffer->memory.cpu +
		    (buffer->address + offset - buffer->memory.address);
	return 0;
}

static int register_host(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	void *addr = NULL;
	int error = pier_reach_buffer(piece->range.buffer, piece->range.offset, &addr);

	return error ? error : register_pages(piece, addr, PIER_PATH_HOST, ret_part);
}

static int register_peermem(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	uint64_t address = piece->range.buffer->address + piece->range.offset;

	return register_pages(piece, (void *)(uintptr_t)address, PIER_PATH_PEERMEM,
			      ret_part);
}

/* After the direct path, which leaves its sentence. */
static int register_otherwise(const struct pier_piece *piece, int error,
			      struct pier_mr_part *ret_part)
{
	const struct pier_buffer *buffer = piece->range.buffer;
	const char *direct = pier_wants_dmabuf(piece->pd, buffer) ? "a dma-buf"
								  : "host memory";
	bool reachable = buffer->memory.cpu != NULL;
	char cause[384];

	if (piece->policy == PIER_POLICY_DIRECT ||
	    (reachable && piece->policy == PIER_POLICY_PEERMEM))
		return error;
	snprintf(cause, sizeof(cause), "%s", pier_last_error());
	error = reachable ? register_host(piece, ret_part)
			  : register_peermem(piece, ret_part);
	if (error)
		return pier_fail(-error, "%s; and before, as %s: %s", pier_last_error(),
				 direct, cause);
	pier_warning("%s memory is registered as %s memory, not as %s: %s",
		     buffer->backend->name, reachable ? "host" : "peer", direct, cause);
	return 0;
}

static int register_buffer(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	bool dmabuf = pier_wants_dmabuf(piece->pd, piece->range.buffer);
	int error = dmabuf ? register_dmabuf(piece, ret_part)
			   : register_host(piece, ret_part);

	if (!error || (!dmabuf && piece->range.buffer->memory.cpu))
		return error;
	return register_otherwise(piece, error, ret_part);
}

int pier_register_piece(const struct pier_piece *piece, struct pier_mr_part *ret_part)
{
	if (piece->range.source == PIER_MR_HOST)
		return register_pages(piece, piece->range.addr, PIER_PATH_HOST, ret_part);
	if (piece->range.source == PIER_MR_DMABUF)
		return register_fd(piece, piece->range.fd, piece->range.offset, ret_part);
	return register_buffer(piece, ret_part);
}
