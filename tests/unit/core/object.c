/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The table of live objects: its lines for each object, and the errors of busy parents.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <pier/pier.h>

#include "core/caller.h"

enum {
	LENGTH = 4096,
	THREADS = 4,
	ROUNDS = 300,
};

/* Exported by this program, so that dladdr(3) knows them, and never inlined. */
#define MAKER __attribute__((noinline, visibility("default")))

MAKER struct pier_device *test_make_device(void);
MAKER struct pier_pd *test_make_pd(struct pier_device *device);
MAKER struct pier_buffer *test_make_buffer(void);
MAKER struct pier_buffer *test_make_wrapped(void *memory);
MAKER struct pier_dmabuf test_make_dmabuf(struct pier_buffer *buffer);
MAKER struct pier_mr *test_make_region(struct pier_pd *pd, void *memory);
MAKER struct pier_mr *test_make_dmabuf_region(struct pier_pd *pd, int fd);
MAKER struct pier_mr *test_make_buffer_region(struct pier_pd *pd,
					      struct pier_buffer *buffer);
MAKER struct pier_channel *test_make_channel(struct pier_pd *pd);

struct pier_device *test_make_device(void)
{
	struct pier_device *device = NULL;

	expect_ok(pier_device_open("soft0", &device));
	return device;
}

struct pier_pd *test_make_pd(struct pier_device *device)
{
	struct pier_pd *pd = NULL;

	expect_ok(pier_pd_alloc(device, &pd));
	return pd;
}

struct pier_buffer *test_make_buffer(void)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_alloc("memfd", LENGTH, &buffer));
	return buffer;
}

struct pier_buffer *test_make_wrapped(void *memory)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_wrap(memory, 10, &buffer));
	return buffer;
}

struct pier_dmabuf test_make_dmabuf(struct pier_buffer *buffer)
{
	struct pier_dmabuf dmabuf;

	expect_ok(pier_dmabuf_export(buffer, 0, LENGTH, PIER_MAPPING_AUTO, &dmabuf));
	return dmabuf;
}

struct pier_mr *test_make_region(struct pier_pd *pd, void *memory)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg(pd, memory, 100, 0, &mr));
	return mr;
}

struct pier_mr *test_make_dmabuf_region(struct pier_pd *pd, int fd)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_dmabuf(pd, 0, 200, 0, fd, 0, &mr));
	return mr;
}

struct pier_mr *test_make_buffer_region(struct pier_pd *pd, struct pier_buffer *buffer)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_buffer(pd, buffer, 0, LENGTH, 0, PIER_POLICY_DIRECT, &mr));
	return mr;
}

struct pier_channel *test_make_channel(struct pier_pd *pd)
{
	struct pier_channel *channel = NULL;

	expect_ok(pier_channel_create(pd, NULL, &channel));
	return channel;
}

/* One object of each kind. */
struct fixture {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer, *wrapped;
	struct pier_dmabuf dmabuf;
	struct pier_mr *region, *dmabuf_region, *buffer_region;
	struct pier_channel *channel;
	char memory[100];
};

static struct fixture *make_fixture(void)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));

	assert_non_null(fixture);
	fixture->device = test_make_device();
	fixture->pd = test_make_pd(fixture->device);
	fixture->buffer = test_make_buffer();
	fixture->wrapped = test_make_wrapped(fixture->memory);
	fixture->dmabuf = test_make_dmabuf(fixture->buffer);
	fixture->region = test_make_region(fixture->pd, fixture->memory);
	fixture->dmabuf_region = test_make_dmabuf_region(fixture->pd, fixture->dmabuf.fd);
	fixture->buffer_region = test_make_buffer_region(fixture->pd, fixture->buffer);
	fixture->channel = test_make_channel(fixture->pd);
	return fixture;
}

static void close_fixture(struct fixture *fixture)
{
	expect_ok(pier_channel_destroy(fixture->channel));
	expect_ok(pier_mr_dereg(fixture->region));
	expect_ok(pier_mr_dereg(fixture->dmabuf_region));
	expect_ok(pier_mr_dereg(fixture->buffer_region));
	pier_dmabuf_close(&fixture->dmabuf);
	expect_ok(pier_buffer_free(fixture->wrapped));
	expect_ok(pier_buffer_free(fixture->buffer));
	expect_ok(pier_pd_dealloc(fixture->pd));
	expect_ok(pier_device_close(fixture->device));
	free(fixture);
}

static void expect_text(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in: %s", part, text);
}

struct expected {
	enum pier_object_kind kind;
	const void *object, *parent;
	const char *description, *maker;
};

static void expect_info(const struct pier_object_info *info,
			const struct expected *expected)
{
	char maker[64];
	Dl_info found;

	assert_int_equal(info->kind, expected->kind);
	assert_ptr_equal(info->object, expected->object);
	assert_ptr_equal(info->parent, expected->parent);
	expect_text(info->description, expected->description);
	/*
	 * The caller of the public function, also where the library calls itself on the
	 * way.
	 */
	snprintf(maker, sizeof(maker), "(%s+0x", expected->maker);
	expect_text(info->where, maker);
	assert_true(dladdr(info->caller, &found) != 0);
	assert_string_equal(found.dli_sname, expected->maker);
}

static void lists_all_in_order(void **state)
{
	struct fixture *s = make_fixture();
	struct expected all[] = {
		{ PIER_OBJECT_DEVICE, s->device, NULL, "device soft0",
		  "test_make_device" },
		{ PIER_OBJECT_PD, s->pd, s->device, "protection domain on soft0",
		  "test_make_pd" },
		{ PIER_OBJECT_BUFFER, s->buffer, NULL, "buffer of 4096 bytes of memfd",
		  "test_make_buffer" },
		{ PIER_OBJECT_BUFFER, s->wrapped, NULL, "buffer of 10 bytes of host",
		  "test_make_wrapped" },
		{ PIER_OBJECT_DMABUF, s->dmabuf.owner, s->buffer,
		  "dma-buf of memfd memory, fd ", "test_make_dmabuf" },
		{ PIER_OBJECT_MR, s->region, s->pd, "region of 100 bytes (host) on soft0",
		  "test_make_region" },
		{ PIER_OBJECT_MR, s->dmabuf_region, s->pd,
		  "region of 200 bytes (dma-buf) on soft0", "test_make_dmabuf_region" },
		{ PIER_OBJECT_MR, s->buffer_region, s->pd,
		  "region of 4096 bytes (dma-buf) on soft0", "test_make_buffer_region" },
		{ PIER_OBJECT_CHANNEL, s->channel, s->pd, "channel of queue pair 0x",
		  "test_make_channel" },
	};
	size_t expected = sizeof(all) / sizeof(all[0]);
	uint32_t count = 0;
	struct pier_object_info *list = NULL;

	(void)state;
	expect_ok(pier_object_list(&list, &count, sizeof(*list)));
	assert_int_equal(count, expected);
	for (size_t i = 0; i < expected; i++)
		expect_info(&list[i], &all[i]);
	free(list);
	close_fixture(s);
	expect_ok(pier_object_list(&list, &count, sizeof(*list)));
	assert_int_equal(count, 0);
	free(list);
}

static __attribute__((noinline)) struct pier_buffer *make_unnamed(void)
{
	struct pier_buffer *buffer = NULL;

	expect_ok(pier_buffer_alloc("host", 1, &buffer));
	return buffer;
}

/* The offset is within the program, as addr2line(1) wants it. */
static void prints_offsets_of_static_functions(void **state)
{
	struct pier_buffer *buffer = make_unnamed();
	struct pier_object_info *list = NULL;
	uintptr_t offset, call, begin = (uintptr_t)make_unnamed;
	uint32_t count = 0;
	Dl_info found;
	const char *open;

	(void)state;
	expect_ok(pier_object_list(&list, &count, sizeof(*list)));
	assert_int_equal(count, 1);
	open = strrchr(list->where, '(');
	assert_non_null(open);
	assert_int_equal(sscanf(open, "(+0x%zx)", &offset), 1);
	call = (uintptr_t)list->caller - 1;
	assert_in_range(call, begin, begin + 200);
	assert_true(dladdr((void *)call, &found) != 0);
	assert_int_equal(offset, call - (uintptr_t)found.dli_fbase);
	assert_int_equal(strncmp(list->where, found.dli_fname, strlen(found.dli_fname)),
			 0);
	free(list);
	expect_ok(pier_buffer_free(buffer));
}

static void prints_every_caller(void **state)
{
	char text[256], brief[64];
	size_t length;

	(void)state;
	pier_print_caller((void *)0x10, text, sizeof(text));
	assert_string_equal(text, "0x10");
	pier_print_caller(NULL, text, sizeof(text));
	assert_string_equal(text, "(nil)");
	pier_print_caller((char *)test_make_pd + 5, text, sizeof(text));
	expect_text(text, "(test_make_pd+0x4)");
	/* A path that does not fit loses its beginning; the rest stays whole. */
	pier_print_caller((char *)test_make_pd + 5, brief, sizeof(brief));
	length = strlen(brief);
	assert_in_range(length, 1, sizeof(brief) - 1);
	assert_string_equal(brief, text + strlen(text) - length);
}

static void names_every_kind(void **state)
{
	(void)state;
	assert_string_equal(pier_object_kind_name(PIER_OBJECT_DEVICE), "device");
	assert_string_equal(pier_object_kind_name(PIER_OBJECT_CHANNEL), "channel");
	for (int kind = 0; kind <= PIER_OBJECT_RING; kind++)
		assert_non_null(pier_object_kind_name((enum pier_object_kind)kind));
	assert_string_equal(pier_object_kind_name(PIER_OBJECT_RING + 1), "unknown");
	assert_string_equal(pier_object_kind_name((enum pier_object_kind) - 1),
			    "unknown");
	assert_int_equal(pier_object_count(PIER_OBJECT_RING + 1), 0);
}

static void counts_objects_that_keep_a_parent(void **state)
{
	struct fixture *fixture = make_fixture();
	struct pier_channel *second = test_make_channel(fixture->pd);

	(void)state;
	expect_result(pier_device_close(fixture->device), -EBUSY);
	test_assert_sentence("closing soft0: it still has 1 protection domain, 3 regions "
			     "and 2 channels");
	expect_result(pier_pd_dealloc(fixture->pd), -EBUSY);
	test_assert_sentence("it still has 3 regions and 2 channels");
	expect_ok(pier_channel_destroy(second));
	expect_result(pier_pd_dealloc(fixture->pd), -EBUSY);
	test_assert_sentence("it still has 3 regions and 1 channel");
	expect_result(pier_buffer_free(fixture->buffer), -EBUSY);
	test_assert_sentence("it still has 1 dma-buf and 1 region");
	close_fixture(fixture);
}

/* The log's lines as one text. */
struct lines {
	char text[4096];
	int alive;
};

static void take_line(enum pier_log_level level, const char *message, void *argument)
{
	struct lines *lines = argument;
	size_t used = strlen(lines->text);

	(void)level;
	lines->alive += strncmp(message, "alive: ", 7) == 0;
	snprintf(lines->text + used, sizeof(lines->text) - used, "%s\n", message);
}

static void logs_objects_that_keep_a_device(void **state)
{
	struct lines lines = { .text = "" };
	struct pier_device *other = test_make_device();
	struct pier_pd *other_pd = test_make_pd(other);
	struct fixture *fixture = make_fixture();

	(void)state;
	pier_log_set(PIER_LOG_INFO, take_line, &lines);
	expect_result(pier_device_close(fixture->device), -EBUSY);
	assert_int_equal(lines.alive, 0);
	pier_log_set(PIER_LOG_DEBUG, take_line, &lines);
	expect_result(pier_device_close(fixture->device), -EBUSY);
	/* Its own objects: neither buffers nor objects of other devices. */
	assert_int_equal(lines.alive, 5);
	expect_text(lines.text, "alive: protection domain on soft0, made at ");
	expect_text(lines.text, "alive: region of 100 bytes (host) on soft0, made at ");
	expect_text(lines.text, "(test_make_region+0x");
	expect_text(lines.text, "(test_make_channel+0x");
	test_assert_sentence("closing soft0");
	lines = (struct lines){ .text = "" };
	expect_result(pier_device_close(other), -EBUSY);
	assert_int_equal(lines.alive, 1);
	expect_ok(pier_pd_dealloc(other_pd));
	lines = (struct lines){ .text = "" };
	expect_ok(pier_device_close(other));
	assert_int_equal(lines.alive, 0);
	pier_log_set(PIER_LOG_NONE, NULL, NULL);
	close_fixture(fixture);
}

struct churn {
	pthread_t thread;
	size_t length;
	bool failed;
};

/* The buffers of each thread have a length of their own. */
static void *make_and_free(void *argument)
{
	struct churn *churn = argument;
	struct pier_buffer *buffers[3];

	for (int round = 0; round < ROUNDS && !churn->failed; round++) {
		for (int i = 0; i < 3; i++)
			churn->failed |= pier_buffer_alloc("host", churn->length,
							   &buffers[i]) != 0;
		for (int i = 0; i < 3 && !churn->failed; i++)
			churn->failed |= pier_buffer_free(buffers[(i + round) % 3]) != 0;
	}
	return NULL;
}

static void expect_sane(const struct pier_object_info *list, size_t count)
{
	assert_in_range(count, 0, 3 * THREADS);
	for (size_t i = 0; i < count; i++) {
		size_t length = 0;

		assert_int_equal(list[i].kind, PIER_OBJECT_BUFFER);
		assert_int_equal(sscanf(list[i].description,
					"buffer of %zu bytes of host", &length),
				 1);
		assert_in_range(length, 1, THREADS);
		for (size_t j = 0; j < i; j++)
			assert_ptr_not_equal(list[i].object, list[j].object);
	}
}

static void lists_while_other_threads_allocate(void **state)
{
	struct test_census before = test_take_census();
	struct churn churns[THREADS] = { 0 };

	(void)state;
	for (int i = 0; i < THREADS; i++) {
		churns[i].length = (size_t)i + 1;
		assert_int_equal(pthread_create(&churns[i].thread, NULL, make_and_free,
						&churns[i]),
				 0);
	}
	for (int round = 0; round < ROUNDS; round++) {
		struct pier_object_info *list = NULL;
		uint32_t count = 0;

		expect_ok(pier_object_list(&list, &count, sizeof(*list)));
		expect_sane(list, count);
		free(list);
	}
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(churns[i].thread, NULL), 0);
		assert_false(churns[i].failed);
	}
	test_assert_census(&before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_all_in_order),
		cmocka_unit_test(prints_offsets_of_static_functions),
		cmocka_unit_test(prints_every_caller),
		cmocka_unit_test(names_every_kind),
		cmocka_unit_test(counts_objects_that_keep_a_parent),
		cmocka_unit_test(logs_objects_that_keep_a_device),
		cmocka_unit_test(lists_while_other_threads_allocate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
