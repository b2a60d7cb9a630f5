/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdio.h>

#include "backends/level_zero/api.h"

#ifdef HAVE_ZE_API_H

#include <level_zero/ze_api.h>

/*
 * The declarations of backends/level_zero/api.h, next to the header of Level Zero; that
 * this file compiles is the check.
 */

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(PIER_ZE_SUCCESS, ZE_RESULT_SUCCESS);
SAME(PIER_ZE_UNSUPPORTED_FEATURE, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
SAME(PIER_ZE_INVALID_ARGUMENT, ZE_RESULT_ERROR_INVALID_ARGUMENT);
SAME(PIER_ZE_UNSUPPORTED_SIZE, ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
SAME(PIER_ZE_UNSUPPORTED_ENUMERATION, ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION);
SAME(PIER_ZE_TYPE_DEVICE_PROPERTIES, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
SAME(PIER_ZE_TYPE_QUEUE_GROUP_PROPERTIES,
     ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES);
SAME(PIER_ZE_TYPE_DEVICE_MEMORY_PROPERTIES, ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES);
SAME(PIER_ZE_TYPE_EXTERNAL_MEMORY_PROPERTIES,
     ZE_STRUCTURE_TYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES);
SAME(PIER_ZE_TYPE_CONTEXT_DESC, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
SAME(PIER_ZE_TYPE_COMMAND_QUEUE_DESC, ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC);
SAME(PIER_ZE_TYPE_DEVICE_MEM_ALLOC_DESC, ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC);
SAME(PIER_ZE_TYPE_HOST_MEM_ALLOC_DESC, ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC);
SAME(PIER_ZE_TYPE_MEMORY_PROPERTIES, ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES);
SAME(PIER_ZE_TYPE_EXPORT_DESC, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC);
SAME(PIER_ZE_TYPE_EXPORT_FD, ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD);
SAME(PIER_ZE_TYPE_PCI_PROPERTIES, ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES);
SAME(PIER_ZE_INIT_GPU_ONLY, ZE_INIT_FLAG_GPU_ONLY);
SAME(PIER_ZE_DEVICE_GPU, ZE_DEVICE_TYPE_GPU);
SAME(PIER_ZE_QUEUE_COMPUTE, ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE);
SAME(PIER_ZE_QUEUE_COPY, ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY);
SAME(PIER_ZE_QUEUE_SYNCHRONOUS, ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
SAME(PIER_ZE_EXTERNAL_MEMORY_DMABUF, ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF);
SAME(PIER_ZE_MEMORY_UNKNOWN, ZE_MEMORY_TYPE_UNKNOWN);
SAME(PIER_ZE_MEMORY_HOST, ZE_MEMORY_TYPE_HOST);
SAME(PIER_ZE_MEMORY_DEVICE, ZE_MEMORY_TYPE_DEVICE);
SAME(PIER_ZE_MEMORY_SHARED, ZE_MEMORY_TYPE_SHARED);

#define SAME_SIZE(ours, theirs) \
	static_assert(sizeof(struct ours) == sizeof(theirs), #theirs)
#define SAME_PLACE(ours, our, theirs, their)                                   \
	static_assert(offsetof(struct ours, our) == offsetof(theirs, their) && \
			      sizeof(((struct ours *)0)->our) ==               \
				      sizeof(((theirs *)0)->their),            \
		      #their)

SAME_SIZE(pier_ze_device_properties, ze_device_properties_t);
#define DEVICE(our, their) \
	SAME_PLACE(pier_ze_device_properties, our, ze_device_properties_t, their)
DEVICE(stype, stype);
DEVICE(next, pNext);
DEVICE(type, type);
DEVICE(max_alloc, maxMemAllocSize);
DEVICE(name, name);

SAME_SIZE(pier_ze_device_memory_properties, ze_device_memory_properties_t);
SAME_PLACE(pier_ze_device_memory_properties, total, ze_device_memory_properties_t,
	   totalSize);

SAME_SIZE(pier_ze_queue_group_properties, ze_command_queue_group_properties_t);
SAME_PLACE(pier_ze_queue_group_properties, flags, ze_command_queue_group_properties_t,
	   flags);

SAME_SIZE(pier_ze_external_memory_properties, ze_device_external_memory_properties_t);
SAME_PLACE(pier_ze_external_memory_properties, memory_exports,
	   ze_device_external_memory_properties_t, memoryAllocationExportTypes);

SAME_SIZE(pier_ze_pci_properties, ze_pci_ext_properties_t);
#define PCI(our, their) \
	SAME_PLACE(pier_ze_pci_properties, our, ze_pci_ext_properties_t, their)
PCI(domain, address.domain);
PCI(bus, address.bus);
PCI(device, address.device);
PCI(function, address.function);

SAME_SIZE(pier_ze_context_desc, ze_context_desc_t);
SAME_PLACE(pier_ze_context_desc, flags, ze_context_desc_t, flags);

SAME_SIZE(pier_ze_command_queue_desc, ze_command_queue_desc_t);
#define QUEUE(name) \
	SAME_PLACE(pier_ze_command_queue_desc, name, ze_command_queue_desc_t, name)
QUEUE(ordinal);
QUEUE(index);
QUEUE(flags);
QUEUE(mode);
QUEUE(priority);

SAME_SIZE(pier_ze_device_mem_alloc_desc, ze_device_mem_alloc_desc_t);
SAME_PLACE(pier_ze_device_mem_alloc_desc, next, ze_device_mem_alloc_desc_t, pNext);
SAME_PLACE(pier_ze_device_mem_alloc_desc, ordinal, ze_device_mem_alloc_desc_t, ordinal);

SAME_SIZE(pier_ze_host_mem_alloc_desc, ze_host_mem_alloc_desc_t);
SAME_PLACE(pier_ze_host_mem_alloc_desc, flags, ze_host_mem_alloc_desc_t, flags);

SAME_SIZE(pier_ze_export_desc, ze_external_memory_export_desc_t);
SAME_PLACE(pier_ze_export_desc, flags, ze_external_memory_export_desc_t, flags);

SAME_SIZE(pier_ze_export_fd, ze_external_memory_export_fd_t);
SAME_PLACE(pier_ze_export_fd, flags, ze_external_memory_export_fd_t, flags);
SAME_PLACE(pier_ze_export_fd, fd, ze_external_memory_export_fd_t, fd);

SAME_SIZE(pier_ze_memory_properties, ze_memory_allocation_properties_t);
#define MEMORY(our, their)                                                            \
	SAME_PLACE(pier_ze_memory_properties, our, ze_memory_allocation_properties_t, \
		   their)
MEMORY(next, pNext);
MEMORY(type, type);
MEMORY(id, id);

/*
 * All except the functions that take structs, which have other names here: their other
 * parameters are handles, counts and pointers to pointers.
 */
__attribute__((unused)) static const struct pier_ze_functions call;

__attribute__((unused)) static void compare_functions(void)
{
#define SAME_FUNCTION(name)                                                \
	static_assert(__builtin_types_compatible_p(__typeof__(&(name)),    \
						   __typeof__(call.name)), \
		      #name)
	SAME_FUNCTION(zeInit);
	SAME_FUNCTION(zeDriverGet);
	SAME_FUNCTION(zeDeviceGet);
	SAME_FUNCTION(zeContextDestroy);
	SAME_FUNCTION(zeMemFree);
	SAME_FUNCTION(zeMemGetAddressRange);
	SAME_FUNCTION(zeCommandListDestroy);
	SAME_FUNCTION(zeCommandListAppendMemoryCopy);
	SAME_FUNCTION(zeCommandListAppendMemoryFill);
}

int main(void)
{
	printf("the declarations are those of ze_api.h, which has Level Zero %d.%d\n",
	       ZE_MAJOR_VERSION(ZE_API_VERSION_CURRENT),
	       ZE_MINOR_VERSION(ZE_API_VERSION_CURRENT));
	return 0;
}

#else

int main(void)
{
	printf("skip: no header of Level Zero to compare with (Debian: libze-dev)\n");
	return 77; /* skipped */
}

#endif
