/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "memory.h"
#include "ipc.h"
#include "core/error.h"
#include "core/log.h"
#include "core/wire.h"

/* The bytes of a handle: the driver's, and the length of the allocation. */
enum {
	LENGTH_AT = sizeof(CUipcMemHandle),
	HANDLE_SIZE = LENGTH_AT + 8,
};

_Static_assert(HANDLE_SIZE <= PIER_BACKEND_IPC_MAX, "a handle");

/*
 * "CUDA IPC across GPU instances is not supported" (NVIDIA's MIG user guide). The CUDA on
 * WSL user guide names the driver R510.
 */
static const char *explain_support(CUresult error)
{
	if (error != CUDA_ERROR_NOT_SUPPORTED)
		return "";
	return "; MIG shares no memory between GPU instances, and WSL none before the "
	       "driver R510: use a NIC";
}

/* The driver has one error for several causes. */
static const char *explain_refusal(CUresult error)
{
	switch (error) {
	case CUDA_ERROR_INVALID_CONTEXT:
		return "; a process cannot open its own memory: use the buffer itself";
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_HANDLE:
	case CUDA_ERROR_MAP_FAILED:
		return "; has the other process freed it or ended? Containers must share "
		       "their GPUs and their PID and IPC namespaces (docker run "
		       "--pid=host --ipc=host)";
	default:
		return explain_support(error);
	}
}

static int fail_call(const struct pier_cuda_memory *memory, CUresult error,
		     const char *call, const char *hint)
{
	char text[160];

	pier_cuda_describe_error(memory->cuda, error, text, sizeof(text));
	return pier_fail(pier_cuda_errno(error), "%s on CUDA device %d: %s%s%s", call,
			 memory->device, text, pier_cuda_hint(error), hint);
}

/*
 * "Takes a pointer to the base of an existing device memory allocation created with
 * cuMemAlloc" (cuIpcGetMemHandle() in CUDA's driver API).
 */
int pier_cuda_ipc_export(const struct pier_memory *memory,
			 struct pier_backend_ipc *ret_ipc)
{
	const struct pier_cuda_memory *state = memory->state;
	struct pier_cuda_saved saved;
	CUipcMemHandle handle;
	CUresult error = CUDA_SUCCESS;
	int result;

	if (state->kind != PIER_CUDA_LINEAR)
		return pier_fail(EOPNOTSUPP,
				 "CUDA shares memory of cuMemAlloc() with other "
				 "processes, and this is %s: allocate it with cudaMalloc",
				 pier_cuda_kind_name(state->kind));
	result = pier_cuda_enter_live(state, &saved);
	if (result == 0)
		error = state->cuda->call.cuIpcGetMemHandle(&handle, state->start);
	pier_cuda_leave(state->cuda, &saved);
	if (error != CUDA_SUCCESS)
		result = fail_call(state, error, "cuIpcGetMemHandle",
				   explain_support(error));
	if (result != 0)
		return result;
	ret_ipc->address = state->start;
	ret_ipc->length = HANDLE_SIZE;
	memcpy(ret_ipc->bytes, &handle, sizeof(handle));
	pier_put_le64(ret_ipc->bytes + LENGTH_AT, state->start_length);
	return 0;
}

/*
 * The length comes from a peer, and a copy past the end would cost the context. The
 * attribute is older (CUDA 10.2) than the form of cuIpcOpenMemHandle() used here; for
 * memory of another device cuMemGetAddressRange() may not know it.
 */
static int check_length(const struct pier_cuda_memory *memory)
{
	size_t length = 0;

	if (!pier_cuda_read_attribute(memory->cuda, memory->start,
				      CU_POINTER_ATTRIBUTE_RANGE_SIZE, &length) ||
	    length >= memory->length)
		return 0;
	return pier_fail(EINVAL,
			 "the handle is for %" PRIu64 " bytes, and its memory has %zu",
			 memory->length, length);
}

/*
 * With the context entered, in which the copies will run. The flag lets the driver enable
 * access between the two devices. Whether it can, only this call tells: the other device
 * may be hidden here by CUDA_VISIBLE_DEVICES, and then cuDeviceCanAccessPeer() has no
 * number for it (uct_cuda_ipc_is_peer_accessible() in UCX's cuda_ipc_md.c).
 */
static int open_handle(struct pier_cuda_memory *memory, const CUipcMemHandle *handle)
{
	const struct pier_cuda *cuda = memory->cuda;
	CUdeviceptr address = 0;
	CUresult error = cuda->call.cuIpcOpenMemHandle(
		&address, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	int result;

	if (error != CUDA_SUCCESS)
		return fail_call(memory, error, "cuIpcOpenMemHandle",
				 explain_refusal(error));
	memory->start = memory->address = address;
	result = check_length(memory);
	if (result != 0)
		cuda->call.cuIpcCloseMemHandle(address);
	else
		pier_cuda_read_identity(cuda, address, &memory->identity);
	return result;
}

static int open_memory(struct pier_cuda_memory *memory, const CUipcMemHandle *handle)
{
	struct pier_cuda_saved saved;
	int result = PIER_CUDA_NEED(memory->cuda, cuIpcOpenMemHandle);

	if (result != 0)
		return result;
	result = pier_cuda_enter_memory(memory, &saved);
	if (result == 0)
		result = open_handle(memory, handle);
	pier_cuda_leave(memory->cuda, &saved);
	return result;
}

int pier_cuda_ipc_open(const struct pier_backend_ipc *ipc, const struct pier_memory *from,
		       struct pier_memory *ret_memory)
{
	const struct pier_cuda_memory *near = from->state;
	struct pier_cuda_memory *memory;
	CUipcMemHandle handle;
	int result;

	if (ipc->length != HANDLE_SIZE)
		return pier_fail(EINVAL, "a handle of CUDA has %d bytes, not %u",
				 HANDLE_SIZE, ipc->length);
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return pier_fail(ENOMEM, "no memory for an allocation's description");
	*memory = (struct pier_cuda_memory){
		.cuda = near->cuda,
		.kind = PIER_CUDA_OPENED,
		.device = near->device,
		.context = near->context,
		.length = pier_get_le64(ipc->bytes + LENGTH_AT),
	};
	memory->start_length = memory->length;
	memcpy(&handle, ipc->bytes, sizeof(handle));
	result = open_memory(memory, &handle);
	if (result != 0) {
		free(memory);
		return result;
	}
	*ret_memory = pier_cuda_describe(memory);
	return 0;
}

void pier_cuda_ipc_close(struct pier_cuda_memory *memory)
{
	const struct pier_cuda *cuda = memory->cuda;
	struct pier_cuda_saved saved;

	if (pier_cuda_was_freed(memory))
		return;
	if (pier_cuda_enter_memory(memory, &saved) == 0)
		pier_cuda_warn(cuda, cuda->call.cuIpcCloseMemHandle(memory->start),
			       "cuIpcCloseMemHandle", memory->start);
	else
		pier_warning("closing memory of another process: %s",
			     pier_error_message());
	pier_cuda_leave(memory->cuda, &saved);
}
