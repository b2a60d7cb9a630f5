/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_DLPACK_H
#define PIER_PY_DLPACK_H

#include <stdint.h>

/*
 * The ABI of DLPack 1, and of the tensors before it (dlpack.h and python_spec.rst of
 * dmlc/dlpack).
 */
#define DLPACK_MAJOR	 1
#define DLPACK_MINOR	 0
#define DLPACK_READ_ONLY UINT64_C(1)
#define DLPACK_PADDED	 UINT64_C(4) /* items of less than a byte have one each */

/* The names of capsules; a consumer renames the capsule when it takes the tensor. */
#define DLPACK_CAPSULE	      "dltensor"
#define DLPACK_USED_CAPSULE   "used_dltensor"
#define DLPACK_VERSIONED      "dltensor_versioned"
#define DLPACK_USED_VERSIONED "used_dltensor_versioned"

enum dlpack_device_type {
	DLPACK_CPU = 1,
	DLPACK_CUDA = 2,
	DLPACK_CUDA_HOST = 3, /* page-locked; its device is 0 */
	DLPACK_ROCM = 10,
	DLPACK_ROCM_HOST = 11,
	DLPACK_CUDA_MANAGED = 13,
	DLPACK_ONEAPI = 14,
};

struct dlpack_device {
	int32_t type; /* enum dlpack_device_type */
	int32_t id;
};

enum dlpack_code {
	DLPACK_INT = 0,
	DLPACK_UINT = 1,
	DLPACK_FLOAT = 2,
	DLPACK_BFLOAT = 4,
	DLPACK_COMPLEX = 5,
	DLPACK_BOOL = 6,
	DLPACK_FLOAT8_E4M3FN = 10,
	DLPACK_FLOAT8_E4M3FNUZ = 11,
	DLPACK_FLOAT8_E5M2 = 12,
	DLPACK_FLOAT8_E5M2FNUZ = 13,
	DLPACK_FLOAT8_E8M0FNU = 14,
	DLPACK_FLOAT4_E2M1FN = 17,
};

struct dlpack_type {
	uint8_t code; /* enum dlpack_code */
	uint8_t bits;
	uint16_t lanes;
};

struct dlpack_tensor {
	void *data;
	struct dlpack_device device;
	int32_t dimensions;
	struct dlpack_type type;
	int64_t *shape;
	int64_t *strides; /* in items; NULL: in C order */
	uint64_t byte_offset;
};

/* DLManagedTensor */
struct dlpack_managed {
	struct dlpack_tensor tensor;
	void *context;
	void (*deleter)(struct dlpack_managed *self);
};

/* DLManagedTensorVersioned */
struct dlpack_versioned {
	uint32_t major;
	uint32_t minor;
	void *context;
	void (*deleter)(struct dlpack_versioned *self);
	uint64_t flags;
	struct dlpack_tensor tensor;
};

#endif
