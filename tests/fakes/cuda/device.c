/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fake.h"

CUresult fake_cuDeviceGetCount(int *ret_count)
{
	FAKE_ENTER("cuDeviceGetCount", FAKE_NEEDS_INIT);
	if (!ret_count)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_count = (int)fake_driver.control.devices;
	return CUDA_SUCCESS;
}

CUresult fake_cuDeviceGet(CUdevice *ret_device, int ordinal)
{
	FAKE_ENTER("cuDeviceGet", FAKE_NEEDS_INIT);
	if (!ret_device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret_device = ordinal;
	return CUDA_SUCCESS;
}

/* Truncates the text as the driver does. */
static CUresult give_text(const char *text, char *ret_text, int size)
{
	if (!ret_text || size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(ret_text, (size_t)size, "%s", text);
	return CUDA_SUCCESS;
}

CUresult fake_cuDeviceGetName(char *ret_name, int size, CUdevice device)
{
	FAKE_ENTER("cuDeviceGetName", FAKE_NEEDS_INIT);
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return give_text(fake_device(device)->name, ret_name, size);
}

CUresult fake_cuDeviceGetPCIBusId(char *ret_address, int size, CUdevice device)
{
	FAKE_ENTER("cuDeviceGetPCIBusId", FAKE_NEEDS_INIT);
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return give_text(fake_device(device)->pci, ret_address, size);
}

CUresult fake_cuDeviceGetByPCIBusId(CUdevice *ret_device, const char *address)
{
	FAKE_ENTER("cuDeviceGetByPCIBusId", FAKE_NEEDS_INIT);
	if (!ret_device || !address)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; fake_has_device(i); i++)
		if (strcasecmp(fake_device(i)->pci, address) == 0) {
			*ret_device = i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult fake_cuDeviceTotalMem_v2(size_t *ret_bytes, CUdevice device)
{
	FAKE_ENTER("cuDeviceTotalMem", FAKE_NEEDS_INIT);
	if (!ret_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret_bytes = fake_device(device)->memory;
	return CUDA_SUCCESS;
}

static int pci_part(const struct fake_cuda_device *device, CUdevice_attribute attribute)
{
	unsigned int domain = 0, bus = 0, slot = 0;

	sscanf(device->pci, "%x:%x:%x", &domain, &bus, &slot);
	if (attribute == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
		return (int)domain;
	return (int)(attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? bus : slot);
}

/* The first version of CUDA whose cuda.h has the attribute. */
static int attribute_since(CUdevice_attribute attribute)
{
	if (attribute <= CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES)
		return 9020;
	if (attribute <= CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
		return 10020;
	if (attribute <= CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
		return 11000;
	if (attribute <= CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
		return 11020;
	if (attribute <= CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)
		return 11030;
	if (attribute <= CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
		return 11070;
	if (attribute <= CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
		return 12020;
	return 13000;
}

/* Returns -1 if the device lacks the attribute. */
static int find_attribute(const struct fake_cuda_device *device,
			  CUdevice_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_INTEGRATED:
		return 0;
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
	case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
		return 1;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
		return pci_part(device, attribute);
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return device->compute_major;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return device->compute_minor;
	case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
		return device->coherent;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		return device->vmm;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
		return device->vmm_rdma;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		return device->pools;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		return device->rdma;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
		return device->flush_options;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
		return device->ordering;
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
		return device->dmabuf;
	case CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED:
		return device->host_dmabuf;
	default:
		return -1;
	}
}

CUresult fake_cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute,
				   CUdevice device)
{
	int value;

	FAKE_ENTER("cuDeviceGetAttribute", FAKE_NEEDS_INIT);
	if (!ret_value || fake_driver.control.version < attribute_since(attribute))
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	/* The only attribute that can be negative. */
	if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) {
		*ret_value = fake_device(device)->numa_node;
		return CUDA_SUCCESS;
	}
	value = find_attribute(fake_device(device), attribute);
	if (value < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_value = value;
	return CUDA_SUCCESS;
}
