/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include "uverbs.h"

enum {
	MAX_ATTRS = 9,
};

/* One method call: the header with room for its attributes. */
union call {
	struct ib_uverbs_ioctl_hdr header;
	char room[sizeof(struct ib_uverbs_ioctl_hdr) +
		  MAX_ATTRS * sizeof(struct ib_uverbs_attr)];
};

static struct ib_uverbs_attr *add(union call *call, uint16_t id, uint16_t length,
				  uint64_t data)
{
	struct ib_uverbs_attr *attr = &call->header.attrs[call->header.num_attrs++];

	*attr = (struct ib_uverbs_attr){
		.attr_id = id,
		.len = length,
		.flags = UVERBS_ATTR_F_MANDATORY,
		.data = data,
	};
	return attr;
}

/* Inputs of up to eight bytes are stored in the attribute itself. */
static void add_u32(union call *call, uint16_t id, uint32_t value)
{
	add(call, id, sizeof(value), value);
}

static void add_u64(union call *call, uint16_t id, uint64_t value)
{
	add(call, id, sizeof(value), value);
}

static void add_out(union call *call, uint16_t id, uint32_t *ret_value)
{
	add(call, id, sizeof(*ret_value), (uintptr_t)ret_value);
}

/* The handle of a kernel object. The kernel stores a new object's handle here. */
static struct ib_uverbs_attr *add_object(union call *call, uint16_t id, uint32_t handle)
{
	return add(call, id, 0, handle);
}

static int run(struct ibv_context *context, union call *call, uint16_t method)
{
	call->header.object_id = UVERBS_OBJECT_MR;
	call->header.method_id = method;
	/* ib_uverbs_cmd_verbs() refuses another driver's id with EINVAL. */
	call->header.driver_id = RDMA_DRIVER_RXE;
	call->header.length = (uint16_t)(sizeof(call->header) +
					 call->header.num_attrs *
						 sizeof(call->header.attrs[0]));
	return ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, &call->header) ? -errno : 0;
}

/* Only the rxe driver has this file (parent_show() in its rxe_verbs.c). */
bool uverbs_is_rxe(struct ibv_context *context)
{
	char path[IBV_SYSFS_PATH_MAX + sizeof("/parent")];

	snprintf(path, sizeof(path), "%s/parent", context->device->ibdev_path);
	return access(path, F_OK) == 0;
}

int uverbs_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, uint64_t length,
			 uint64_t iova, int fd, int access, struct uverbs_mr *ret_mr)
{
	union call call = { 0 };
	struct ib_uverbs_attr *handle;
	uint32_t lkey = 0, rkey = 0;
	int error;

	handle = add_object(&call, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0);
	add_object(&call, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd->handle);
	add_u64(&call, UVERBS_ATTR_REG_DMABUF_MR_OFFSET, offset);
	add_u64(&call, UVERBS_ATTR_REG_DMABUF_MR_LENGTH, length);
	add_u64(&call, UVERBS_ATTR_REG_DMABUF_MR_IOVA, iova);
	add_u32(&call, UVERBS_ATTR_REG_DMABUF_MR_FD, (uint32_t)fd);
	add_u32(&call, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, (uint32_t)access);
	add_out(&call, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &lkey);
	add_out(&call, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &rkey);
	error = run(pd->context, &call, UVERBS_METHOD_REG_DMABUF_MR);
	if (error)
		return error;
	*ret_mr = (struct uverbs_mr){ (uint32_t)handle->data, lkey, rkey };
	return 0;
}

int uverbs_dereg_mr(struct ibv_context *context, const struct uverbs_mr *mr)
{
	union call call = { 0 };

	add_object(&call, UVERBS_ATTR_DESTROY_MR_HANDLE, mr->handle);
	return run(context, &call, UVERBS_METHOD_MR_DESTROY);
}
