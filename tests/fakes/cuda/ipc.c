/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "fake.h"

/*
 * Memory of other processes, as "CUDA IPC" in the reference of the driver API has it. A
 * handle names the process and its memfd, which the other process opens through /proc. It
 * holds a shared lock on it, flock(2), as long as the memory is open.
 */
struct handle {
	char magic[8];
	int pid;
	int fd;
	int device;
	uint64_t id;	 /* of the allocation */
	uint64_t size;	 /* of the allocation */
	uint64_t offset; /* in the memfd */
	uint64_t length; /* of the memfd */
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle");

static const char magic[8] = "FAKEIPC";

/*
 * "Takes a pointer to the base of an existing device memory allocation created with
 * cuMemAlloc": not of cuMemCreate(), pools and managed memory.
 */
CUresult fake_cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr address)
{
	struct fake_piece *piece;
	struct handle handle;

	FAKE_ENTER("cuIpcGetMemHandle", FAKE_NEEDS_DEVICE);
	if (fake_driver.control.no_ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	piece = fake_find_base(FAKE_CUDA_DEVICE_MEMORY, address);
	if (!ret_handle || !piece)
		return CUDA_ERROR_INVALID_VALUE;
	memset(&handle, 0, sizeof(handle));
	memcpy(handle.magic, magic, sizeof(magic));
	handle.pid = getpid();
	handle.fd = piece->backing->fd;
	handle.device = piece->device;
	handle.id = piece->id;
	handle.size = piece->size;
	handle.offset = piece->offset;
	handle.length = piece->backing->size;
	piece->backing->shared = true;
	memset(ret_handle, 0, sizeof(*ret_handle));
	memcpy(ret_handle, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

/*
 * A handle of this process is CUDA_ERROR_INVALID_CONTEXT. One of another container is an
 * invalid argument (issue 6872 of triton-inference-server/server).
 */
static CUresult check_handle(const struct handle *handle, int device)
{
	if (fake_driver.control.no_ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (memcmp(handle->magic, magic, sizeof(magic)) != 0)
		return CUDA_ERROR_INVALID_HANDLE;
	if (handle->pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (fake_driver.control.contained || !fake_has_device(handle->device))
		return CUDA_ERROR_INVALID_VALUE;
	if (handle->device != device && fake_driver.control.no_peers)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	return CUDA_SUCCESS;
}

/* Returns -1 if the other process has freed it or ended. */
static int open_memfd(const struct handle *handle)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (lseek(fd, 0, SEEK_END) == (off_t)handle->length &&
	    flock(fd, LOCK_SH | LOCK_NB) == 0)
		return fd;
	close(fd);
	return -1;
}

static CUresult add_opened(const struct handle *handle, int fd, CUcontext context,
			   CUdeviceptr *ret_address)
{
	uint64_t address = fake_take_addresses(handle->length, 1);
	struct fake_backing *backing = NULL;
	struct fake_piece *piece = NULL;
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (address)
		result = fake_adopt_backing(fd, handle->device, address, handle->length,
					    &backing);
	if (result != CUDA_SUCCESS) {
		if (address)
			fake_give_addresses(address, handle->length);
		close(fd);
		return result;
	}
	piece = fake_add_piece(FAKE_CUDA_OPENED, address + handle->offset, handle->size);
	if (!piece)
		abort();
	piece->backing = backing;
	piece->offset = handle->offset;
	piece->device = handle->device;
	piece->context = context;
	piece->owner = handle->pid;
	piece->owned_id = handle->id;
	piece->opens = 1;
	backing->pieces = 1;
	*ret_address = piece->address;
	return CUDA_SUCCESS;
}

/*
 * "If the memory handle has already been opened by the current context, the reference
 * count on the handle is incremented by 1 and the existing device pointer is returned."
 */
static struct fake_piece *find_opened(const struct handle *handle, CUcontext context)
{
	struct fake_piece *piece = fake_driver.pieces;

	while (piece && (piece->kind != FAKE_CUDA_OPENED || piece->owner != handle->pid ||
			 piece->owned_id != handle->id || piece->context != context))
		piece = piece->next;
	return piece;
}

CUresult fake_cuIpcOpenMemHandle_v2(CUdeviceptr *ret_address, CUipcMemHandle bytes,
				    unsigned int flags)
{
	struct fake_piece *piece;
	struct handle handle;
	CUresult result;
	int fd;

	FAKE_ENTER("cuIpcOpenMemHandle", FAKE_NEEDS_DEVICE);
	if (!ret_address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&handle, &bytes, sizeof(handle));
	result = check_handle(&handle, scope.device);
	if (result != CUDA_SUCCESS)
		return result;
	piece = find_opened(&handle, scope.current);
	if (piece) {
		piece->opens++;
		*ret_address = piece->address;
		return CUDA_SUCCESS;
	}
	fd = open_memfd(&handle);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	return add_opened(&handle, fd, scope.current, ret_address);
}

CUresult fake_cuIpcCloseMemHandle(CUdeviceptr address)
{
	struct fake_piece *piece;

	FAKE_ENTER("cuIpcCloseMemHandle", FAKE_NEEDS_DEVICE);
	piece = fake_find_base(FAKE_CUDA_OPENED, address);
	if (!piece || piece->context != scope.current)
		return CUDA_ERROR_INVALID_VALUE;
	if (--piece->opens == 0)
		fake_free(piece);
	return CUDA_SUCCESS;
}

/*
 * "Calling cuMemFree on an exported memory region before calling cuIpcCloseMemHandle in
 * the importing context will result in undefined behavior."
 */
void fake_check_sharers(const struct fake_piece *piece)
{
	const struct fake_backing *backing = piece->backing;

	if (!backing->shared)
		return;
	if (flock(backing->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
		flock(backing->fd, LOCK_UN);
		return;
	}
	fprintf(stderr, "fake CUDA: memory is freed that another process has open\n");
	abort();
}
