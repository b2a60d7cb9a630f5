/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that the application allocates from the driver itself: pier recognises its kind,
 * copies to and from all of it, exports what the bare driver exports, and refuses the
 * rest with a reason.
 */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <errno.h>
#include <stdio.h>

#include "bare.h"
#include "memory.h"

enum {
	/* A part that begins and ends inside pages. */
	SKEW = 12345,
	PART = 70001,
	MOST_KINDS = 16,
};

static void check_unit(const struct kind *kind, const struct pier_buffer_info *info)
{
	const char *named = kind->named[gpu.vendor == &gpu_hip];
	char unit[16];

	snprintf(unit, sizeof(unit), "%d", gpu.device);
	assert_string_equal(info->backend, gpu.vendor->name);
	assert_memory_equal(info->kind, named, strlen(named));
	assert_string_equal(info->unit, unit);
	assert_int_equal(info->mappable, kind->host);
}

/*
 * The whole memory, so that both segments are listed. pier's description of a part must
 * agree.
 */
static void check_query(const struct kind *kind, uint64_t address)
{
	struct pier_buffer *buffer = NULL;
	struct pier_buffer_info info;

	expect_ok(pier_buffer_wrap((void *)(uintptr_t)address, kind->length, &buffer));
	expect_ok(pier_buffer_query(buffer, &info, sizeof(info)));
	gpu_say("%s: kind \"%s\", unit %s, PCI %s, allocation %llu bytes from %+lld on; "
		"export: %s",
		kind->name, info.kind, info.unit, info.pci[0] ? info.pci : "none",
		(unsigned long long)info.allocation_length,
		(long long)(info.allocation - address),
		info.no_export[0] ? info.no_export : "not excluded");
	assert_true(info.wrapped);
	assert_true(info.allocation <= address);
	assert_true(address + kind->length <= info.allocation + info.allocation_length);
	if (!kind->plain || strcmp(info.backend, "host") != 0)
		check_unit(kind, &info);
	expect_ok(pier_buffer_free(buffer));
}

/* The sentence names the kind's reason, if it is one, and a remedy on direct paths. */
static void check_refusal(const struct kind *kind, struct pier_buffer *buffer)
{
	struct pier_buffer_info info;
	struct pier_mr *mr = NULL;

	assert_true(strlen(pier_error_message()) > 20);
	expect_ok(pier_buffer_query(buffer, &info, sizeof(info)));
	/* Plain host memory has a reason of the library's own. */
	if (!info.no_export[0] || strcmp(info.backend, gpu.vendor->name) != 0)
		return;
	test_assert_sentence(info.no_export);
	/* Of a device without dma-bufs, the sentence names the device. */
	if (kind->host || (gpu.vendor == &gpu_cuda &&
			   !gpu_attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)))
		return;
	test_assert_sentence("allow a bounce buffer");
	expect_result(
		pier_mr_reg_buffer(gpu.pd, buffer, 0, PART, 0, PIER_POLICY_DIRECT, &mr),
		-EOPNOTSUPP);
	test_assert_sentence(info.no_export);
}

/* The bare driver decides which kinds are exported: pier must agree. */
static void check_export(const struct kind *kind, struct pier_buffer *buffer)
{
	struct bare_answers bare;
	struct pier_dmabuf dmabuf;
	int error = pier_dmabuf_export(buffer, 0, PART, PIER_MAPPING_AUTO, &dmabuf);

	if (kind->unasked && strcmp(kind->unasked, gpu.vendor->name) == 0) {
		gpu_say("  the bare driver is not asked");
		assert_true(error < 0);
		return;
	}
	if (error)
		gpu_say("  pier refuses: %s", pier_error_message());
	bare = bare_ask(pier_buffer_address(buffer), PART, PIER_MAPPING_DEFAULT);
	gpu_say("  bare driver: range %s, whole %s", gpu_error(bare.range.error),
		gpu_error(bare.whole.error));
	if (error) {
		bare_assert_unwilling(&bare);
		check_refusal(kind, buffer);
		return;
	}
	assert_true(bare_is_willing(&bare));
	pier_dmabuf_close(&dmabuf);
}

static void check_copies(struct pier_buffer *buffer)
{
	static uint8_t bytes[PART], found[PART];

	for (size_t i = 0; i < PART; i++)
		bytes[i] = (uint8_t)(i * 5 + i / 253);
	expect_ok(pier_buffer_copy_to(buffer, 0, bytes, PART));
	memset(bytes + 100, 0xee, 7);
	expect_ok(pier_buffer_copy_to(buffer, 100, bytes + 100, 7));
	expect_ok(pier_buffer_copy_from(buffer, 0, found, PART));
	assert_memory_equal(found, bytes, PART);
}

/* With a policy that accepts every path, registration must succeed. */
static void check_region(const struct kind *kind, struct pier_buffer *buffer)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_buffer(gpu.pd, buffer, 0, PART, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	gpu_say("  on %s, bounce buffer allowed: %s%s%s", pier_device_name(gpu.nic),
		pier_path_name(pier_mr_path(mr)),
		pier_mr_reason(mr)[0] ? "; not better: " : "", pier_mr_reason(mr));
	if (kind->host)
		assert_int_equal(pier_mr_path(mr), PIER_PATH_HOST);
	expect_ok(pier_mr_sync_for_nic(mr, 0, PART));
	if (pier_mr_path(mr) == PIER_PATH_BOUNCE)
		expect_ok(pier_mr_sync_for_device(mr, 0, PART));
	expect_ok(pier_mr_dereg(mr));
}

static void wrap_once(void *argument)
{
	const struct kind *kind = argument;
	struct pier_buffer *buffer = NULL;
	uint64_t address = 0;

	gpu_push();
	gpu_must(kind->take(&address));
	gpu_pop();
	check_query(kind, address);
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(address + SKEW), PART, &buffer));
	assert_int_equal(pier_buffer_address(buffer), address + SKEW);
	check_copies(buffer);
	check_export(kind, buffer);
	check_region(kind, buffer);
	expect_ok(pier_buffer_free(buffer));
	gpu_push();
	gpu_must(kind->give(address));
	gpu_pop();
}

static void wraps(void **state)
{
	const struct kind *kind = *state;
	uint64_t address = 0;
	unsigned int error;

	if (gpu.vendor == &gpu_cuda && kind->attribute && !gpu_attribute(kind->attribute))
		gpu_skip("the device has no memory of this kind");
	gpu_push();
	error = kind->take(&address);
	if (!error)
		error = kind->give(address);
	gpu_pop();
	if (error)
		gpu_skip("the driver gives no memory of this kind: %s", gpu_error(error));
	gpu_run_steady(wrap_once, *state);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[MOST_KINDS];
	size_t count = 0;

	if (argc == 2 && strcmp(argv[1], KIND_OWN) == 0)
		return kind_own_shared();
	gpu_open();
	for (const struct kind *kind = kinds; kind->name; kind++) {
		if (kind->vendor && strcmp(kind->vendor, gpu.vendor->name) != 0)
			continue;
		tests[count++] = (struct CMUnitTest){ kind->name, wraps, gpu_setup,
						      gpu_teardown, (void *)kind };
	}
	return _cmocka_run_group_tests("gpu_kinds", tests, count, gpu_open_nic,
				       gpu_close_nic);
}
