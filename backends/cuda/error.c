/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "error.h"
#include "core/error.h"

/*
 * After these errors the process has lost the context or the device: every later call
 * fails with the same error (CUDA C programming guide, section "Error handling").
 */
#define LOST "; this process cannot use the device any more: restart the process"

#define MPS "; check the MPS daemon (nvidia-cuda-mps-control)"

/* Errors that are not listed are EIO. */
static const struct {
	CUresult error;
	int number;
	const char *hint;
} errors[] = {
	{ CUDA_ERROR_INVALID_VALUE, EINVAL, "" },
	{ CUDA_ERROR_OUT_OF_MEMORY, ENOMEM, "" },
	/*
	 * cuInit() returns it, too, in a child of a process that called it before
	 * fork(2).
	 */
	{ CUDA_ERROR_NOT_INITIALIZED, ECHILD,
	  "; CUDA cannot be used in a child of fork(2) whose parent initialised it: use "
	  "CUDA in the parent alone, or fork before, or spawn" },
	/* Returned to destructors that run after the driver's own. */
	{ CUDA_ERROR_DEINITIALIZED, ESHUTDOWN, "; the process is ending" },
	{ CUDA_ERROR_STUB_LIBRARY, EOPNOTSUPP,
	  "; this is the toolkit's stub to link with: take its folder out of "
	  "LD_LIBRARY_PATH, or install NVIDIA's driver" },
	/* The first cause applies at the first use of the device, the other one later. */
	{ CUDA_ERROR_DEVICE_UNAVAILABLE, ENODEV,
	  "; another process has the device to itself (nvidia-smi -q -d COMPUTE), or it "
	  "was lost" },
	{ CUDA_ERROR_NO_DEVICE, ENODEV, "" },
	{ CUDA_ERROR_INVALID_DEVICE, EINVAL, "" },
	{ CUDA_ERROR_DEVICE_NOT_LICENSED, EOPNOTSUPP, "" },
	{ CUDA_ERROR_INVALID_CONTEXT, EINVAL, "" },
	{ CUDA_ERROR_CONTEXT_IS_DESTROYED, EINVAL, "" },
	{ CUDA_ERROR_MAP_FAILED, ENOMEM, "" },
	{ CUDA_ERROR_UNMAP_FAILED, EIO, "" },
	{ CUDA_ERROR_ALREADY_MAPPED, EINVAL, "" },
	{ CUDA_ERROR_NOT_MAPPED, EINVAL, "" },
	{ CUDA_ERROR_ECC_UNCORRECTABLE, EIO, LOST },
	{ CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, EOPNOTSUPP,
	  "; the two devices cannot reach each other's memory (nvidia-smi topo -p2p w)" },
	{ CUDA_ERROR_NVLINK_UNCORRECTABLE, EIO, LOST },
	{ CUDA_ERROR_OPERATING_SYSTEM, EIO,
	  "; a system call of the driver failed, often at the limit of file descriptors "
	  "(ulimit -n) or locked memory (ulimit -l)" },
	{ CUDA_ERROR_INVALID_HANDLE, EINVAL, "" },
	{ CUDA_ERROR_ILLEGAL_STATE, EINVAL, "" },
	/* Not ENOENT: find() returns that for memory of other backends. */
	{ CUDA_ERROR_NOT_FOUND, EOPNOTSUPP, "" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS, EIO, LOST },
	{ CUDA_ERROR_LAUNCH_TIMEOUT, EIO, LOST },
	{ CUDA_ERROR_ASSERT, EIO, LOST },
	{ CUDA_ERROR_TOO_MANY_PEERS, EUSERS, "" },
	{ CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, EEXIST, "" },
	{ CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, EINVAL, "" },
	{ CUDA_ERROR_HARDWARE_STACK_ERROR, EIO, LOST },
	{ CUDA_ERROR_ILLEGAL_INSTRUCTION, EIO, LOST },
	{ CUDA_ERROR_MISALIGNED_ADDRESS, EIO, LOST },
	{ CUDA_ERROR_INVALID_ADDRESS_SPACE, EIO, LOST },
	{ CUDA_ERROR_INVALID_PC, EIO, LOST },
	{ CUDA_ERROR_LAUNCH_FAILED, EIO, LOST },
	{ CUDA_ERROR_NOT_PERMITTED, EPERM, "" },
	{ CUDA_ERROR_NOT_SUPPORTED, EOPNOTSUPP, "" },
	{ CUDA_ERROR_SYSTEM_NOT_READY, ENODEV,
	  "; start nvidia-fabricmanager, which machines with NVSwitches need" },
	{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, EOPNOTSUPP,
	  "; libcuda.so.1 and the kernel module nvidia are of different versions: "
	  "reload the module, or restart the machine" },
	{ CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, EOPNOTSUPP,
	  "; take the folder of CUDA's compat libraries out of LD_LIBRARY_PATH" },
	{ CUDA_ERROR_MPS_CONNECTION_FAILED, ECONNREFUSED, MPS },
	{ CUDA_ERROR_MPS_RPC_FAILURE, EIO, MPS },
	{ CUDA_ERROR_MPS_SERVER_NOT_READY, EAGAIN, MPS },
	{ CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, EUSERS, MPS },
	{ CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, EUSERS, MPS },
	/* A thread that captures a stream must not make calls that wait. */
	{ CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, EBUSY,
	  "; a stream of this process is being captured: wait until that is over" },
	{ CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, EBUSY,
	  "; a stream of this process is being captured: wait until that is over" },
	{ CUDA_ERROR_TIMEOUT, EIO, "" },
	/* For example, the device fell off its bus. */
	{ CUDA_ERROR_UNKNOWN, EIO, "; the kernel's log may have the reason" },
};

enum {
	ERRORS = sizeof(errors) / sizeof(errors[0])
};

int pier_cuda_errno(CUresult error)
{
	for (size_t i = 0; i < ERRORS; i++) {
		if (errors[i].error == error)
			return errors[i].number;
	}
	return EIO;
}

const char *pier_cuda_hint(CUresult error)
{
	for (size_t i = 0; i < ERRORS; i++) {
		if (errors[i].error == error)
			return errors[i].hint;
	}
	return "";
}

void pier_cuda_describe_error(const struct pier_cuda *cuda, CUresult error,
			      char *ret_text, size_t size)
{
	const char *name = NULL, *words = NULL;

	if (cuda->call.cuGetErrorName(error, &name) != CUDA_SUCCESS || !name) {
		snprintf(ret_text, size, "error %u of the CUDA driver",
			 (unsigned int)error);
		return;
	}
	if (cuda->call.cuGetErrorString(error, &words) != CUDA_SUCCESS || !words)
		words = "unknown";
	snprintf(ret_text, size, "%s (%s)", name, words);
}

int pier_cuda_fail(const struct pier_cuda *cuda, CUresult error, const char *format, ...)
{
	char step[256], text[160];
	va_list args;

	va_start(args, format);
	vsnprintf(step, sizeof(step), format, args);
	va_end(args);
	pier_cuda_describe_error(cuda, error, text, sizeof(text));
	return pier_fail(pier_cuda_errno(error), "%s: %s%s", step, text,
			 pier_cuda_hint(error));
}
