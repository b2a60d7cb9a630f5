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

volatile uint32_t *pier_hip_flush_register(const struct pier_hip *hip, uint64_t address)
{
	struct pier_hsa_hdp_flush flush = { NULL, NULL };
	struct pier_hsa_pointer_info info;

	if (!pier_hip_ask_hsa(hip, address, &info) ||
	    info.type == PIER_HSA_POINTER_UNKNOWN || !pier_hip_is_on_gpu(hip, &info))
		return NULL;
	if (hip->hsa_agent_get_info(info.owner, PIER_HSA_AGENT_HDP_FLUSH, &flush) !=
	    PIER_HSA_SUCCESS)
		return NULL;
	return flush.memory;
}
