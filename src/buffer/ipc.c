/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <pier/ipc.h>

#include "backends/backend.h"
#include "buffer.h"
#include "core/caller.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/wire.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* The form of a handle: docs/wire.md. */
enum {
	VERSION = 1,
	VERSION_AT = 4,
	SIZE_AT = 6,
	HOST_AT = 8,
	DRIVER_LENGTH_AT = 44,
	BACKEND_AT = 48,
	OFFSET_AT = 80,
	LENGTH_AT = 88,
	DRIVER_AT = 96,
	HOST_SIZE = DRIVER_LENGTH_AT - HOST_AT,
	BACKEND_SIZE = OFFSET_AT - BACKEND_AT, /* 31 letters and a NUL */
};

static const uint8_t magic[4] = { 'P', 'r', 'I', 'H' };

_Static_assert(DRIVER_AT + PIER_BACKEND_IPC_MAX == PIER_IPC_HANDLE_SIZE, "the handle");

/* The boot id is one on a host, in all containers; NCCL compares it, too (its PR 248). */
static void read_host(uint8_t ret_host[HOST_SIZE])
{
	pier_auto_fd fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, ret_host, HOST_SIZE) != HOST_SIZE)
		memset(ret_host, 0, HOST_SIZE);
}

static void write_handle(const struct pier_buffer *buffer,
			 const struct pier_backend_ipc *ipc, uint8_t *ret_handle)
{
	const char *name = buffer->backend->name;

	memset(ret_handle, 0, PIER_IPC_HANDLE_SIZE);
	memcpy(ret_handle, magic, sizeof(magic));
	pier_put_le16(ret_handle + VERSION_AT, VERSION);
	pier_put_le16(ret_handle + SIZE_AT, PIER_IPC_HANDLE_SIZE);
	read_host(ret_handle + HOST_AT);
	pier_put_le32(ret_handle + DRIVER_LENGTH_AT, ipc->length);
	memcpy(ret_handle + BACKEND_AT, name, strlen(name));
	pier_put_le64(ret_handle + OFFSET_AT, buffer->address - ipc->address);
	pier_put_le64(ret_handle + LENGTH_AT, buffer->length);
	memcpy(ret_handle + DRIVER_AT, ipc->bytes, ipc->length);
}

int pier_buffer_ipc_export(struct pier_buffer *buffer, void *ret_handle, size_t size)
{
	PIER_REFUSE_NULL(buffer, ret_handle);
	const struct pier_backend *backend = buffer->backend;
	struct pier_backend_ipc ipc = { .size = sizeof(ipc) };
	int result;

	if (size < PIER_IPC_HANDLE_SIZE)
		return pier_fail(ENOSPC,
				 "a handle has %d bytes, and there is room for %zu",
				 PIER_IPC_HANDLE_SIZE, size);
	if (!backend->ipc_export)
		return pier_fail(EOPNOTSUPP,
				 "describing memory for another process: the backend %s "
				 "cannot do that; use a NIC, or soft0",
				 backend->name);
	pier_clear_error();
	result = backend->ipc_export(&buffer->memory, &ipc);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "describing a buffer of %s for another process",
					 backend->name);
	if (ipc.length == 0 || ipc.length > PIER_BACKEND_IPC_MAX ||
	    buffer->address < ipc.address)
		return pier_fail(EIO, "backend %s returned a handle of %u bytes",
				 backend->name, ipc.length);
	write_handle(buffer, &ipc, ret_handle);
	return 0;
}

static bool is_zero(const uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i])
			return false;
	return true;
}

/* Each handle has one form. */
static bool is_well_formed(const uint8_t *handle)
{
	size_t name = strnlen((const char *)handle + BACKEND_AT, BACKEND_SIZE);
	uint32_t length = pier_get_le32(handle + DRIVER_LENGTH_AT);

	return pier_get_le16(handle + SIZE_AT) == PIER_IPC_HANDLE_SIZE && name > 0 &&
	       name < BACKEND_SIZE &&
	       is_zero(handle + BACKEND_AT + name, BACKEND_SIZE - name) && length > 0 &&
	       length <= PIER_BACKEND_IPC_MAX &&
	       is_zero(handle + DRIVER_AT + length, PIER_BACKEND_IPC_MAX - length) &&
	       pier_get_le64(handle + LENGTH_AT) > 0 &&
	       pier_get_le64(handle + LENGTH_AT) <= SIZE_MAX;
}

static int check_handle(const uint8_t *handle, size_t size)
{
	uint8_t host[HOST_SIZE];

	if (size < SIZE_AT || memcmp(handle, magic, sizeof(magic)) != 0)
		return pier_fail(EINVAL, "these %zu bytes are no handle", size);
	if (pier_get_le16(handle + VERSION_AT) != VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "the handle has version %u, this library knows %d",
				 pier_get_le16(handle + VERSION_AT), VERSION);
	if (size != PIER_IPC_HANDLE_SIZE || !is_well_formed(handle))
		return pier_fail(EINVAL, "the handle is malformed");
	read_host(host);
	if (memcmp(host, handle + HOST_AT, HOST_SIZE) != 0)
		return pier_fail(EXDEV,
				 "it is on another host, or this one was restarted since "
				 "(" BOOT_ID "); use a NIC");
	return 0;
}

static int check_opener(const uint8_t *handle, const struct pier_backend *backend)
{
	const char *name = (const char *)handle + BACKEND_AT;

	if (strcmp(name, backend->name) != 0)
		return pier_fail(EOPNOTSUPP,
				 "a buffer of %s cannot reach memory of another backend",
				 backend->name);
	if (!backend->ipc_open)
		return pier_fail(EOPNOTSUPP,
				 "the backend %s cannot do that; use a NIC, or soft0",
				 backend->name);
	return 0;
}

static int open_memory(const uint8_t *handle, const struct pier_buffer *from,
		       struct pier_memory *ret_memory)
{
	struct pier_backend_ipc ipc = {
		.size = sizeof(ipc),
		.length = pier_get_le32(handle + DRIVER_LENGTH_AT),
	};
	struct pier_memory memory = { .size = sizeof(memory) };
	int result;

	memcpy(ipc.bytes, handle + DRIVER_AT, ipc.length);
	result = from->backend->ipc_open(&ipc, &from->memory, &memory);
	*ret_memory = memory;
	return result;
}

int pier_buffer_ipc_open(const void *handle, size_t size, struct pier_buffer *from,
			 struct pier_buffer **ret_buffer)
{
	PIER_REFUSE_NULL(from, ret_buffer);
	PIER_REFUSE_NULL_ARRAY(handle, size);
	PIER_ENTRY();
	const uint8_t *bytes = handle;
	struct pier_memory memory;
	uint64_t address;
	int result;

	pier_clear_error();
	result = check_handle(bytes, size);
	if (result == 0)
		result = check_opener(bytes, from->backend);
	if (result == 0)
		result = open_memory(bytes, from, &memory);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "opening memory of another process");
	/* A sum that wraps is below the memory. */
	address = memory.address + pier_get_le64(bytes + OFFSET_AT);
	return pier_adopt_memory(from->backend, &memory, address,
				 (size_t)pier_get_le64(bytes + LENGTH_AT), ret_buffer);
}
