/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/plugins.h"

#include <errno.h>
#include <stdlib.h>

#include <pier/buffer.h>

/* How the memory layer handles a backend with wrong answers. */

static void check_alloc_fails(const char *spec, int error, const char *sentence)
{
	struct pier_buffer *buffer = (struct pier_buffer *)0x1;

	assert_int_equal(pier_buffer_alloc("nope", 1, &buffer), -ENOENT);
	assert_int_equal(pier_buffer_alloc(spec, 100, &buffer), -error);
	test_assert_sentence(sentence);
	assert_ptr_equal(buffer, (void *)0x1);
}

static void rejects_wrong_allocations(void **state)
{
	(void)state;
	/* Not the earlier sentence about another backend. */
	check_alloc_fails("liar:silent", EPERM, "liar:silent: Operation not permitted");
	check_alloc_fails("liar:positive", EIO, "Input/output error");
	check_alloc_fails("liar:short", EIO, "liar returned 99 bytes");
	check_alloc_fails("liar:null", EIO, "at 0 for 100");
	check_alloc_fails("liar:wrap", EIO, "liar returned 18446744073709551615 bytes");
}

static void check_export(const char *spec, size_t offset, int error, const char *sentence)
{
	struct pier_dmabuf dmabuf = { .fd = -7 };
	struct pier_buffer *buffer;

	assert_int_equal(pier_buffer_alloc(spec, 100, &buffer), 0);
	assert_int_equal(
		pier_dmabuf_export(buffer, offset, 10, PIER_MAPPING_AUTO, &dmabuf),
		-error);
	if (error) {
		test_assert_sentence(sentence);
		assert_int_equal(dmabuf.fd, -7);
	} else {
		pier_dmabuf_close(&dmabuf);
	}
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void rejects_wrong_exports(void **state)
{
	struct test_census before = test_take_census();

	(void)state;
	check_export("liar", 0, 0, "");
	check_export("liar:no_fd", 0, EIO, "the backend returned fd -1");
	check_export("liar:off_by_one", 0, EIO, "with offset 0x1");
	check_export("liar:overflow", 0, EIO, "the backend returned fd");
	check_export("liar:unaligned", 0, EOPNOTSUPP, "leave the allocation");
	test_assert_census(&before);
}

static void reports_memory_that_the_cpu_cannot_reach(void **state)
{
	struct pier_buffer *buffer;
	char byte = 'b';
	void *mapped = &byte;

	(void)state;
	assert_int_equal(pier_buffer_alloc("liar:far", 100, &buffer), 0);
	assert_int_equal(pier_buffer_map(buffer, &mapped), -EOPNOTSUPP);
	test_assert_sentence("the CPU cannot reach this memory");
	assert_ptr_equal(mapped, &byte);
	assert_int_equal(pier_buffer_copy_to(buffer, 0, &byte, 1), -EOPNOTSUPP);
	test_assert_sentence("copying 1 bytes to a buffer of liar: the CPU cannot");
	assert_int_equal(pier_buffer_copy_from(buffer, 0, &byte, 1), -EOPNOTSUPP);
	assert_int_equal(pier_buffer_free(buffer), 0);

	assert_int_equal(pier_buffer_alloc("liar:no_write", 100, &buffer), 0);
	assert_int_equal(pier_buffer_copy_to(buffer, 0, &byte, 1), -EPERM);
	test_assert_sentence("Operation not permitted");
	assert_int_equal(pier_buffer_copy_from(buffer, 0, &byte, 1), 0);
	assert_int_equal(pier_buffer_free(buffer), 0);

	assert_int_equal(pier_buffer_alloc("liar:no_end", 100, &buffer), 0);
	assert_int_equal(pier_buffer_copy_to(buffer, 0, &byte, 1), 0);
	assert_int_equal(pier_buffer_copy_from(buffer, 0, &byte, 1), -EPERM);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void reports_a_failing_search(void **state)
{
	struct pier_buffer *buffer = (struct pier_buffer *)0x1;

	(void)state;
	assert_int_equal(pier_buffer_wrap((void *)0x10, 1, &buffer), -EIO);
	test_assert_sentence("asking liar whether it owns 0x10: Input/output error");
	assert_ptr_equal(buffer, (void *)0x1);
}

static void cuts_an_unterminated_detail(void **state)
{
	struct pier_backend_info *list;
	uint32_t count;

	(void)state;
	assert_int_equal(pier_backend_list(&list, &count, sizeof(*list)), 0);
	/* Listed after the built-in backends. */
	assert_string_equal(list[count - 1].name, "liar");
	assert_false(list[count - 1].available);
	assert_int_equal(strlen(list[count - 1].detail),
			 sizeof(list[count - 1].detail) - 1);
	free(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rejects_wrong_allocations),
		cmocka_unit_test(rejects_wrong_exports),
		cmocka_unit_test(reports_memory_that_the_cpu_cannot_reach),
		cmocka_unit_test(reports_a_failing_search),
		cmocka_unit_test(cuts_an_unterminated_detail),
	};

	return cmocka_run_group_tests_name("foreign_backend", tests, test_make_liar,
					   test_remove_liar);
}
