/* SPDX-License-Identifier: BSD-3-Clause */
#include "hsa.h"

bool pier_hip_ask_hsa(const struct pier_hip *hip, uint64_t address,
		      struct pier_hsa_pointer_info *ret_info)
{
	unsigned int status;

	*ret_info = (struct pier_hsa_pointer_info){ .size = sizeof(*ret_info) };
	status = hip->hsa_amd_pointer_info((void *)(uintptr_t)address, ret_info, NULL,
					   NULL, NULL);
	if (status == PIER_HSA_NOT_INITIALIZED)
		return false;
	if (status != PIER_HSA_SUCCESS)
		ret_info->type = PIER_HSA_POINTER_UNKNOWN;
	return true;
}

bool pier_hip_is_on_gpu(const struct pier_hip *hip,
			const struct pier_hsa_pointer_info *info)
{
	int device = PIER_HSA_DEVICE_GPU;

	return hip->hsa_agent_get_info(info->owner, PIER_HSA_AGENT_DEVICE, &device) !=
		       PIER_HSA_SUCCESS ||
	       device == PIER_HSA_DEVICE_GPU;
}

bool pier_hip_is_mapped(const struct pier_hsa_pointer_info *info)
{
	return info->type == PIER_HSA_POINTER_VIRTUAL ||
	       info->type == PIER_HSA_POINTER_RESERVED;
}
