/* SPDX-License-Identifier: BSD-3-Clause */
#include "hip_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/log.h>
#include <pier/mr.h>
#include <pier/sync.h>

#include "device/device.h"

/* Machines on which an export succeeds and the memory is out of the NIC's reach. */

static const struct pier_backend *const backend = &pier_hip_backend;

enum {
	SMALL = 64 << 10,
	LARGE = 5 << 20,
	LINE = 1024,
};

/* Register with any mapping, on a new device: devices remember the mapping. */
static enum pier_mapping register_mapping(void)
{
	enum pier_mapping mapping;
	struct pier_device *device;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_pd *pd;

	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_alloc("hip:1", SMALL, &buffer));
	expect_ok(pier_mr_reg_buffer(pd, buffer, 0, SMALL, PIER_ACCESS_SHARED,
				     PIER_POLICY_DIRECT, &mr));
	mapping = test_mr_info(mr).mapping;
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
	return mapping;
}

static void keep_line(enum pier_log_level level, const char *text, void *line)
{
	(void)level;
	snprintf(line, LINE, "%s", text);
}

/* Only the mapping over PCIe shows that the BAR is small, so it is tried first. */
static void notices_a_small_bar(void **state)
{
	char line[LINE] = "";
	size_t flagged = fixture.fake->pcie_exports, exports = fixture.fake->exports;

	(void)state;
	/* Its exports are not counted. */
	setenv("PIER_CANARY", "off", 1);
	assert_int_equal(register_mapping(), PIER_MAPPING_PCIE);
	assert_int_equal(fixture.fake->pcie_exports, flagged + 1);
	assert_int_equal(fixture.fake->exports, exports + 1);
	fixture.fake->pcie = FAKE_HIP_PCIE_REFUSED;
	pier_log_set(PIER_LOG_INFO, keep_line, line);
	assert_int_equal(register_mapping(), PIER_MAPPING_DEFAULT);
	pier_log_set(PIER_LOG_ERROR, NULL, NULL);
	assert_int_equal(fixture.fake->pcie_exports, flagged + 1);
	assert_non_null(strstr(line, "the device's memory behind its BAR"));
	unsetenv("PIER_CANARY");
}

/* The fake's knob: what a NIC writes is not what the device reads. */
static void fake_exports_other_pages(void **state)
{
	struct pier_backend_export dmabuf[2];
	struct pier_memory memory;
	char back[4], *pages;

	(void)state;
	fixture.fake->gtt = true;
	expect_ok(backend->alloc("0", LARGE, &memory));
	expect_ok(backend->copy_to(&memory, 0, "old", 4));
	for (int i = 0; i < 2; i++)
		expect_ok(call_export(backend, &memory, memory.address, LARGE,
				      PIER_MAPPING_DEFAULT, &dmabuf[i]));
	fixture_expect_bytes(dmabuf[0].fd, dmabuf[0].offset, "old", 4);
	pages = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf[0].fd,
		     (off_t)dmabuf[0].offset);
	assert_ptr_not_equal(pages, MAP_FAILED);
	memcpy(pages, "new", 4);
	munmap(pages, LARGE);
	fixture_expect_bytes(dmabuf[1].fd, dmabuf[1].offset, "new", 4);
	expect_ok(backend->copy_from(&memory, 0, back, 4));
	assert_string_equal(back, "old");
	backend->close_export(&dmabuf[0]);
	backend->close_export(&dmabuf[1]);
	backend->free(&memory);
}

/* amdgpu_dma_buf_pin() before Linux 6.15, or without CONFIG_PCI_P2PDMA. */
static void canary_finds_other_pages(void **state)
{
	struct pier_device *device;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_pd *pd;

	(void)state;
	fixture.fake->gtt = true;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_alloc("hip:1", SMALL, &buffer));
	expect_result(pier_mr_reg_buffer(pd, buffer, 0, SMALL, PIER_ACCESS_SHARED,
					 PIER_POLICY_DIRECT, &mr),
		      -EIO);
	test_assert_sentence("soft0 and the device do not share the memory of hip:1");
	expect_ok(pier_mr_reg_buffer(pd, buffer, 0, SMALL, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

static struct pier_provider nic;
static const struct pier_provider *soft;

static struct ibv_mr *attach(struct ibv_pd *pd, uint64_t offset, size_t length,
			     uint64_t iova, int fd, int access)
{
	errno = fixture.attach(fd);
	return errno ? NULL : soft->reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

/* An export does not tell: the driver refuses when the NIC attaches. */
static void explains_what_the_driver_refuses(void **state)
{
	static const struct {
		int error, result;
		const char *sentence;
	} cases[] = {
		{ EINVAL, EINVAL, "cannot pin it where this NIC reaches it, as amdgpu" },
		{ EBUSY, EBUSY, "cannot pin it where this NIC reaches it, as amdgpu" },
		{ 524, EOPNOTSUPP, "does not let this NIC attach" },
	};
	struct pier_device *device;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_pd *pd;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_alloc("hip:1", SMALL, &buffer));
	soft = device->provider;
	nic = *soft;
	nic.reg_dmabuf_mr = attach;
	device->provider = &nic;
	device->switches.canary = PIER_SWITCH_OFF;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fixture.fake->attach_error = cases[i].error;
		expect_result(pier_mr_reg_buffer(pd, buffer, 0, SMALL, PIER_ACCESS_SHARED,
						 PIER_POLICY_DIRECT, &mr),
			      -cases[i].result);
		test_assert_sentence(cases[i].sentence);
		test_assert_sentence("dmesg");
		expect_ok(pier_mr_reg_buffer(pd, buffer, 0, SMALL, PIER_ACCESS_SHARED,
					     PIER_POLICY_BOUNCE, &mr));
		assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
		assert_non_null(strstr(pier_mr_reason(mr), cases[i].sentence));
		expect_ok(pier_mr_dereg(mr));
	}
	device->provider = soft;
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* A launch alone acquires nothing that a NIC wrote. */
static void launches_see_what_was_synchronised(void **state)
{
	struct pier_device *device;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_pd *pd;
	void *pointer;

	(void)state;
	expect_ok(pier_device_open("soft0", &device));
	device->switches.canary = PIER_SWITCH_OFF;
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_buffer_alloc("hip:1", SMALL, &buffer));
	pointer = (void *)(uintptr_t)pier_buffer_address(buffer);
	expect_ok(pier_mr_reg_buffer(pd, buffer, 0, SMALL, PIER_ACCESS_SHARED,
				     PIER_POLICY_DIRECT, &mr));
	expect_ok(pier_buffer_copy_to(buffer, 0, "old", 4));
	assert_string_equal(fixture.launch(pointer), "old");
	/* As the NIC, which reaches the same pages. */
	memcpy(fixture.reach(pointer, 4), "new", 4);
	assert_string_equal(fixture.launch(pointer), "old");
	expect_ok(pier_mr_sync_for_device(mr, 0, SMALL));
	assert_string_equal(fixture.launch(pointer), "new");
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(notices_a_small_bar),
		fixture_test(fake_exports_other_pages),
		fixture_test(canary_finds_other_pages),
		fixture_test(explains_what_the_driver_refuses),
		fixture_test(launches_see_what_was_synchronised),
	};

	return cmocka_run_group_tests_name("hip_hardware", tests, fixture_open, NULL);
}
