/* SPDX-License-Identifier: BSD-3-Clause */

/* Results of cuGetErrorName() and cuGetErrorString(). */

NAME(CUDA_SUCCESS, "no error")
NAME(CUDA_ERROR_INVALID_VALUE, "invalid argument")
NAME(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")
NAME(CUDA_ERROR_NOT_INITIALIZED, "initialization error")
NAME(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable")
NAME(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")
NAME(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")
NAME(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")
NAME(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")
NAME(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped")
NAME(CUDA_ERROR_NOT_MAPPED, "resource not mapped")
NAME(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")
NAME(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
     "peer access is not supported between these two devices")
NAME(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")
NAME(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")
NAME(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")
NAME(CUDA_ERROR_NOT_FOUND, "named symbol not found")
NAME(CUDA_ERROR_NOT_READY, "device not ready")
NAME(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")
NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")
NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
     "part or all of the requested memory range is already mapped")
NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
     "pointer does not correspond to a registered memory region")
NAME(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")
NAME(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")
NAME(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")
NAME(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")
NAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda "
					"driver combination")
NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     "operation not permitted when stream is capturing")
NAME(CUDA_ERROR_UNKNOWN, "unknown error")
