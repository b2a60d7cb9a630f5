/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "memory/buffer.h"
#include "memory/check.h"
#include "memory/mr.h"
#include "util/error.h"
#include "util/log.h"

/* A piece of a buffer to be registered. */
struct piece {
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	size_t offset, length;
	int access;
};

/* Whether the memory is made to be registered as a dma-buf on this device. */
static bool wants_dmabuf(const struct piece *piece)
{
	const struct pier_backend *backend = piece->buffer->backend;

	return backend->dmabuf ||
	       (backend->memfd && piece->pd->device->provider->takes_memfd);
}

static int register_dmabuf(const struct piece *piece, struct pier_mr **ret_mr)
{
	struct pier_dmabuf dmabuf;
	int error;

	if (!piece->pd->device->dmabuf)
		return pier_fail_no_dmabuf(piece->pd->device->name);
	error = pier_export_dmabuf(piece->buffer, piece->offset, piece->length, &dmabuf);
	if (error)
		return error;
	error = pier_reg_dmabuf_mr(piece->pd, dmabuf.offset, piece->length, dmabuf.iova,
				   dmabuf.fd, piece->access, ret_mr);
	/* The region has a reference of its own to the dma-buf, if there is one. */
	pier_close_dmabuf(&dmabuf);
	return error;
}

static int register_host(const struct piece *piece, struct pier_mr **ret_mr)
{
	struct pier_buffer *buffer = piece->buffer;
	uint64_t address = buffer->address + piece->offset;
	void *pointer;

	if (!buffer->memory.cpu)
		return pier_fail(EOPNOTSUPP,
				 "memory of the backend %s cannot be registered as host "
				 "memory: the CPU does not reach it",
				 buffer->backend->name);
	pointer = (char *)buffer->memory.cpu + (address - buffer->memory.address);
	return pier_reg_host(piece->pd, pointer, piece->length, address, piece->access,
			     ret_mr);
}

/* After the direct path, which leaves its sentence. */
static int register_otherwise(const struct piece *piece, struct pier_mr **ret_mr)
{
	char cause[384];
	int error;

	snprintf(cause, sizeof(cause), "%s", pier_last_error());
	error = register_host(piece, ret_mr);
	if (error)
		return pier_fail(-error, "%s; and before, as a dma-buf: %s",
				 pier_last_error(), cause);
	pier_warning("%s memory is registered as host memory, not as a dma-buf: %s",
		     piece->buffer->backend->name, cause);
	return 0;
}

static int register_by_policy(const struct piece *piece, enum pier_policy policy,
			      struct pier_mr **ret_mr)
{
	int error;

	if (!wants_dmabuf(piece))
		return register_host(piece, ret_mr);
	error = register_dmabuf(piece, ret_mr);
	if (!error || policy == PIER_POLICY_DIRECT)
		return error;
	return register_otherwise(piece, ret_mr);
}

int pier_reg_buffer_mr(struct pier_pd *pd, struct pier_buffer *buffer, size_t offset,
		       size_t length, int access, enum pier_policy policy,
		       struct pier_mr **ret_mr)
{
	struct piece piece = { pd, buffer, offset, length, access };
	int error;

	if (policy != PIER_POLICY_DIRECT && policy != PIER_POLICY_ANY)
		return pier_fail(EINVAL, "policy %d: not one of enum pier_policy",
				 (int)policy);
	if (length == 0)
		return pier_fail(EINVAL, "length 0: a region has at least one byte");
	error = pier_check_buffer_range(buffer, offset, length, "registering");
	/* A mistake in the arguments would fail on every path: name it once. */
	if (!error)
		error = pier_check_region(pd, buffer->address + offset, length, access);
	if (error)
		return error;
	error = register_by_policy(&piece, policy, ret_mr);
	if (error)
		return error;
	(*ret_mr)->buffer = buffer;
	pier_buffer_hold(buffer);
	return 0;
}
