/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_LEVEL_ZERO_API_H
#define PIER_BACKENDS_LEVEL_ZERO_API_H

#include <stddef.h>
#include <stdint.h>

/*
 * The part of oneAPI Level Zero that the backend uses, declared here so that pier builds
 * without ze_api.h. Where that is installed, tests/unit/backends/level_zero/headers.c
 * compares. Version 1.4 of the interface has everything.
 */

/* The handles have the header's tags, so that the prototypes can be compared. */
struct _ze_driver_handle_t;
struct _ze_device_handle_t;
struct _ze_context_handle_t;
struct _ze_command_list_handle_t;
struct _ze_event_handle_t;

/* ze_result_t: the values that the code distinguishes. The others are in load.c. */
enum {
	PIER_ZE_SUCCESS = 0,
	PIER_ZE_UNSUPPORTED_FEATURE = 0x78000003,
	PIER_ZE_INVALID_ARGUMENT = 0x78000004,
	PIER_ZE_UNSUPPORTED_SIZE = 0x78000009,
	PIER_ZE_UNSUPPORTED_ENUMERATION = 0x7800000d,
};

/* ze_structure_type_t */
enum {
	PIER_ZE_TYPE_DEVICE_PROPERTIES = 0x3,
	PIER_ZE_TYPE_QUEUE_GROUP_PROPERTIES = 0x6,
	PIER_ZE_TYPE_DEVICE_MEMORY_PROPERTIES = 0x7,
	PIER_ZE_TYPE_EXTERNAL_MEMORY_PROPERTIES = 0xc,
	PIER_ZE_TYPE_CONTEXT_DESC = 0xd,
	PIER_ZE_TYPE_COMMAND_QUEUE_DESC = 0xe,
	PIER_ZE_TYPE_DEVICE_MEM_ALLOC_DESC = 0x15,
	PIER_ZE_TYPE_HOST_MEM_ALLOC_DESC = 0x16,
	PIER_ZE_TYPE_MEMORY_PROPERTIES = 0x17,
	PIER_ZE_TYPE_EXPORT_DESC = 0x18,
	PIER_ZE_TYPE_EXPORT_FD = 0x1a,
	PIER_ZE_TYPE_PCI_PROPERTIES = 0x10008,
};

enum {
	PIER_ZE_INIT_GPU_ONLY = 1,	   /* ze_init_flag_t */
	PIER_ZE_DEVICE_GPU = 1,		   /* ze_device_type_t */
	PIER_ZE_QUEUE_COMPUTE = 1,	   /* ze_command_queue_group_property_flag_t */
	PIER_ZE_QUEUE_COPY = 2,		   /* the same */
	PIER_ZE_QUEUE_SYNCHRONOUS = 1,	   /* ze_command_queue_mode_t */
	PIER_ZE_EXTERNAL_MEMORY_DMABUF = 2 /* ze_external_memory_type_flag_t */
};

/* ze_memory_type_t */
enum {
	PIER_ZE_MEMORY_UNKNOWN = 0,
	PIER_ZE_MEMORY_HOST = 1,
	PIER_ZE_MEMORY_DEVICE = 2,
	PIER_ZE_MEMORY_SHARED = 3,
};

/* ze_device_properties_t */
struct pier_ze_device_properties {
	unsigned int stype;
	void *next;
	unsigned int type;
	uint32_t vendor;
	uint32_t device;
	uint32_t flags;
	uint32_t subdevice;
	uint32_t core_clock;
	uint64_t max_alloc;
	uint32_t numbers[7];
	uint64_t timer;
	uint32_t timestamp_bits;
	uint32_t kernel_timestamp_bits;
	uint8_t uuid[16];
	char name[256];
};

/* ze_device_memory_properties_t */
struct pier_ze_device_memory_properties {
	unsigned int stype;
	void *next;
	uint32_t flags;
	uint32_t max_clock;
	uint32_t bus_width;
	uint64_t total;
	char name[256];
};

/* ze_command_queue_group_properties_t */
struct pier_ze_queue_group_properties {
	unsigned int stype;
	void *next;
	uint32_t flags;
	size_t max_pattern;
	uint32_t queues;
};

/* ze_device_external_memory_properties_t */
struct pier_ze_external_memory_properties {
	unsigned int stype;
	void *next;
	uint32_t memory_imports;
	uint32_t memory_exports;
	uint32_t image_imports;
	uint32_t image_exports;
};

/* ze_pci_ext_properties_t */
struct pier_ze_pci_properties {
	unsigned int stype;
	void *next;
	uint32_t domain;
	uint32_t bus;
	uint32_t device;
	uint32_t function;
	int32_t generation;
	int32_t width;
	int64_t bandwidth;
};

/* ze_context_desc_t */
struct pier_ze_context_desc {
	unsigned int stype;
	const void *next;
	uint32_t flags;
};

/* ze_command_queue_desc_t */
struct pier_ze_command_queue_desc {
	unsigned int stype;
	const void *next;
	uint32_t ordinal;
	uint32_t index;
	uint32_t flags;
	unsigned int mode;
	unsigned int priority;
};

/* ze_device_mem_alloc_desc_t */
struct pier_ze_device_mem_alloc_desc {
	unsigned int stype;
	const void *next;
	uint32_t flags;
	uint32_t ordinal;
};

/* ze_host_mem_alloc_desc_t */
struct pier_ze_host_mem_alloc_desc {
	unsigned int stype;
	const void *next;
	uint32_t flags;
};

/* ze_external_memory_export_desc_t */
struct pier_ze_export_desc {
	unsigned int stype;
	const void *next;
	uint32_t flags;
};

/* ze_external_memory_export_fd_t */
struct pier_ze_export_fd {
	unsigned int stype;
	const void *next;
	uint32_t flags;
	int fd;
};

/* ze_memory_allocation_properties_t */
struct pier_ze_memory_properties {
	unsigned int stype;
	void *next;
	unsigned int type;
	uint64_t id;
	uint64_t page_size;
};

/* X(name, parameters): required functions, which return ze_result_t. */
#define PIER_ZE_FUNCTIONS(X)                                                             \
	X(zeInit, (uint32_t flags))                                                      \
	X(zeDriverGet, (uint32_t * count, struct _ze_driver_handle_t * *drivers))        \
	X(zeDriverGetApiVersion,                                                         \
	  (struct _ze_driver_handle_t * driver, unsigned int *version))                  \
	X(zeDeviceGet, (struct _ze_driver_handle_t * driver, uint32_t * count,           \
			struct _ze_device_handle_t * *devices))                          \
	X(zeDeviceGetProperties, (struct _ze_device_handle_t * device,                   \
				  struct pier_ze_device_properties * properties))        \
	X(zeDeviceGetMemoryProperties,                                                   \
	  (struct _ze_device_handle_t * device, uint32_t * count,                        \
	   struct pier_ze_device_memory_properties * properties))                        \
	X(zeDeviceGetExternalMemoryProperties,                                           \
	  (struct _ze_device_handle_t * device,                                          \
	   struct pier_ze_external_memory_properties * properties))                      \
	X(zeDeviceGetCommandQueueGroupProperties,                                        \
	  (struct _ze_device_handle_t * device, uint32_t * count,                        \
	   struct pier_ze_queue_group_properties * properties))                          \
	X(zeContextCreate,                                                               \
	  (struct _ze_driver_handle_t * driver, const struct pier_ze_context_desc *desc, \
	   struct _ze_context_handle_t **context))                                       \
	X(zeContextDestroy, (struct _ze_context_handle_t * context))                     \
	X(zeMemAllocDevice,                                                              \
	  (struct _ze_context_handle_t * context,                                        \
	   const struct pier_ze_device_mem_alloc_desc *desc, size_t size,                \
	   size_t alignment, struct _ze_device_handle_t *device, void **pointer))        \
	X(zeMemAllocHost, (struct _ze_context_handle_t * context,                        \
			   const struct pier_ze_host_mem_alloc_desc *desc, size_t size,  \
			   size_t alignment, void **pointer))                            \
	X(zeMemAllocShared,                                                              \
	  (struct _ze_context_handle_t * context,                                        \
	   const struct pier_ze_device_mem_alloc_desc *device_desc,                      \
	   const struct pier_ze_host_mem_alloc_desc *host_desc, size_t size,             \
	   size_t alignment, struct _ze_device_handle_t *device, void **pointer))        \
	X(zeMemFree, (struct _ze_context_handle_t * context, void *pointer))             \
	X(zeMemGetAllocProperties,                                                       \
	  (struct _ze_context_handle_t * context, const void *pointer,                   \
	   struct pier_ze_memory_properties *properties,                                 \
	   struct _ze_device_handle_t **device))                                         \
	X(zeMemGetAddressRange, (struct _ze_context_handle_t * context,                  \
				 const void *pointer, void **base, size_t *size))        \
	X(zeCommandListCreateImmediate,                                                  \
	  (struct _ze_context_handle_t * context, struct _ze_device_handle_t * device,   \
	   const struct pier_ze_command_queue_desc *desc,                                \
	   struct _ze_command_list_handle_t **list))                                     \
	X(zeCommandListDestroy, (struct _ze_command_list_handle_t * list))               \
	X(zeCommandListAppendMemoryCopy,                                                 \
	  (struct _ze_command_list_handle_t * list, void *destination,                   \
	   const void *source, size_t size, struct _ze_event_handle_t *signal,           \
	   uint32_t waits, struct _ze_event_handle_t **wait))                            \
	X(zeCommandListAppendMemoryFill,                                                 \
	  (struct _ze_command_list_handle_t * list, void *pointer, const void *pattern,  \
	   size_t pattern_size, size_t size, struct _ze_event_handle_t *signal,          \
	   uint32_t waits, struct _ze_event_handle_t **wait))

/* Of the extension ZE_extension_pci_properties; NULL: the loader lacks it. */
#define PIER_ZE_OPTIONAL(X)                                                  \
	X(zeDevicePciGetPropertiesExt, (struct _ze_device_handle_t * device, \
					struct pier_ze_pci_properties * properties))

#define PIER_ZE_MEMBER(name, parameters) unsigned int(*name) parameters;

struct pier_ze_functions {
	PIER_ZE_FUNCTIONS(PIER_ZE_MEMBER)
	PIER_ZE_OPTIONAL(PIER_ZE_MEMBER)
};

#endif
