// SPDX-License-Identifier: BSD-3-Clause
/* Requests on a region access the bytes of the dma-buf, and no others. */
#include "region_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned char pattern(size_t i, unsigned int seed)
{
	return (unsigned char)((i * 2654435761u >> 13) + seed);
}

void fill(unsigned char *bytes, size_t length, unsigned int seed)
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

struct ibv_mr *host_memory(const struct device *device, size_t length)
{
	void *memory = aligned_alloc(page, length);
	struct ibv_mr *mr;

	must(memory);
	memset(memory, 0, length);
	mr = ibv_reg_mr(device->pd, memory, length, ACCESS_ALL);
	must(mr);
	return mr;
}

void free_host_memory(struct ibv_mr *mr)
{
	void *memory = mr->addr;

	must(ibv_dereg_mr(mr) == 0);
	free(memory);
}

void exchange(const struct device *device, const struct region *region,
	      const struct buffer *buffer, size_t offset)
{
	struct ibv_mr *host = host_memory(device, buffer->length);
	unsigned char *bytes = host->addr;
	struct ibv_sge sge = { .addr = (uintptr_t)bytes + offset,
			       .length = (uint32_t)region->length,
			       .lkey = host->lkey };
	struct pair pair;

	connect_pair(&pair, device, device);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, region->iova, region->mr.rkey) ==
	     IBV_WC_SUCCESS);
	must_match("read", bytes, offset, offset + region->length, 1);
	fill(bytes, buffer->length, 2);
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, region->iova, region->mr.rkey) ==
	     IBV_WC_SUCCESS);
	must_match("before the written", buffer->map, 0, offset, 1);
	must_match("written", buffer->map, offset, offset + region->length, 2);
	must_match("after the written", buffer->map, offset + region->length,
		   buffer->length, 1);
	disconnect_pair(&pair);
	free_host_memory(host);
}

/* The keys give access to the registered range, and to no byte around it. */
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
		must(transfer(&pair, IBV_WR_RDMA_READ, &sge, outside[i],
			      region->mr.rkey) == IBV_WC_REM_ACCESS_ERR);
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

void check_bytes(const struct device *device)
{
	struct buffer buffer;

	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	check_parts(device, &buffer);
	free_buffer(&buffer);
	must(make_heap(&buffer, pages * page, O_RDWR | O_CLOEXEC) == 0);
	check_parts(device, &buffer);
	free_buffer(&buffer);
}

/* The region alone keeps the memory and its contents. */
void check_closed(const struct device *device)
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
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, region.mr.rkey) ==
	     IBV_WC_SUCCESS);
	must_match("read", host->addr, 0, host->length, 1);
	fill(host->addr, host->length, 2);
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, region.mr.rkey) ==
	     IBV_WC_SUCCESS);
	memset(host->addr, 0, host->length);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, region.mr.rkey) ==
	     IBV_WC_SUCCESS);
	must_match("read again", host->addr, 0, host->length, 2);
	disconnect_pair(&pair);
	must(deregister_region(&region, device) == 0);
	free_host_memory(host);
}

/* From one dma-buf into another, and an atomic operation. */
void check_local(const struct device *device)
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
				.lkey = source.mr.lkey };
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, page, sink.mr.rkey) ==
	     IBV_WC_SUCCESS);
	must_match("written", to.map, 0, to.length, 1);
	value = 41;
	memcpy(to.map + page, &value, sizeof(value));
	sge.length = sizeof(value);
	must(transfer(&pair, IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, 2 * page, sink.mr.rkey) ==
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

/* Without local write, the region can be read but not written. */
void check_access(const struct device *device)
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
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, region.mr.rkey) ==
	     IBV_WC_SUCCESS);
	must_match("read", host->addr, 0, page, 1);
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, region.mr.rkey) ==
	     IBV_WC_REM_ACCESS_ERR);
	disconnect_pair(&pair);
	must(deregister_region(&region, device) == 0);
	free_buffer(&buffer);
	free_host_memory(host);
}

/*
 * udmabuf of 6.12 maps the first page of a huge page in place of all its pages. Such a
 * dma-buf must be refused, or, on a kernel that maps it correctly, have the right bytes.
 */
void check_huge(const struct device *device)
{
	const size_t huge = 2 << 20;
	const size_t offsets[] = { 0, 5 * page }, lengths[] = { huge, page };
	struct buffer buffer;
	struct region region;
	int err;

	must(make_udmabuf(&buffer, huge, MFD_HUGETLB) == 0);
	for (size_t i = 0; i < 2; i++) {
		fill(buffer.map, buffer.length, 1);
		err = register_region(&region, device, offsets[i], lengths[i], 0,
				      buffer.fd, ACCESS_ALL);
		must(err == 0 || err == -EOPNOTSUPP);
		if (err)
			continue;
		exchange(device, &region, &buffer, offsets[i]);
		must(deregister_region(&region, device) == 0);
	}
	free_buffer(&buffer);
}

/* From a dma-buf on one device into one on another device, and back. */
void check_across(const struct device *device, const char *name)
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
	sge = (struct ibv_sge){ .length = (uint32_t)from.length, .lkey = source.mr.lkey };
	must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0, sink.mr.rkey) == IBV_WC_SUCCESS);
	must_match("written", to.map, 0, to.length, 1);
	fill(to.map, to.length, 2);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, 0, sink.mr.rkey) == IBV_WC_SUCCESS);
	must_match("read", from.map, 0, from.length, 2);
	disconnect_pair(&pair);
	must(deregister_region(&source, device) == 0);
	must(deregister_region(&sink, &other) == 0);
	free_buffer(&from);
	free_buffer(&to);
	close_device(&other);
}
