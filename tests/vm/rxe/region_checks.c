// SPDX-License-Identifier: BSD-3-Clause
/*
 * region_checks DEVICE CHECK: runs one check of regions on dma-bufs. Reports errors on
 * stderr. See check_lifetime.
 */
#include "region_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int counted(const char *name)
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
	int access;
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

	for (size_t i = 0; i < 100; i++) {
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

/*
 * As many successful registrations as late refusals, so that leaked objects show in the
 * kernel's counts.
 */
static void check_many(const struct device *device)
{
	struct buffer buffer;
	struct region region;

	must(make_heap(&buffer, page, O_RDWR | O_CLOEXEC) == 0);
	for (size_t i = 0; i < 2000; i++) {
		must(register_region(&region, device, 0, page, 0, buffer.fd,
				     ACCESS_ALL) == 0);
		must(deregister_region(&region, device) == 0);
		must(register_region(&region, device, 0, page, -1ull << 12, buffer.fd,
				     0) == 0);
		must(deregister_region(&region, device) == 0);
		must(register_region(&region, device, 0, page + 1, 0, buffer.fd, 0) ==
		     -EINVAL);
	}
	free_buffer(&buffer);
}

/* The call is refused, and the region is unchanged. */
static void check_rereg(const struct device *device)
{
	struct ibv_pd *other = ibv_alloc_pd(device->context);
	struct buffer buffer;
	struct region region;

	must(other);
	must(make_udmabuf(&buffer, pages * page, 0) == 0);
	must(register_region(&region, device, 0, buffer.length, 0, buffer.fd,
			     ACCESS_ALL) == 0);
	must(reregister_region(&region, device, IBV_REREG_MR_CHANGE_ACCESS, other) ==
	     -EOPNOTSUPP);
	must(reregister_region(&region, device, IBV_REREG_MR_CHANGE_PD, other) ==
	     -EOPNOTSUPP);
	fill(buffer.map, buffer.length, 1);
	exchange(device, &region, &buffer, 0);
	must(deregister_region(&region, device) == 0);
	free_buffer(&buffer);
	must(ibv_dealloc_pd(other) == 0);
}

/* Importers ignore the mode of the fd, in rxe as in other drivers. */
static void check_read_only(const struct device *device)
{
	struct buffer buffer;
	struct region region;

	must(make_heap(&buffer, page, O_RDONLY | O_CLOEXEC) == 0);
	must(register_region(&region, device, 0, page, 0, buffer.fd, ACCESS_ALL) == 0);
	must(deregister_region(&region, device) == 0);
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

/* Runs until it is killed: many regions, no fd, and requests in flight. */
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
				.lkey = regions[0].mr.lkey };
	for (size_t i = 0;; i++)
		must(transfer(&pair, IBV_WR_RDMA_WRITE, &sge, 0,
			      regions[i % 8].mr.rkey) == IBV_WC_SUCCESS);
}

static const struct {
	const char *name;
	void (*check)(const struct device *device);
} checks[] = {
	{ "errors", check_errors },
	{ "loop", check_loop },

	{ "bytes", check_bytes },
	{ "closed", check_closed },
	{ "local", check_local },
	{ "rereg", check_rereg },
	{ "read_only", check_read_only },
	{ "access", check_access },
	{ "huge", check_huge },
	{ "threads", check_threads },
	{ "hold", check_hold },
	{ "many", check_many },
	{ "faults", check_faults },
	{ "late", check_late },
	{ "interrupted", check_interrupted },
	{ "hold_exporter", check_hold_exporter },
	{ "revoked", check_revoked },
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
