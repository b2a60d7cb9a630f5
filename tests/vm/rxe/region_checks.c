// SPDX-License-Identifier: BSD-3-Clause
/*
 * region_checks DEVICE CHECK: one check of what happens to regions on dma-bufs.
 * Says on stderr what is wrong. See check_lifetime.
 */
#define _GNU_SOURCE
#include "regions.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t page = 4096;
static const size_t pages = 16;

static unsigned char pattern(size_t i, unsigned int seed)
{
	return (unsigned char)((i * 2654435761u >> 13) + seed);
}

static void fill(unsigned char *bytes, size_t length, unsigned int seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = pattern(i, seed);
}

static void must_match(const char *what, const unsigned char *bytes, size_t from,
		       size_t to, unsigned int seed)
{
	for (size_t i = from; i < to; i++)
		if (bytes[i] != pattern(i, seed))
			fail("%s: byte %zu of [%zu, %zu) is wrong", what, i, from, to);
}

/* A parameter of the module, which counts in the kernel. */
static int counted(const char *name)
{
	char path[100];
	int value = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/module/rdma_rxe/parameters/%s", name);
	file = fopen(path, "re");
	must(file);
	must(fscanf(file, "%d", &value) == 1);
	fclose(file);
	return value;
}

struct refusal {
	const char *what;
	uint64_t offset, length, iova;
	enum {
		DMABUF,
		NONE,
		CLOSED,
		MEMFD
	} fd;
	uint32_t access;
	int error;
};

static const struct refusal refusals[] = {
	{ "the whole", 0, 0x10000, 0, DMABUF, ACCESS_ALL, 0 },
	{ "the last byte", 0xffff, 1, 0xfff, DMABUF, 0, 0 },
	{ "iova that ends at 2^64", 0, 0x1000, -0x1000ull, DMABUF, 0, 0 },
	{ "relaxed ordering", 0, 1, 0, DMABUF, IBV_ACCESS_RELAXED_ORDERING, 0 },
	{ "iova that wraps", 0, 0x2000, -0x1000ull, DMABUF, 0, EINVAL },
	{ "one byte past the end", 0, 0x10001, 0, DMABUF, 0, EINVAL },
	{ "offset at the end", 0x10000, 1, 0, DMABUF, 0, EINVAL },
	{ "offset past the end", 0x11000, 0, 0, DMABUF, 0, EINVAL },
	{ "length 0", 0, 0, 0, DMABUF, 0, EINVAL },
	{ "length 0 within a page", 0x10, 0, 0x10, DMABUF, 0, EINVAL },
	{ "offset + length overflows", 0x1000, -1ull, 0, DMABUF, 0, EINVAL },
	{ "offset + length overflows, before the fd is looked at", 0x1000, -1ull, 0, NONE,
	  0, EINVAL },
	{ "8 TiB", 0, 1ull << 43, 0, DMABUF, 0, EINVAL },
	{ "fd -1", 0, 0x1000, 0, NONE, 0, EBADF },
	{ "closed fd", 0, 0x1000, 0, CLOSED, 0, EBADF },
	{ "fd -1 with length 0", 0, 0, 0, NONE, 0, EBADF },
	{ "fd -1 with an iova that wraps", 0, 0x2000, -0x1000ull, NONE, 0, EBADF },
	{ "not a dma-buf", 0, 0x1000, 0, MEMFD, 0, EINVAL },
	{ "offset and iova in different places of a page", 0x10, 0x1000, 0, NONE, 0,
	  EINVAL },
	{ "on demand", 0, 0x1000, 0, DMABUF, IBV_ACCESS_ON_DEMAND, EINVAL },
	{ "memory windows", 0, 0x1000, 0, DMABUF, IBV_ACCESS_MW_BIND, EINVAL },
	{ "remote write without local write", 0, 0x1000, 0, DMABUF,
	  IBV_ACCESS_REMOTE_WRITE, EINVAL },
};

static void check_refusal(const struct refusal *refusal, const struct device *device,
			  const struct buffer *buffer)
{
	int closed = dup(buffer->fd);
	int fds[] = { buffer->fd, -1, closed, buffer->memfd };
	int before = counted("dmabuf_registered");
	struct region region;
	int err;

	close(closed);
	err = register_region(&region, device, refusal->offset, refusal->length,
			      refusal->iova, fds[refusal->fd], refusal->access);
	if (err != -refusal->error)
		fail("%s: %s, not %s", refusal->what, strerrorname_np(-err),
		     strerrorname_np(refusal->error));
	must(counted("dmabuf_live") == !err);
	must(counted("dmabuf_registered") - before == !err);
	must(err || deregister_region(&region, device) == 0);
}

static void check_errors(const struct device *device)
{
	struct buffer buffer;

	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		check_refusal(&refusals[i], device, &buffer);
	free_buffer(&buffer);
}

static void check_loop(const struct device *device)
{
	struct buffer buffer;
	struct region region;

	for (size_t i = 0; i < 300; i++) {
		if (i % 2)
			must(make_udmabuf(&buffer, pages * page, 0) == 0);
		else
			must(make_heap(&buffer, pages * page, O_RDWR | O_CLOEXEC) == 0);
		for (size_t j = 0; j < 4; j++) {
			must(register_region(&region, device, j * page,
					     (i % pages + 1) * 100, i * page, buffer.fd,
					     ACCESS_ALL) == 0);
			must(counted("dmabuf_live") == 1);
			must(deregister_region(&region, device) == 0);
			must(counted("dmabuf_live") == 0);
		}
		free_buffer(&buffer);
	}
}

static void check_query(const struct device *device)
{
	struct buffer buffer;
	struct region region, asked;

	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	must(register_region(&region, device, page + 8, 5000, 0x7f0000000008, buffer.fd,
			     ACCESS_ALL) == 0);
	asked = (struct region){ .handle = region.handle };
	must(query_region(&asked, device) == 0);
	must(asked.lkey == region.lkey && asked.rkey == region.rkey);
	must(asked.iova == region.iova && asked.length == region.length);
	must(deregister_region(&region, device) == 0);
	free_buffer(&buffer);
}

static struct ibv_mr *host_memory(const struct device *device, size_t length)
{
	void *memory = aligned_alloc(page, length);
	struct ibv_mr *mr;

	must(memory);
	memset(memory, 0, length);
	mr = ibv_reg_mr(device->pd, memory, length, ACCESS_ALL);
	must(mr);
	return mr;
}

static void free_host_memory(struct ibv_mr *mr)
{
	void *memory = mr->addr;

	must(ibv_dereg_mr(mr) == 0);
	free(memory);
}

/* Reads the region's bytes, then writes others, with a guard on both sides. */
static void exchange(const struct device *device, const struct region *region,
		     const struct buffer *buffer, size_t offset)
{
	struct ibv_mr *host = host_memory(device, buffer->length);
	unsigned char *bytes = host->addr;
	struct ibv_sge sge = { .addr = (uintptr_t)bytes + offset,
			       .length = (uint32_t)region->length,
			       .lkey = host->lkey };
	struct pair pair;

	connect_pair(&pair, device, device);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, region->iova, region->rkey) ==
	     IBV_WC_SUCCESS);
	must_match("read", bytes, offset, offset + region->length, 1);
	fill(bytes, buffer->length, 2);
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, region->iova, region->rkey) ==
	     IBV_WC_SUCCESS);
	must_match("before the written", buffer->map, 0, offset, 1);
	must_match("written", buffer->map, offset, offset + region->length, 2);
	must_match("after the written", buffer->map, offset + region->length,
		   buffer->length, 1);
	disconnect_pair(&pair);
	free_host_memory(host);
}

/* The keys reach what was registered and not a byte beside it. */
static void check_outside(const struct device *device, const struct region *region)
{
	struct ibv_mr *host = host_memory(device, page);
	struct ibv_sge sge = { .addr = (uintptr_t)host->addr,
			       .length = 1,
			       .lkey = host->lkey };
	const uint64_t outside[] = { region->iova - 1, region->iova + region->length };
	struct pair pair;

	for (size_t i = 0; i < 2; i++) {
		connect_pair(&pair, device, device);
		must(transfer(&pair, IBV_WR_RDMA_READ, &sge, outside[i], region->rkey) ==
		     IBV_WC_REM_ACCESS_ERR);
		disconnect_pair(&pair);
	}
	free_host_memory(host);
}

static const struct {
	size_t offset, length;
	uint64_t iova;
} parts[] = {
	{ 0, 16 * 4096, 0 },
	{ 0, 1, 0x5000 },
	{ 3 * 4096 + 100, 2 * 4096, 100 },
	{ 15 * 4096 + 4095, 1, -1ull },
	{ 4096 + 8, 9 * 4096, -0x20000ull + 8 },
};

static void check_parts(const struct device *device, struct buffer *buffer)
{
	struct region region;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		fill(buffer->map, buffer->length, 1);
		must(register_region(&region, device, parts[i].offset, parts[i].length,
				     parts[i].iova, buffer->fd, ACCESS_ALL) == 0);
		exchange(device, &region, buffer, parts[i].offset);
		check_outside(device, &region);
		must(deregister_region(&region, device) == 0);
	}
}

static void check_bytes(const struct device *device)
{
	struct buffer buffer;

	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	check_parts(device, &buffer);
	free_buffer(&buffer);
	must(make_heap(&buffer, pages * page, O_RDWR | O_CLOEXEC) == 0);
	check_parts(device, &buffer);
	free_buffer(&buffer);
}

/* The region alone keeps the memory, and what was written there before. */
static void check_closed(const struct device *device)
{
	struct ibv_mr *host = host_memory(device, pages * page);
	struct ibv_sge sge = { .addr = (uintptr_t)host->addr,
			       .length = (uint32_t)host->length,
			       .lkey = host->lkey };
	struct buffer buffer;
	struct region region;
	struct pair pair;

	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	fill(buffer.map, buffer.length, 1);
	must(register_region(&region, device, 0, buffer.length, 0, buffer.fd,
			     ACCESS_ALL) == 0);
	free_buffer(&buffer);
	connect_pair(&pair, device, device);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, region.rkey) == IBV_WC_SUCCESS);
	must_match("read", host->addr, 0, host->length, 1);
	fill(host->addr, host->length, 2);
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, region.rkey) == IBV_WC_SUCCESS);
	memset(host->addr, 0, host->length);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, region.rkey) == IBV_WC_SUCCESS);
	must_match("read again", host->addr, 0, host->length, 2);
	disconnect_pair(&pair);
	must(deregister_region(&region, device) == 0);
	free_host_memory(host);
}

/* From one dma-buf into another, and an atomic operation. */
static void check_local(const struct device *device)
{
	struct buffer from, to;
	struct region source, sink;
	struct ibv_sge sge;
	struct pair pair;
	uint64_t value;

	must(make_udmabuf(&from, pages * page, 0) == 0);
	must(make_heap(&to, pages * page, O_RDWR | O_CLOEXEC) == 0);
	fill(from.map, from.length, 1);
	must(register_region(&source, device, 0, from.length, 0, from.fd, ACCESS_ALL) ==
	     0);
	must(register_region(&sink, device, 0, to.length, page, to.fd, ACCESS_ALL) == 0);
	must(counted("dmabuf_live") == 2);
	connect_pair(&pair, device, device);
	sge = (struct ibv_sge){ .addr = 0,
				.length = (uint32_t)from.length,
				.lkey = source.lkey };
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, page, sink.rkey) == IBV_WC_SUCCESS);
	must_match("written", to.map, 0, to.length, 1);
	value = 41;
	memcpy(to.map + page, &value, sizeof(value));
	sge.length = sizeof(value);
	must(transfer(&pair, IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, 2 * page, sink.rkey) ==
	     IBV_WC_SUCCESS);
	memcpy(&value, from.map, sizeof(value));
	must(value == 41);
	memcpy(&value, to.map + page, sizeof(value));
	must(value == 42);
	disconnect_pair(&pair);
	must(deregister_region(&source, device) == 0);
	must(deregister_region(&sink, device) == 0);
	free_buffer(&from);
	free_buffer(&to);
}

/* Refused, whatever is to be changed, and the region is as before. */
static void check_rereg(const struct device *device)
{
	static const int flags[] = { IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
				     IBV_REREG_MR_CHANGE_TRANSLATION };
	struct buffer buffer;
	struct region region;
	struct ibv_pd *other = ibv_alloc_pd(device->context);
	void *memory = aligned_alloc(page, page);
	size_t i;

	must(other && memory);
	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	must(register_region(&region, device, 0, buffer.length, 0, buffer.fd,
			     ACCESS_ALL) == 0);
	for (i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		must(reregister_region(&region, device, flags[i], memory, page, other) ==
		     -EOPNOTSUPP);
	fill(buffer.map, buffer.length, 1);
	exchange(device, &region, &buffer, 0);
	must(deregister_region(&region, device) == 0);
	free_buffer(&buffer);
	free(memory);
	must(ibv_dealloc_pd(other) == 0);
}

/* Importers do not look at the mode of the fd, in rxe as in other drivers. */
static void check_read_only(const struct device *device)
{
	struct buffer buffer;
	struct region region;

	must(make_heap(&buffer, page, O_RDONLY | O_CLOEXEC) == 0);
	must(register_region(&region, device, 0, page, 0, buffer.fd, ACCESS_ALL) == 0);
	must(deregister_region(&region, device) == 0);
	free_buffer(&buffer);
}

/* Without local write, the region can be read and not written. */
static void check_access(const struct device *device)
{
	struct ibv_mr *host = host_memory(device, page);
	struct ibv_sge sge = { .addr = (uintptr_t)host->addr,
			       .length = (uint32_t)page,
			       .lkey = host->lkey };
	struct buffer buffer;
	struct region region;
	struct pair pair;

	must(make_udmabuf(&buffer, page, 0) == 0);
	fill(buffer.map, page, 1);
	must(register_region(&region, device, 0, page, 0, buffer.fd,
			     IBV_ACCESS_REMOTE_READ) == 0);
	connect_pair(&pair, device, device);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, region.rkey) == IBV_WC_SUCCESS);
	must_match("read", host->addr, 0, page, 1);
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, region.rkey) ==
	     IBV_WC_REM_ACCESS_ERR);
	disconnect_pair(&pair);
	must(deregister_region(&region, device) == 0);
	free_buffer(&buffer);
	free_host_memory(host);
}

/*
 * udmabuf of 6.12 maps the first page of a huge page in place of all its pages.
 * Refused rather than mistaken for the dma-buf's bytes; a kernel that does it
 * right must give them.
 */
static void check_huge(const struct device *device)
{
	const size_t huge = 2 << 20;
	struct buffer buffer;
	struct region region;
	int err;

	must(make_udmabuf(&buffer, huge, MFD_HUGETLB) == 0);
	fill(buffer.map, buffer.length, 1);
	err = register_region(&region, device, 0, huge, 0, buffer.fd, ACCESS_ALL);
	if (err == 0) {
		exchange(device, &region, &buffer, 0);
		must(deregister_region(&region, device) == 0);
	} else {
		must(err == -EOPNOTSUPP);
	}
	free_buffer(&buffer);
}

struct worker {
	const struct device *device;
	const struct buffer *buffer;
	size_t number;
	pthread_t thread;
};

static void *register_again_and_again(void *argument)
{
	const struct worker *worker = argument;
	struct region region;

	for (size_t i = 0; i < 200; i++) {
		must(register_region(&region, worker->device, worker->number * page,
				     2 * page, 0, worker->buffer->fd, ACCESS_ALL) == 0);
		must(deregister_region(&region, worker->device) == 0);
	}
	return NULL;
}

static void check_threads(const struct device *device)
{
	struct worker workers[8];
	struct buffer buffers[2];
	int before = counted("dmabuf_registered");
	size_t i;

	must(make_udmabuf(&buffers[0], pages * page, 0) == 0);
	must(make_heap(&buffers[1], pages * page, O_RDWR | O_CLOEXEC) == 0);
	for (i = 0; i < 8; i++) {
		workers[i] = (struct worker){ .device = device,
					      .buffer = &buffers[i % 2],
					      .number = i };
		must(pthread_create(&workers[i].thread, NULL, register_again_and_again,
				    &workers[i]) == 0);
	}
	for (i = 0; i < 8; i++)
		must(pthread_join(workers[i].thread, NULL) == 0);
	must(counted("dmabuf_registered") - before == 8 * 200);
	free_buffer(&buffers[0]);
	free_buffer(&buffers[1]);
}

/* From a dma-buf on one device into one on another, there and back. */
static void check_across(const struct device *device, const char *name)
{
	struct buffer from, to;
	struct region source, sink;
	struct ibv_sge sge;
	struct device other;
	struct pair pair;

	open_device(&other, name);
	must(make_udmabuf(&from, pages * page, 0) == 0);
	must(make_udmabuf(&to, pages * page, 0) == 0);
	fill(from.map, from.length, 1);
	must(register_region(&source, device, 0, from.length, 0, from.fd, ACCESS_ALL) ==
	     0);
	must(register_region(&sink, &other, 0, to.length, 0, to.fd, ACCESS_ALL) == 0);
	connect_pair(&pair, device, &other);
	sge = (struct ibv_sge){ .length = (uint32_t)from.length, .lkey = source.lkey };
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, sink.rkey) == IBV_WC_SUCCESS);
	must_match("written", to.map, 0, to.length, 1);
	fill(to.map, to.length, 2);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, sink.rkey) == IBV_WC_SUCCESS);
	must_match("read", from.map, 0, from.length, 2);
	disconnect_pair(&pair);
	must(deregister_region(&source, device) == 0);
	must(deregister_region(&sink, &other) == 0);
	free_buffer(&from);
	free_buffer(&to);
	close_device(&other);
}

/* Until it is killed: many regions and no fd, bytes on their way. */
static void check_hold(const struct device *device)
{
	struct buffer buffers[8];
	struct region regions[8];
	struct ibv_sge sge;
	struct pair pair;

	for (size_t i = 0; i < 8; i++) {
		must(make_udmabuf(&buffers[i], pages * page, 0) == 0);
		must(register_region(&regions[i], device, 0, pages * page, 0,
				     buffers[i].fd, ACCESS_ALL) == 0);
		close_fds(&buffers[i]);
	}
	connect_pair(&pair, device, device);
	puts("holding");
	fflush(stdout);
	sge = (struct ibv_sge){ .length = (uint32_t)(pages * page),
				.lkey = regions[0].lkey };
	for (size_t i = 0;; i++)
		must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, regions[i % 8].rkey) ==
		     IBV_WC_SUCCESS);
}

static const struct {
	const char *name;
	void (*check)(const struct device *device);
} checks[] = {
	{ "errors", check_errors },   { "loop", check_loop },
	{ "query", check_query },     { "bytes", check_bytes },
	{ "closed", check_closed },   { "local", check_local },
	{ "rereg", check_rereg },     { "read_only", check_read_only },
	{ "access", check_access },   { "huge", check_huge },
	{ "threads", check_threads }, { "hold", check_hold },
};

static void (*find_check(const char *name))(const struct device *)
{
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		if (strcmp(checks[i].name, name) == 0)
			return checks[i].check;
	fail("no check %s", name);
}

int main(int argc, char **argv)
{
	struct device device;

	if (argc < 3)
		fail("usage: region_checks DEVICE CHECK, or DEVICE across DEVICE");
	open_device(&device, argv[1]);
	if (argc == 4 && strcmp(argv[2], "across") == 0)
		check_across(&device, argv[3]);
	else
		find_check(argv[2])(&device);
	close_device(&device);
	return 0;
}
