/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"

PIER_API extern struct gpu_control gpu_control;

/* Any thread may call a backend. The lock guards what is stored of the last call. */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static int add_to(int *counter, int change)
{
	return __atomic_add_fetch(counter, change, __ATOMIC_RELAXED);
}
struct gpu_control gpu_control;

/* At the last copy to the device. */
static atomic_int flushes_before;

struct gpu_memory {
	char *base, *alias; /* the device's addresses, and their mappings in the driver */
	uint64_t segment;   /* bytes of one segment */
	int count;
	int fds[];
};

static uint64_t length_of(const struct gpu_memory *gpu)
{
	return gpu->segment * (uint64_t)gpu->count;
}

static int probe_gpu(char *ret_detail, size_t size)
{
	(void)size;
	ret_detail[0] = '\0';
	return 0;
}

static int make_pages(uint64_t length)
{
	int fd = memfd_create("gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)length) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
	return fd;
}

static void map_segment(struct gpu_memory *gpu, int index)
{
	int fd = make_pages(gpu->segment);
	char *at = gpu->alias + gpu->segment * (uint64_t)index;

	if (mmap(at, gpu->segment, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 0) == MAP_FAILED)
		abort();
	gpu->fds[index] = fd;
}

static char *reserve(uint64_t length)
{
	char *pages = mmap(NULL, length, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (pages == MAP_FAILED)
		abort();
	return pages;
}

static int alloc_gpu(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int count = unit ? atoi(unit) : 1;
	struct gpu_memory *gpu;

	if (count < 1)
		return pier_fail(EINVAL, "unit \"%s\": not how many segments", unit);
	gpu = calloc(1, sizeof(*gpu) + (size_t)count * sizeof(gpu->fds[0]));
	gpu->count = count;
	gpu->segment = (length + (uint64_t)count - 1) / (uint64_t)count;
	gpu->segment = (gpu->segment + page - 1) / page * page;
	gpu->base = reserve(length_of(gpu));
	gpu->alias = reserve(length_of(gpu));
	for (int i = 0; i < count; i++)
		map_segment(gpu, i);
	add_to(&gpu_control.live, 1);
	add_to(&gpu_control.allocs, 1);
	*ret_memory = (struct pier_memory){
		.address = (uint64_t)(uintptr_t)(gpu_control.host ? gpu->alias
								  : gpu->base),
		.length = length_of(gpu),
		.cpu = gpu_control.host ? gpu->alias : NULL,
		.state = gpu,
		.granularity = gpu_control.granularity,
	};
	return 0;
}

static void free_gpu(struct pier_memory *memory)
{
	struct gpu_memory *gpu = memory->state;

	for (int i = 0; i < gpu->count; i++)
		close(gpu->fds[i]);
	munmap(gpu->base, length_of(gpu));
	munmap(gpu->alias, length_of(gpu));
	free(gpu);
	add_to(&gpu_control.live, -1);
}

static void remember_request(const struct pier_backend_request *request)
{
	pthread_mutex_lock(&log_lock);
	gpu_control.request = *request;
	snprintf(gpu_control.importer, sizeof(gpu_control.importer), "%s",
		 request->importer ? request->importer : "");
	pthread_mutex_unlock(&log_lock);
}

static int export_pages(int pages, uint64_t length)
{
	struct udmabuf_create create = {
		.memfd = (uint32_t)pages,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.size = length,
	};
	int device, fd;

	if (!gpu_control.udmabuf)
		return fcntl(pages, F_DUPFD_CLOEXEC, 0);
	device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (device < 0)
		abort();
	fd = ioctl(device, UDMABUF_CREATE, &create);
	close(device);
	return fd;
}

static int export_foreign_pages(uint64_t length)
{
	int pages = make_pages(length), fd = export_pages(pages, length);

	close(pages);
	return fd;
}

static int export_range(const struct pier_memory *memory,
			const struct pier_backend_request *request,
			struct pier_backend_export *ret_export)
{
	const struct gpu_memory *gpu = memory->state;
	uint64_t offset = request->address - memory->address, length = request->length;
	enum pier_mapping mapping = request->mapping;
	uint64_t index = offset / gpu->segment;
	struct gpu_control *control = &gpu_control;
	int exports;

	remember_request(request);
	exports = add_to(&control->exports, 1);
	add_to(&control->exports_by[mapping], 1);
	if (control->export_error &&
	    (!control->fail_export_at || exports == control->fail_export_at))
		return pier_fail(control->export_error, "the driver refuses");
	if (mapping == PIER_MAPPING_PCIE && control->no_pcie)
		return pier_fail(EOPNOTSUPP, "the driver has no such mapping");
	if (control->seams && (offset + length - 1) / gpu->segment != index)
		return pier_fail(EXDEV, "several segments");
	if (control->granularity && offset % control->granularity)
		return pier_fail(EINVAL, "not a multiple of the granularity");
	if (control->partial && length > (index + 1) * gpu->segment - offset)
		ret_export->length = (index + 1) * gpu->segment - offset;
	if (control->takes && mapping != control->takes)
		ret_export->fd = eventfd(0, EFD_CLOEXEC);
	else if (control->foreign_pages & (1U << mapping))
		ret_export->fd = export_foreign_pages(gpu->segment);
	else
		ret_export->fd = export_pages(gpu->fds[index], gpu->segment);
	ret_export->offset = offset - index * gpu->segment;
	if (ret_export->fd < 0)
		return pier_fail(errno, "no more fds");
	add_to(&control->open_exports, 1);
	return 0;
}

static void close_export(struct pier_backend_export *dmabuf)
{
	close(dmabuf->fd);
	add_to(&gpu_control.open_exports, -1);
}

static int segment(const struct pier_memory *memory, uint64_t address,
		   uint64_t *ret_start, uint64_t *ret_length)
{
	const struct gpu_memory *gpu = memory->state;
	uint64_t offset = address - memory->address;

	*ret_start = address - offset % gpu->segment;
	*ret_length = gpu->segment;
	if (gpu_control.lies_about_segments)
		*ret_start += gpu->segment;
	return 0;
}

/* The nth copy in one direction; lost_at: from this one on the device is lost. */
static int begin_copy(int *copies, int lost_at)
{
	int count = add_to(&gpu_control.copies, 1);
	int nth = __atomic_add_fetch(copies, 1, __ATOMIC_RELAXED);

	if (gpu_control.before_copy)
		gpu_control.before_copy();
	if (lost_at && nth >= lost_at)
		return pier_fail(ENODEV, "copy %d: the device is lost", nth);
	if (!gpu_control.copy_error || count < gpu_control.fail_copy_at)
		return 0;
	return pier_fail(gpu_control.copy_error, "device lost");
}

static int copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		   uint64_t length)
{
	const struct gpu_memory *gpu = memory->state;
	int error = begin_copy(&gpu_control.copies_to, gpu_control.lost_at_to);

	if (!error)
		memcpy(gpu->alias + offset, source, length);
	flushes_before = add_to(&gpu_control.flushes, 0);
	return error;
}

static int copy_from(const struct pier_memory *memory, uint64_t offset, void *destination,
		     uint64_t length)
{
	const struct gpu_memory *gpu = memory->state;
	int error = begin_copy(&gpu_control.copies_from, gpu_control.lost_at_from);

	if (!error)
		memcpy(destination, gpu->alias + offset, length);
	if (gpu_control.holds_back && add_to(&gpu_control.flushes, 0) == flushes_before)
		memset(destination, 0, length);
	return error;
}

static int flush(const struct pier_memory *memory, const struct pier_backend_flush *range)
{
	(void)memory;
	pthread_mutex_lock(&log_lock);
	gpu_control.flushed = *range;
	snprintf(gpu_control.flusher, sizeof(gpu_control.flusher), "%s", range->device);
	pthread_mutex_unlock(&log_lock);
	add_to(&gpu_control.flushes, 1);
	add_to(&gpu_control.flushes_by[range->mapping], 1);
	if (gpu_control.flush_error)
		return pier_fail(gpu_control.flush_error, "no flush");
	return gpu_control.reads_back && !range->read_back ? PIER_BACKEND_READ_BACK : 0;
}

static void describe(const struct pier_memory *memory,
		     struct pier_memory_facts *ret_facts)
{
	(void)memory;
	add_to(&gpu_control.describes, 1);
	strcpy(ret_facts->kind, "test memory");
	ret_facts->host = gpu_control.host;
	ret_facts->moves = gpu_control.moves;
	ret_facts->any_order = gpu_control.any_order;
	if (gpu_control.says_no_export)
		strcpy(ret_facts->no_export, "it cannot be exported: do otherwise");
}

static int lock_host(const struct pier_memory *memory, void *addr, uint64_t length)
{
	uint64_t mask = (uint64_t)sysconf(_SC_PAGESIZE) - 1;

	(void)memory;
	if ((((uintptr_t)addr) | length) & mask)
		return pier_fail(EINVAL, "not whole pages");
	add_to(&gpu_control.locks, 1);
	return 0;
}

static void unlock_host(const struct pier_memory *memory, void *addr)
{
	(void)memory;
	(void)addr;
	add_to(&gpu_control.unlocks, 1);
}

static const struct pier_backend table = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "gpu",
	.description = "device memory of a test",
	.dmabuf = true,
	.mappings = true,
	.probe = probe_gpu,
	.alloc = alloc_gpu,
	.free = free_gpu,
	.export_range = export_range,
	.close_export = close_export,
	.copy_to = copy_to,
	.copy_from = copy_from,
	.flush = flush,
	.describe = describe,
	.segment = segment,
	.lock_host = lock_host,
	.unlock_host = unlock_host,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	(void)host;
	return &table;
}
