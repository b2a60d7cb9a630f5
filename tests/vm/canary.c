/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/census.h"
#include "../support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <pier/backend.h>
#include <pier/pier.h>

/*
 * The canary against a real kernel: a "device" whose memory the CPU does not reach is
 * made of udmabufs, and its exporter hands out those of other pages if it is told to. The
 * NIC registers both without a complaint.
 *
 * usage: vm_canary [DEVICE]
 */

enum {
	LENGTH = 1 << 16,
};

static struct {
	const char *name;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct test_census before;
	bool foreign; /* exports are of other pages */
	int copies;
} fixture;

struct board {
	char *pages; /* only the "device" knows them */
	char *address;
	int own, other; /* memfds */
};

static int probe(char *ret_detail, size_t size)
{
	(void)size;
	ret_detail[0] = '\0';
	return 0;
}

static int make_memfd(uint64_t length)
{
	int fd = memfd_create("board", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)length), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	return fd;
}

static int alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct board *board = calloc(1, sizeof(*board));

	(void)unit;
	length = (length + page - 1) / page * page;
	board->own = make_memfd(length);
	board->other = make_memfd(length);
	board->pages = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, board->own,
			    0);
	board->address = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);
	assert_true(board->pages != MAP_FAILED && board->address != MAP_FAILED);
	ret_memory->address = (uint64_t)(uintptr_t)board->address;
	ret_memory->length = length;
	ret_memory->state = board;
	return 0;
}

static void release(struct pier_memory *memory)
{
	struct board *board = memory->state;

	munmap(board->pages, memory->length);
	munmap(board->address, memory->length);
	close(board->own);
	close(board->other);
	free(board);
}

static int export_range(const struct pier_memory *memory,
			const struct pier_backend_request *request,
			struct pier_backend_export *ret_export)
{
	const struct board *board = memory->state;
	struct udmabuf_create create = {
		.memfd = (uint32_t)(fixture.foreign ? board->other : board->own),
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.size = memory->length,
	};
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);

	assert_true(device >= 0);
	ret_export->fd = ioctl(device, UDMABUF_CREATE, &create);
	ret_export->offset = request->address - memory->address;
	close(device);
	return ret_export->fd < 0 ? -errno : 0;
}

static void close_export(struct pier_backend_export *dmabuf)
{
	close(dmabuf->fd);
}

static int copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		   uint64_t length)
{
	const struct board *board = memory->state;

	fixture.copies++;
	memcpy(board->pages + offset, source, length);
	return 0;
}

static int copy_from(const struct pier_memory *memory, uint64_t offset, void *destination,
		     uint64_t length)
{
	const struct board *board = memory->state;

	fixture.copies++;
	memcpy(destination, board->pages + offset, length);
	return 0;
}

static const struct pier_backend board = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(board),
	.name = "board",
	.description = "memory that the CPU does not reach",
	.dmabuf = true,
	.probe = probe,
	.alloc = alloc,
	.free = release,
	.export_range = export_range,
	.close_export = close_export,
	.copy_to = copy_to,
	.copy_from = copy_from,
};

static int setup(void **state)
{
	(void)state;
	fixture.before = test_take_census();
	fixture.foreign = false;
	fixture.copies = 0;
	expect_ok(pier_open_device(fixture.name, &fixture.device));
	expect_ok(pier_alloc_pd(fixture.device, &fixture.pd));
	expect_ok(pier_buffer_alloc("board", LENGTH, &fixture.buffer));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	expect_ok(pier_dealloc_pd(fixture.pd));
	expect_ok(pier_close_device(fixture.device));
	unsetenv("PIER_CANARY");
	test_assert_census(&fixture.before);
	return 0;
}

static int reg(enum pier_policy policy, struct pier_mr **ret_mr)
{
	return pier_reg_buffer_mr(fixture.pd, fixture.buffer, 0, LENGTH,
				  PIER_ACCESS_SHARED, policy, ret_mr);
}

/* Returns the microseconds of a registration. */
static long time_registration(void)
{
	struct timespec start, end;
	struct pier_mr *mr = NULL;

	clock_gettime(CLOCK_MONOTONIC, &start);
	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_dereg_mr(mr));
	return (end.tv_sec - start.tv_sec) * 1000000 +
	       (end.tv_nsec - start.tv_nsec) / 1000;
}

static void accepts_the_pages_of_the_device(void **state)
{
	long first = time_registration(), next = time_registration();

	(void)state;
	/* It was sent, and only once. */
	assert_int_equal(fixture.copies, 2);
	printf("# the first registration took %ld us, the next %ld us\n", first, next);
}

static void refuses_other_pages(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	fixture.foreign = true;
	expect_result(reg(PIER_POLICY_DIRECT, &mr), -EIO);
	test_assert_sentence("do not share the memory of board");
	test_assert_sentence("at offset 0 the device wrote 0x");
	expect_ok(reg(PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_dereg_mr(mr));
}

/* Without the canary nothing fails. */
static void kernel_registers_other_pages(void **state)
{
	struct pier_mr *mr = NULL;

	(void)state;
	expect_ok(pier_dealloc_pd(fixture.pd));
	expect_ok(pier_close_device(fixture.device));
	setenv("PIER_CANARY", "off", 1);
	expect_ok(pier_open_device(fixture.name, &fixture.device));
	expect_ok(pier_alloc_pd(fixture.device, &fixture.pd));
	fixture.foreign = true;
	expect_ok(reg(PIER_POLICY_DIRECT, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_dereg_mr(mr));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(accepts_the_pages_of_the_device),
		CASE(refuses_other_pages),
		CASE(kernel_registers_other_pages),
	};

	fixture.name = argc > 1 ? argv[1] : "rxe0";
	if (access("/dev/udmabuf", W_OK) != 0) {
		printf("1..0 # SKIP no /dev/udmabuf\n");
		return 77;
	}
	if (pier_backend_register(&board) != 0) {
		printf("Bail out! %s\n", pier_error_message());
		return 1;
	}
	return cmocka_run_group_tests_name("canary", tests, NULL, NULL);
}
