/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <fcntl.h>
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/pier.h>

/*
 * A dma-buf of a device that pier has no backend for: a buffer of the kernel's vgem
 * driver, exported by DRM, step by step as in docs/devices.md.
 *
 * usage: vm_drm [DEVICE]
 */

/* <drm/drm.h> and <drm/drm_mode.h>, which Debian has in libdrm-dev only. */
struct dumb_buffer {
	__u32 height, width, bpp, flags;
	__u32 handle, pitch;
	__u64 size;
};
struct dumb_map {
	__u32 handle, pad;
	__u64 offset;
};
struct prime_fd {
	__u32 handle, flags;
	__s32 fd;
};
#define DRM_IOCTL_PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime_fd)
#define DRM_IOCTL_MODE_CREATE_DUMB   _IOWR('d', 0xb2, struct dumb_buffer)
#define DRM_IOCTL_MODE_MAP_DUMB	     _IOWR('d', 0xb3, struct dumb_map)

enum {
	PATIENT = 30000,
};

struct end {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_channel *channel;
};

static struct {
	const char *name;
	int card;
	struct dumb_buffer dumb;
	unsigned char *map;
	struct prime_fd prime;
	struct end ends[2];
} fixture;

static int setup(void **state)
{
	struct dumb_map map;
	struct pier_endpoint endpoints[2];

	(void)state;
	fixture.card = open("/dev/dri/card0", O_RDWR | O_CLOEXEC);
	assert_true(fixture.card >= 0);
	fixture.dumb = (struct dumb_buffer){ .height = 64, .width = 1024, .bpp = 32 };
	assert_int_equal(ioctl(fixture.card, DRM_IOCTL_MODE_CREATE_DUMB, &fixture.dumb),
			 0);
	map = (struct dumb_map){ .handle = fixture.dumb.handle };
	assert_int_equal(ioctl(fixture.card, DRM_IOCTL_MODE_MAP_DUMB, &map), 0);
	fixture.map = mmap(NULL, fixture.dumb.size, PROT_READ | PROT_WRITE, MAP_SHARED,
			   fixture.card, (off_t)map.offset);
	assert_ptr_not_equal(fixture.map, MAP_FAILED);
	fixture.prime = (struct prime_fd){ .handle = fixture.dumb.handle,
					   .flags = O_RDWR | O_CLOEXEC };
	assert_int_equal(
		ioctl(fixture.card, DRM_IOCTL_PRIME_HANDLE_TO_FD, &fixture.prime), 0);
	for (size_t i = 0; i < 2; i++) {
		struct end *end = &fixture.ends[i];

		expect_ok(pier_device_open(fixture.name, &end->device));
		expect_ok(pier_pd_alloc(end->device, &end->pd));
		expect_ok(pier_channel_create(end->pd, NULL, &end->channel));
		expect_ok(pier_channel_endpoint(end->channel, &endpoints[i]));
	}
	for (size_t i = 0; i < 2; i++)
		expect_ok(
			pier_channel_connect(fixture.ends[i].channel, &endpoints[1 - i]));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t i = 0; i < 2; i++) {
		expect_ok(pier_channel_destroy(fixture.ends[i].channel));
		expect_ok(pier_pd_dealloc(fixture.ends[i].pd));
		expect_ok(pier_device_close(fixture.ends[i].device));
	}
	munmap(fixture.map, fixture.dumb.size);
	close(fixture.card);
	return 0;
}

/* The peer reads what the CPU wrote through DRM, and the CPU what the peer wrote. */
static void peer_reaches_a_buffer_of_drm(void **state)
{
	uint64_t length = fixture.dumb.size;
	struct pier_buffer *host = NULL;
	struct pier_mr *mr = NULL, *local = NULL;
	struct pier_gather source;
	struct pier_scatter target;
	struct pier_remote remote;
	unsigned char *bytes;

	(void)state;
	expect_ok(pier_mr_reg_dmabuf(fixture.ends[1].pd, 0, length, 0, fixture.prime.fd,
				     PIER_ACCESS_SHARED, &mr));
	/* The region keeps the memory. */
	close(fixture.prime.fd);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	expect_ok(pier_buffer_alloc("host", length, &host));
	expect_ok(pier_buffer_map(host, (void **)&bytes));
	expect_ok(pier_mr_reg_buffer(fixture.ends[0].pd, host, 0, length,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &local));
	expect_ok(pier_mr_gather(local, pier_mr_iova(local), (uint32_t)length, &source));
	expect_ok(pier_mr_scatter(local, pier_mr_iova(local), (uint32_t)length, &target));
	expect_ok(pier_mr_remote(mr, &remote));

	for (uint64_t i = 0; i < length; i++)
		fixture.map[i] = (unsigned char)(i * 7 + i / 4096);
	expect_ok(
		pier_channel_read(fixture.ends[0].channel, &target, 1, &remote, PATIENT));
	assert_memory_equal(bytes, fixture.map, length);
	for (uint64_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)(i * 11 + i / 4096);
	expect_ok(pier_channel_write(fixture.ends[0].channel, &source, 1, &remote,
				     PATIENT));
	assert_memory_equal(bytes, fixture.map, length);

	expect_ok(pier_mr_dereg(local));
	expect_ok(pier_buffer_free(host));
	expect_ok(pier_mr_dereg(mr));
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(peer_reaches_a_buffer_of_drm, setup,
						teardown),
	};

	fixture.name = argc > 1 ? argv[1] : "rxe0";
	if (system("modprobe vgem") != 0 || access("/dev/dri/card0", R_OK | W_OK) != 0) {
		printf("1..0 # SKIP the kernel has no vgem\n");
		return 77;
	}
	return cmocka_run_group_tests_name("DRM", tests, NULL, NULL);
}
