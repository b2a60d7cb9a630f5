/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Exports every kind of memory with every mapping. The driver's answers are printed, not
 * assumed. The test only requires what pier promises: a dma-buf whose size covers the
 * range and whose offset agrees with the address, or a refusal with its reason. pier must
 * get the same dma-buf as the bare driver.
 */
#include "../support/cmocka.h"
#include "../support/census.h"
#include "../support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bare.h"

struct place {
	const char *name;
	const char *vendor; /* the only one that has it, or NULL */
	const char *spec;   /* appended to "cuda:N" */
	size_t length;	    /* of the buffer */
	size_t offset;	    /* of the range in the buffer, and its length */
	size_t range;
	enum pier_mapping mapping;
};

static const struct place places[] = {
	{ "4 MiB", NULL, "", 4 * GPU_MIB, 0, 4 * GPU_MIB, 0 },
	{ "1 MiB, below 2 MiB", NULL, "", GPU_MIB, 0, GPU_MIB, 0 },
	{ "a sub-range", NULL, "", 4 * GPU_MIB, GPU_MIB + 12411, 70001, 0 },
	{ "VMM, one segment", "cuda", ":vmm", 4 * GPU_MIB, 0, 4 * GPU_MIB, 0 },
	{ "VMM, two segments", "cuda", ":vmm:2M", 4 * GPU_MIB, 0, 4 * GPU_MIB, 0 },
	{ "VMM, over the seam of two", "cuda", ":vmm:2M", 4 * GPU_MIB, GPU_BLOCK - 5000,
	  10000, 0 },
	{ "VMM, in the second of two", "cuda", ":vmm:2M", 4 * GPU_MIB, GPU_BLOCK + 100,
	  5000, 0 },
	{ "fine-grained", "hip", ":fine", 4 * GPU_MIB, 0, 4 * GPU_MIB, 0 },
	{ "page-locked host memory", NULL, ":host", GPU_MIB, 0, GPU_MIB, 0 },
};

enum {
	PLACES = sizeof(places) / sizeof(places[0]),
	MAPPINGS = 2,
};

static size_t page;

static bool is_answer(const struct bare_file *file, const struct bare_answer *answer)
{
	return answer->error == 0 && file->size == answer->file.size &&
	       strcmp(file->name, answer->file.name) == 0;
}

static uint8_t byte_at(size_t i)
{
	return (uint8_t)(i * 7 + i / 251);
}

static void fill(struct pier_buffer *buffer)
{
	size_t length = pier_buffer_length(buffer);
	uint8_t *bytes = malloc(length);

	assert_non_null(bytes);
	for (size_t i = 0; i < length; i++)
		bytes[i] = byte_at(i);
	expect_ok(pier_buffer_copy_to(buffer, 0, bytes, length));
	free(bytes);
}

/* If the exporter supports mmap(), the CPU must see the range's bytes. */
static int look_inside(const struct pier_dmabuf *dmabuf, size_t offset)
{
	uint64_t skipped = dmabuf->offset & (page - 1);
	size_t length = skipped + dmabuf->length;
	uint8_t *bytes = mmap(NULL, length, PROT_READ, MAP_SHARED, dmabuf->fd,
			      (off_t)(dmabuf->offset - skipped));

	if (bytes == MAP_FAILED)
		return errno;
	for (size_t i = 0; i < dmabuf->length; i++) {
		if (bytes[skipped + i] != byte_at(offset + i))
			fail_msg("byte %zu of the dma-buf's range is %#x", i,
				 bytes[skipped + i]);
	}
	assert_int_equal(munmap(bytes, length), 0);
	return 0;
}

/* If the fd is refused, the errno must have a name and the sentence a reason. */
static int register_fd(const struct pier_dmabuf *dmabuf)
{
	struct pier_mr *mr = NULL;
	int error = pier_mr_reg_dmabuf(gpu.pd, dmabuf->offset, dmabuf->length,
				       dmabuf->iova, dmabuf->fd, PIER_ACCESS_SHARED, &mr);

	if (error == 0) {
		expect_ok(pier_mr_dereg(mr));
		return 0;
	}
	gpu_say("  %s refuses the fd: %s", pier_device_name(gpu.nic),
		pier_error_message());
	assert_true(error < 0 && error >= -EHWPOISON);
	return error;
}

/* Checks pier's description of any dma-buf. */
static void check_numbers(const struct pier_dmabuf *dmabuf, struct pier_buffer *buffer,
			  const struct place *place)
{
	assert_int_equal(fcntl(dmabuf->fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(dmabuf->length, place->range);
	assert_int_equal(dmabuf->iova, pier_buffer_address(buffer) + place->offset);
	assert_int_equal((dmabuf->offset ^ dmabuf->iova) & (page - 1), 0);
}

/* The dma-buf must be the same as the bare driver's with the same mapping. */
static void check_dmabuf(const struct pier_dmabuf *dmabuf, struct pier_buffer *buffer,
			 const struct place *place, const struct bare_answers *bare)
{
	struct bare_file file = bare_look_at(dmabuf->fd);
	int mapped;

	check_numbers(dmabuf, buffer, place);
	if (!is_answer(&file, &bare->range) && !is_answer(&file, &bare->whole))
		fail_msg("%s of %lld bytes is not what the driver gives", file.name,
			 (long long)file.size);
	/* The fake returns this instead of a dma-buf that no NIC can attach to. */
	if (gpu.fake && strncmp(file.name, "anon_inode:", 11) == 0) {
		assert_int_equal(register_fd(dmabuf), -EINVAL);
		return;
	}
	assert_true(dmabuf->offset <= (uint64_t)file.size &&
		    dmabuf->length <= (uint64_t)file.size - dmabuf->offset);
	mapped = look_inside(dmabuf, place->offset);
	gpu_say("  %s, %lld bytes by lseek, the range at offset %#llx; mmap: %s",
		file.name, (long long)file.size, (unsigned long long)dmabuf->offset,
		mapped == 0 ? "the range's bytes" : strerror(mapped));
	register_fd(dmabuf);
}

/* pier may refuse only what the driver refuses, and gives a reason. */
static void check_refusal(int error, const struct bare_answers *bare,
			  struct pier_buffer *buffer)
{
	struct pier_buffer_info info;

	expect_ok(pier_buffer_query(buffer, &info, sizeof(info)));
	gpu_say("  refused: %s", pier_error_message());
	assert_true(error < 0);
	assert_true(strlen(pier_error_message()) > 20);
	if (info.no_export[0])
		test_assert_sentence(info.no_export);
	bare_assert_unwilling(bare);
}

/* If the caller accepts a copy, registration must work on every machine. */
static void check_bounce(struct pier_buffer *buffer, const struct place *place)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_buffer(gpu.pd, buffer, place->offset, place->range,
				     PIER_ACCESS_SHARED, PIER_POLICY_BOUNCE, &mr));
	gpu_say("  registered on %s, bounce buffer allowed: %s, mapping %s, %u "
		"parts%s%s",
		pier_device_name(gpu.nic), pier_path_name(pier_mr_path(mr)),
		pier_mapping_name(test_mr_info(mr).mapping), pier_mr_parts(mr),
		pier_mr_reason(mr)[0] ? "; not better: " : "", pier_mr_reason(mr));
	assert_int_equal(pier_mr_iova(mr), pier_buffer_address(buffer) + place->offset);
	assert_int_equal(pier_mr_length(mr), place->range);
	if (pier_mr_path(mr) == PIER_PATH_BOUNCE)
		assert_true(pier_mr_reason(mr)[0] != '\0');
	expect_ok(pier_mr_dereg(mr));
}

static void export_once(void *argument)
{
	const struct place *place = argument;
	struct pier_dmabuf dmabuf = { .fd = -2 };
	struct pier_buffer *buffer = NULL;
	struct bare_answers bare;
	int error;

	expect_ok(pier_buffer_alloc(gpu_spec(place->spec), place->length, &buffer));
	fill(buffer);
	bare = bare_ask(pier_buffer_address(buffer) + place->offset, place->range,
			place->mapping);
	gpu_say("%s, mapping %s; bare driver: range %s, whole %s", place->name,
		pier_mapping_name(place->mapping), gpu_error(bare.range.error),
		gpu_error(bare.whole.error));
	error = pier_dmabuf_export(buffer, place->offset, place->range, place->mapping,
				   &dmabuf);
	if (error) {
		assert_int_equal(dmabuf.fd, -2);
		check_refusal(error, &bare, buffer);
	} else {
		check_dmabuf(&dmabuf, buffer, place, &bare);
		pier_dmabuf_close(&dmabuf);
		assert_int_equal(dmabuf.fd, -1);
	}
	check_bounce(buffer, place);
	expect_ok(pier_buffer_free(buffer));
}

static void exports(void **state)
{
	gpu_run_steady(export_once, *state);
}

/*
 * A second allocation in the driver's block: neither its start nor its end is at a page.
 */
static void export_small(void *argument)
{
	uint64_t neighbour = 0, address = 0;
	struct pier_buffer *buffer = NULL;
	struct pier_dmabuf dmabuf;
	struct bare_answers bare;
	int error;

	(void)argument;
	gpu_push();
	gpu_must(gpu.both.alloc(&neighbour, 3000));
	gpu_must(gpu.both.alloc(&address, 5000));
	gpu_pop();
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)address, 5000, &buffer));
	fill(buffer);
	bare = bare_ask(address, 5000, PIER_MAPPING_DEFAULT);
	gpu_say("5000 bytes at %#llx, wrapped; bare driver: its pages %s",
		(unsigned long long)address, gpu_error(bare.range.error));
	error = pier_dmabuf_export(buffer, 0, 5000, PIER_MAPPING_AUTO, &dmabuf);
	if (error) {
		check_refusal(error, &bare, buffer);
	} else {
		check_dmabuf(&dmabuf, buffer,
			     &(struct place){ .offset = 0, .range = 5000 }, &bare);
		pier_dmabuf_close(&dmabuf);
	}
	expect_ok(pier_buffer_free(buffer));
	gpu_push();
	gpu_must(gpu.both.free(address));
	gpu_must(gpu.both.free(neighbour));
	gpu_pop();
}

static void exports_a_part_of_a_block(void **state)
{
	(void)state;
	gpu_run_steady(export_small, NULL);
}

/* Several exports of a buffer at once, which keep the buffer. */
static void hold_many(void *argument)
{
	struct pier_dmabuf dmabufs[8];
	struct pier_buffer *buffer = NULL;
	int count = 0;

	(void)argument;
	expect_ok(pier_buffer_alloc(gpu_spec(""), 4 * GPU_MIB, &buffer));
	while (count < 8 && pier_dmabuf_export(buffer, 0, 4 * GPU_MIB, PIER_MAPPING_AUTO,
					       &dmabufs[count]) == 0)
		count++;
	gpu_say("%d dma-bufs of one buffer at once", count);
	if (count > 0)
		expect_result(pier_buffer_free(buffer), -EBUSY);
	while (count > 0)
		pier_dmabuf_close(&dmabufs[--count]);
	expect_ok(pier_buffer_free(buffer));
}

static void holds_many_at_once(void **state)
{
	(void)state;
	gpu_run_steady(hold_many, NULL);
}

/* Each range with each mapping, and the other tests. */
int main(void)
{
	static struct place cases[PLACES * MAPPINGS];
	static char names[PLACES * MAPPINGS][80];
	struct CMUnitTest tests[PLACES * MAPPINGS + 2];
	size_t count = 0;

	page = (size_t)sysconf(_SC_PAGESIZE);
	gpu_open();
	for (int i = 0; i < PLACES * MAPPINGS; i++) {
		struct place *place = &cases[i];

		*place = places[i / MAPPINGS];
		place->mapping = i % MAPPINGS ? PIER_MAPPING_PCIE : PIER_MAPPING_DEFAULT;
		if (place->vendor && strcmp(place->vendor, gpu.vendor->name) != 0)
			continue;
		snprintf(names[i], sizeof(names[i]), "%s, mapping %s", place->name,
			 pier_mapping_name(place->mapping));
		tests[count++] = (struct CMUnitTest){ names[i], exports, gpu_setup,
						      gpu_teardown, place };
	}
	tests[count++] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
		exports_a_part_of_a_block, gpu_setup, gpu_teardown);
	tests[count++] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
		holds_many_at_once, gpu_setup, gpu_teardown);
	return _cmocka_run_group_tests("gpu_export", tests, count, gpu_open_nic,
				       gpu_close_nic);
}
