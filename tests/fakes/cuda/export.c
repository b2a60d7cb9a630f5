/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "fake.h"

/* The limit of udmabuf. */
#define MAX_PARTS   1024
#define DEVICE_PAGE (64ull << 10)

/* A part of a dma-buf. */
struct part {
	struct fake_backing *backing;
	uint64_t offset;
	uint64_t size;
};

struct request {
	uint64_t address;
	uint64_t size;
	bool pcie;
	int device;
	size_t count;
	struct part *parts;
};

bool fake_has_udmabuf(void)
{
	int fd = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

/* Returns the end of the last page that an allocation of the backing uses. */
static uint64_t used_size(const struct fake_backing *backing)
{
	uint64_t end = 0;

	for (struct fake_piece *piece = fake_driver.pieces; piece; piece = piece->next)
		if (piece->backing == backing && piece->offset + piece->size > end)
			end = piece->offset + piece->size;
	return fake_round_up(end, fake_page());
}

/*
 * Exports begin at a page, allocations possibly inside it: returns the first one in the
 * page.
 */
static const struct fake_piece *find_first(uint64_t address)
{
	const struct fake_piece *first = NULL;

	for (struct fake_piece *piece = fake_driver.pieces; piece; piece = piece->next)
		if (piece->kind != FAKE_CUDA_RESERVATION &&
		    piece->address < address + fake_page() &&
		    piece->address + piece->size > address &&
		    (!first || piece->address < first->address))
			first = piece;
	return first;
}

static CUresult check_kind(const struct fake_piece *piece)
{
	const struct fake_cuda_device *device = fake_device(piece->device);

	switch (piece->kind) {
	case FAKE_CUDA_HOST:
		return device->host_dmabuf ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
	case FAKE_CUDA_DEVICE_MEMORY:
		return device->dmabuf ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
	case FAKE_CUDA_MAPPING:
		if (!device->dmabuf)
			return CUDA_ERROR_NOT_SUPPORTED;
		return piece->handle->rdma ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case FAKE_CUDA_MANAGED:
		return CUDA_ERROR_INVALID_VALUE;
	case FAKE_CUDA_POOL_MEMORY:
		if (fake_driver.control.managed_pools)
			abort();
		return device->every_kind ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* Finds the pages of an allocation that is part of one memfd. */
static CUresult find_part(struct request *request, const struct fake_piece *piece)
{
	uint64_t start = piece->backing->address;

	if (request->address < start ||
	    request->size > used_size(piece->backing) - (request->address - start))
		return CUDA_ERROR_INVALID_VALUE;
	request->count = 1;
	request->parts[0] = (struct part){ piece->backing, request->address - start,
					   request->size };
	return CUDA_SUCCESS;
}

/* The range must be mapped, on one device, with the same properties. */
static CUresult find_mappings(struct request *request, const struct fake_piece *first)
{
	uint64_t address = request->address, size = request->size;

	while (size > 0) {
		const struct fake_piece *piece = fake_find(address);
		uint64_t offset, run;

		if (!piece || piece->kind != FAKE_CUDA_MAPPING ||
		    request->count == MAX_PARTS ||
		    memcmp(&piece->handle->properties, &first->handle->properties,
			   sizeof(piece->handle->properties)) != 0)
			return CUDA_ERROR_INVALID_VALUE;
		offset = address - piece->address;
		run = piece->size - offset < size ? piece->size - offset : size;
		request->parts[request->count++] = (struct part){ piece->backing, offset,
								  run };
		address += run;
		size -= run;
	}
	if (request->count > 1 &&
	    fake_device(first->device)->seams == FAKE_CUDA_SEAMS_REFUSED)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check_range(const struct request *request, const struct fake_piece *piece)
{
	uint64_t page = fake_page(), base = piece->address / page * page;
	uint64_t end = fake_round_up(piece->address + piece->size, page);

	switch (fake_device(piece->device)->ranges) {
	case FAKE_CUDA_RANGES_ANY:
		return CUDA_SUCCESS;
	case FAKE_CUDA_RANGES_BASE:
		return request->address == base ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case FAKE_CUDA_RANGES_GRANULES:
		return request->address % DEVICE_PAGE || request->size % DEVICE_PAGE
			       ? CUDA_ERROR_INVALID_VALUE
			       : CUDA_SUCCESS;
	default:
		return request->address == base && request->size == end - base
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult find_parts(struct request *request)
{
	const struct fake_piece *piece = find_first(request->address);
	CUresult result;

	if (!piece || piece->device != request->device)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_kind(piece);
	if (result == CUDA_SUCCESS)
		result = check_range(request, piece);
	if (result != CUDA_SUCCESS)
		return result;
	return piece->kind == FAKE_CUDA_MAPPING ? find_mappings(request, piece)
						: find_part(request, piece);
}

/* Returns how many more bytes of the BAR the part needs. With `take`, they are used. */
static uint64_t count_bar(const struct part *part, bool take)
{
	struct fake_backing *backing = part->backing;
	uint64_t from = part->offset, to = part->offset + part->size, more;

	if (backing->exported_from < backing->exported_to) {
		from = from < backing->exported_from ? from : backing->exported_from;
		to = to > backing->exported_to ? to : backing->exported_to;
	}
	more = (to - from) - (backing->exported_to - backing->exported_from);
	if (take) {
		backing->exported_from = from;
		backing->exported_to = to;
	}
	return more;
}

static CUresult take_bar(const struct request *request)
{
	struct fake_cuda_device *device = fake_device(request->device);
	uint64_t more = 0;

	for (size_t i = 0; i < request->count; i++)
		more += count_bar(&request->parts[i], false);
	if (device->bar && device->bar_used + more > device->bar)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < request->count; i++)
		count_bar(&request->parts[i], true);
	device->bar_used += more;
	return CUDA_SUCCESS;
}

static int join_parts(const struct request *request)
{
	struct udmabuf_create_list *list;
	int device, fd;

	device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	list = calloc(1, sizeof(*list) + request->count * sizeof(list->list[0]));
	if (!list || device < 0) {
		free(list);
		if (device >= 0)
			close(device);
		return -1;
	}
	list->flags = UDMABUF_FLAGS_CLOEXEC;
	list->count = (uint32_t)request->count;
	for (size_t i = 0; i < request->count; i++)
		list->list[i] = (struct udmabuf_create_item){
			.memfd = (uint32_t)request->parts[i].backing->fd,
			.offset = request->parts[i].offset,
			.size = request->parts[i].size,
		};
	fd = ioctl(device, UDMABUF_CREATE_LIST, list);
	free(list);
	close(device);
	return fd;
}

static int copy_parts(const struct request *request)
{
	int fd = fake_make_memfd(request->size);
	off_t at = 0;

	for (size_t i = 0; fd >= 0 && i < request->count; i++) {
		const struct part *part = &request->parts[i];

		if (pwrite(fd, part->backing->bytes + part->offset, part->size, at) !=
		    (ssize_t)part->size) {
			close(fd);
			return -1;
		}
		at += (off_t)part->size;
	}
	return fd;
}

static CUresult make_dmabuf(const struct request *request, int *ret_fd)
{
	enum fake_cuda_pcie pcie = fake_device(request->device)->pcie;
	int fd;

	if (pcie == (request->pcie ? FAKE_CUDA_PCIE_WRONG : FAKE_CUDA_PCIE_REQUIRED))
		fd = fake_make_memfd(request->size);
	else if (fake_driver.control.udmabuf)
		fd = join_parts(request);
	else if (request->count == 1 && request->parts[0].offset == 0)
		fd = fcntl(request->parts[0].backing->fd, F_DUPFD_CLOEXEC, 0);
	else if (fake_driver.control.windows == FAKE_CUDA_WINDOWS_COPIED)
		fd = copy_parts(request);
	else
		return CUDA_ERROR_INVALID_VALUE;
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*ret_fd = fd;
	return CUDA_SUCCESS;
}

static CUresult check_flags(unsigned long long flags, int device)
{
	if (flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags && fake_driver.control.version < 12080)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags && fake_device(device)->pcie == FAKE_CUDA_PCIE_REFUSED)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

/* The last exports, for attach(): what the kernel module keeps in the dma-buf. */
static struct export
{
	int fd;
	uint64_t address;
	uint64_t size;
	bool pcie;
	int device;
}
exports[64];
static size_t export_count;

static void remember_export(const struct request *request, int fd)
{
	exports[export_count++ % (sizeof(exports) / sizeof(exports[0]))] =
		(struct export){
			.fd = fd,
			.address = request->address,
			.size = request->size,
			.pcie = request->pcie,
			.device = request->device,
		};
}

/* The newest export with that fd: fds of older ones were closed. */
static const struct export *find_export(int fd)
{
	size_t room = sizeof(exports) / sizeof(exports[0]);

	for (size_t i = export_count; i > 0 && export_count - i < room; i--)
		if (exports[(i - 1) % room].fd == fd)
			return &exports[(i - 1) % room];
	return NULL;
}

static int map_into_bar(const struct export *export)
{
	struct request request = { export->address, export->size, export->pcie,
				   export->device };
	CUresult result;

	request.parts = calloc(MAX_PARTS, sizeof(*request.parts));
	if (!request.parts)
		return ENOMEM;
	result = find_parts(&request);
	if (result == CUDA_SUCCESS)
		result = take_bar(&request);
	free(request.parts);
	return result == CUDA_SUCCESS ? 0 : ENOMEM;
}

int fake_attach(int fd)
{
	struct fake_scope scope
		__attribute__((cleanup(fake_leave), unused)) = fake_enter_unseen();
	const struct export *export = find_export(fd);
	const struct fake_cuda_device *device;

	if (!export)
		return EINVAL;
	device = fake_device(export->device);
	if (export->pcie && !device->coherent)
		return 524;
	if (!export->pcie && device->attach_error)
		return device->attach_error;
	/* Over C2C the NIC reaches the memory without the BAR. */
	if (device->static_bar || (device->coherent && !export->pcie))
		return 0;
	return map_into_bar(export);
}

static CUresult export(struct request *request, int *ret_fd)
{
	CUresult result = find_parts(request);

	if (result == CUDA_SUCCESS && fake_device(request->device)->static_bar)
		result = take_bar(request);
	if (result == CUDA_SUCCESS)
		result = make_dmabuf(request, ret_fd);
	if (result != CUDA_SUCCESS)
		return result;
	fake_driver.control.exports++;
	fake_driver.control.pcie_exports += request->pcie;
	remember_export(request, *ret_fd);
	return CUDA_SUCCESS;
}

CUresult fake_cuMemGetHandleForAddressRange(void *ret_handle, CUdeviceptr address,
					    size_t size, CUmemRangeHandleType type,
					    unsigned long long flags)
{
	struct request request = { address, size, flags != 0 };
	CUresult result;

	FAKE_ENTER("cuMemGetHandleForAddressRange", FAKE_NEEDS_DEVICE);
	if (!ret_handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || size == 0 ||
	    address % fake_page() || size % fake_page() || size > UINT64_MAX - address)
		return CUDA_ERROR_INVALID_VALUE;
	result = check_flags(flags, scope.device);
	if (result != CUDA_SUCCESS)
		return result;
	request.device = scope.device;
	request.parts = calloc(MAX_PARTS, sizeof(*request.parts));
	if (!request.parts)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = export(&request, ret_handle);
	free(request.parts);
	return result;
}

/* There is nothing to flush: a NIC's writes are in memory when their completion is. */
CUresult fake_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
					 CUflushGPUDirectRDMAWritesScope wanted)
{
	FAKE_ENTER("cuFlushGPUDirectRDMAWrites", FAKE_NEEDS_DEVICE);
	if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
	    (wanted != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
	     wanted != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
		return CUDA_ERROR_INVALID_VALUE;
	if (!(fake_device(scope.device)->flush_options &
	      CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
		return CUDA_ERROR_NOT_SUPPORTED;
	fake_driver.control.flushes++;
	return CUDA_SUCCESS;
}
