// SPDX-License-Identifier: BSD-3-Clause
/* Regions on the dma-bufs of a faulty exporter. */
#include "region_checks.h"

#include "driver/exporter/faulty_exporter.h"

#include <errno.h>
#include <fcntl.h>
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
