// SPDX-License-Identifier: BSD-3-Clause
/* Regions on the dma-bufs of a faulty exporter. */
#include "region_checks.h"

#include "driver/exporter/faulty_exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int make_faulty(enum faulty_kind kind)
{
	struct faulty_export request = { .kind = kind, .pages = pages };
	int device = open("/dev/faulty_exporter", O_RDWR | O_CLOEXEC);
	int fd;

	must(device >= 0);
	fd = ioctl(device, FAULTY_EXPORT, &request);
	must(fd >= 0);
	close(device);
	return fd;
}

/* Byte n is n / page + 1, as written by the exporter. */
static void must_arrive(const struct device *device, const struct region *region)
{
	struct ibv_mr *host = host_memory(device, pages * page);
	struct ibv_sge sge = { .addr = (uintptr_t)host->addr,
			       .length = pages * page,
			       .lkey = host->lkey };
	const unsigned char *bytes = host->addr;
	struct pair pair;

	connect_pair(&pair, device, device);
	must(transfer(&pair, IBV_WR_RDMA_READ, &sge, region->iova, region->mr.rkey) ==
	     IBV_WC_SUCCESS);
	for (size_t i = 0; i < pages * page; i++)
		if (bytes[i] != i / page + 1)
			fail("byte %zu is %u", i, bytes[i]);
	disconnect_pair(&pair);
	free_host_memory(host);
}

static const struct {
	enum faulty_kind kind;
	int error;
} faults[] = {
	{ FAULTY_NONE, 0 },
	{ FAULTY_LINEAR, 0 },
	{ FAULTY_LATE, 0 },
	{ FAULTY_NO_VMAP, EOPNOTSUPP },
	{ FAULTY_IOMEM, EOPNOTSUPP },
	{ FAULTY_NO_PAGES, EOPNOTSUPP },
	{ FAULTY_UNALIGNED, EOPNOTSUPP },
	{ FAULTY_REPEATED, EOPNOTSUPP },
	{ FAULTY_BEGIN, EIO },
};

void check_faults(const struct device *device)
{
	struct region region;
	int err, fd;

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		fd = make_faulty(faults[i].kind);
		err = register_region(&region, device, 0, pages * page, 0, fd,
				      ACCESS_ALL);
		if (err != -faults[i].error)
			fail("fault %d: %s, not %s", faults[i].kind,
			     strerrorname_np(-err), strerrorname_np(faults[i].error));
		close(fd);
		if (err)
			continue;
		must_arrive(device, &region);
		must(deregister_region(&region, device) == 0);
	}
}

/* Two regions at a time with different access: each begin has its own end. */
void check_late(const struct device *device)
{
	int fd = make_faulty(FAULTY_LATE);
	struct region writable, readable;

	must(register_region(&writable, device, 0, pages * page, 0, fd, ACCESS_ALL) == 0);
	must_arrive(device, &writable);
	must(register_region(&readable, device, 0, pages * page, 0, fd,
			     IBV_ACCESS_REMOTE_READ) == 0);
	close(fd);
	must(deregister_region(&writable, device) == 0);
	must_arrive(device, &readable);
	must(deregister_region(&readable, device) == 0);
}

static void ignore(int signal)
{
	(void)signal;
}

/* A signal ends the wait for the exporter. */
void check_interrupted(const struct device *device)
{
	const struct itimerval soon = { .it_value = { .tv_usec = 50000 } };
	struct sigaction action = { .sa_handler = ignore };
	int fd = make_faulty(FAULTY_LATE);
	struct region region;

	must(sigaction(SIGALRM, &action, NULL) == 0);
	must(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	must(register_region(&region, device, 0, page, 0, fd, ACCESS_ALL) == -EINTR);
	must(register_region(&region, device, 0, pages * page, 0, fd, ACCESS_ALL) == 0);
	must_arrive(device, &region);
	must(deregister_region(&region, device) == 0);
	close(fd);
}

static void take_away(int fd)
{
	int device = open("/dev/faulty_exporter", O_RDWR | O_CLOEXEC);

	must(device >= 0);
	must(ioctl(device, FAULTY_REVOKE, &fd) == 0);
	close(device);
}

/* Both ends are of this device, and each of them notices. */
static void must_be_refused(const struct device *device, const struct region *region)
{
	struct ibv_mr *host = host_memory(device, pages * page);
	struct ibv_sge here = { .addr = (uintptr_t)host->addr,
				.length = pages * page,
				.lkey = host->lkey };
	struct ibv_sge there = { .addr = region->iova,
				 .length = pages * page,
				 .lkey = region->mr.lkey };
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE };
	struct pair pair;

	for (size_t i = 0; i < 2; i++) {
		connect_pair(&pair, device, device);
		must(transfer(&pair, opcodes[i], &here, region->iova, region->mr.rkey) ==
		     IBV_WC_REM_ACCESS_ERR);
		disconnect_pair(&pair);
		connect_pair(&pair, device, device);
		must(transfer(&pair, opcodes[i], &there, (uintptr_t)host->addr,
			      host->rkey) != IBV_WC_SUCCESS);
		disconnect_pair(&pair);
	}
	free_host_memory(host);
}

static void *take_away_soon(void *argument)
{
	usleep(20000);
	take_away(*(int *)argument);
	return NULL;
}

/* Writes until the device refuses: the exporter looks whether one came too late. */
static void write_until_refused(const struct device *device, const struct region *region)
{
	struct ibv_mr *host = host_memory(device, pages * page);
	struct ibv_sge sge = { .addr = (uintptr_t)host->addr,
			       .length = pages * page,
			       .lkey = host->lkey };
	enum ibv_wc_status status;
	struct pair pair;

	connect_pair(&pair, device, device);
	while ((status = transfer(&pair, IBV_WR_RDMA_WRITE, &sge, region->iova,
				  region->mr.rkey)) == IBV_WC_SUCCESS)
		;
	must(status == IBV_WC_REM_ACCESS_ERR);
	disconnect_pair(&pair);
	free_host_memory(host);
}

/*
 * An exporter takes the memory away while regions are on it: their keys end, no byte is
 * read or written any more, and deregistering is all that is left to do.
 */
void check_revoked(const struct device *device)
{
	struct region regions[2], refused;
	pthread_t thread;
	int fd = make_faulty(FAULTY_REVOCABLE), plain = make_faulty(FAULTY_NONE);

	for (size_t i = 0; i < 2; i++)
		must(register_region(&regions[i], device, 0, pages * page, 0, fd,
				     ACCESS_ALL) == 0);
	must_arrive(device, &regions[0]);
	take_away(fd);
	must_be_refused(device, &regions[0]);
	must_be_refused(device, &regions[1]);
	must(register_region(&refused, device, 0, page, 0, fd, ACCESS_ALL) == -ENODEV);
	take_away(fd);
	for (size_t i = 0; i < 2; i++)
		must(deregister_region(&regions[i], device) == 0);
	close(fd);

	for (size_t i = 0; i < 5; i++) {
		fd = make_faulty(FAULTY_REVOCABLE);
		must(register_region(&regions[0], device, 0, pages * page, 0, fd,
				     ACCESS_ALL) == 0);
		must(pthread_create(&thread, NULL, take_away_soon, &fd) == 0);
		write_until_refused(device, &regions[0]);
		must(pthread_join(thread, NULL) == 0);
		must(deregister_region(&regions[0], device) == 0);
		close(fd);
	}

	must(register_region(&regions[0], device, 0, pages * page, 0, plain,
			     ACCESS_ALL) == 0);
	must_arrive(device, &regions[0]);
	must(deregister_region(&regions[0], device) == 0);
	close(plain);
}

/*
 * Runs until it is killed: only a region is left, which needs the exporter's code to be
 * destroyed.
 */
void check_hold_exporter(const struct device *device)
{
	int fd = make_faulty(FAULTY_NONE);
	struct region region;

	must(register_region(&region, device, 0, page, 0, fd, ACCESS_ALL) == 0);
	close(fd);
	puts("holding");
	fflush(stdout);
	pause();
}
