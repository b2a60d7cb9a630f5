/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "buffer/buffer.h"
#include "core/page.h"

enum {
	GUARD = 64
};

/* Every test releases all that it allocated. */
static int before_test(void **state)
{
	struct test_census *census = malloc(sizeof(*census));

	*state = census;
	if (!census)
		return -1;
	*census = test_take_census();
	return 0;
}

static int after_test(void **state)
{
	test_assert_census(*state);
	free(*state);
	return 0;
}

static struct pier_buffer *alloc(const char *spec, size_t length)
{
	struct pier_buffer *buffer = NULL;

	assert_int_equal(pier_buffer_alloc(spec, length, &buffer), 0);
	assert_non_null(buffer);
	return buffer;
}

static void check_alloc_fails(const char *spec, size_t length, int error,
			      const char *sentence)
{
	struct pier_buffer *buffer = (struct pier_buffer *)0x1;

	assert_int_equal(pier_buffer_alloc(spec, length, &buffer), -error);
	assert_ptr_equal(buffer, (void *)0x1);
	test_assert_sentence(sentence);
}

static void refuses_invalid_allocations(void **state)
{
	(void)state;
	check_alloc_fails("host", 0, EINVAL, "length is 0");
	check_alloc_fails(NULL, 1, EINVAL, "NULL");
	check_alloc_fails("", 1, EINVAL, "0 characters");
	check_alloc_fails("ho st", 1, EINVAL, "0x20");
	check_alloc_fails("host:", 1, EINVAL, "0 characters");
	check_alloc_fails("hos", 1, ENOENT,
			  "no memory backend \"hos\"; there are: host, memfd, udmabuf, "
			  "dma_heap");
	check_alloc_fails("hosts:1", 1, ENOENT, "\"hosts\"");
	check_alloc_fails("host:tiny", 1, EINVAL, "\"tiny\"");
	check_alloc_fails("memfd:0", 1, EINVAL, "\"readonly\" only, but \"0\"");
	check_alloc_fails("udmabuf:0", 1, EINVAL, "no units");
	check_alloc_fails("host", SIZE_MAX, ENOMEM, "18446744073709551615");
	check_alloc_fails("host", SIZE_MAX - 4096, ENOMEM, "allocating");
	check_alloc_fails("memfd", SIZE_MAX, ENOMEM, "memfd");
	check_alloc_fails("memfd", (size_t)1 << 62, ENOMEM, "memfd");
	check_alloc_fails("memfd", INT64_MAX, ENOMEM, "memfd");
}

/* Only a machine without huge pages may skip; elsewhere they must work. */
static void allocates_huge_pages(void **state)
{
	struct pier_buffer *buffer;
	int result = pier_buffer_alloc("host:huge", 1, &buffer);

	(void)state;
	if (result == 0) {
		assert_int_equal(pier_buffer_address(buffer) % (64 << 10), 0);
		assert_int_equal(pier_buffer_free(buffer), 0);
		return;
	}
	assert_true(result == -ENOMEM || result == -EOPNOTSUPP);
	test_assert_sentence(result == -ENOMEM ? "nr_hugepages" : "CONFIG_HUGETLBFS");
}

static void refuses_unavailable_backends(void **state)
{
	struct pier_backend_info *list;
	struct pier_buffer *buffer;
	uint32_t count;

	(void)state;
	assert_int_equal(pier_backend_list(&list, &count, sizeof(*list)), 0);
	assert_true(count >= 4);
	for (size_t i = 0; i < count; i++) {
		int result = pier_buffer_alloc(list[i].name, 4096, &buffer);

		assert_string_equal(list[i].origin, "");
		assert_int_not_equal(list[i].description[0], '\0');
		if (result == 0) {
			assert_true(list[i].available);
			assert_int_equal(pier_buffer_free(buffer), 0);
			continue;
		}
		assert_false(list[i].available);
		assert_int_equal(result, -EOPNOTSUPP);
		test_assert_sentence(list[i].detail);
	}
	free(list);
}

static void returns_what_was_allocated(void **state)
{
	static const char *const specs[] = { "host", "memfd" };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct pier_buffer *buffer = alloc(specs[i], 10001);
		void *first, *again;

		assert_string_equal(test_buffer_info(buffer).backend, specs[i]);
		assert_int_equal(pier_buffer_length(buffer), 10001);
		assert_int_equal(pier_buffer_address(buffer) % pier_host_page(), 0);
		assert_int_equal(pier_buffer_map(buffer, &first), 0);
		assert_int_equal(pier_buffer_map(buffer, &again), 0);
		assert_ptr_equal(first, again);
		assert_int_equal((uintptr_t)first, pier_buffer_address(buffer));
		for (size_t j = 0; j < 10001; j++)
			assert_int_equal(((char *)first)[j], 0);
		assert_int_equal(pier_buffer_free(buffer), 0);
	}
	assert_int_equal(pier_buffer_free(NULL), 0);
}

static void check_range_errors(struct pier_buffer *buffer, size_t length)
{
	static const size_t bad[][2] = {
		{ 0, 1 },	 { 1, 0 },	  { SIZE_MAX, 1 },
		{ SIZE_MAX, 0 }, { 0, SIZE_MAX }, { SIZE_MAX, SIZE_MAX },
	};
	char byte = 'b';

	for (size_t i = 0; i < 6; i++) {
		/* The first two end one byte past the buffer. */
		size_t offset = i < 2 ? length + bad[i][0] : bad[i][0];
		struct pier_dmabuf dmabuf = { .fd = -7 };

		assert_int_equal(pier_buffer_copy_to(buffer, offset, &byte, bad[i][1]),
				 -ERANGE);
		assert_int_equal(pier_buffer_copy_from(buffer, offset, &byte, bad[i][1]),
				 -ERANGE);
		test_assert_sentence("leave the buffer of");
		if (bad[i][1] == 0)
			continue;
		assert_int_equal(pier_dmabuf_export(buffer, offset, bad[i][1],
						    PIER_MAPPING_AUTO, &dmabuf),
				 -ERANGE);
		test_assert_sentence("leave the buffer of");
		assert_int_equal(dmabuf.fd, -7);
	}
	assert_int_equal(byte, 'b');
}

/* The bytes on both sides of a copy stay unchanged. */
static void check_copies(struct pier_buffer *buffer, struct test_random *random)
{
	size_t length = pier_buffer_length(buffer);
	unsigned char *model = calloc(1, length);
	unsigned char *out = malloc(length + 2 * GUARD);
	unsigned char *in = malloc(length);
	void *mapped;

	assert_int_equal(pier_buffer_map(buffer, &mapped), 0);
	for (int i = 0; i < 50; i++) {
		size_t offset = test_random_below(random, length + 1);
		size_t part = test_random_below(random, length - offset + 1);

		for (size_t j = 0; j < part; j++)
			model[offset + j] = in[j] = (unsigned char)test_random_next(
				random);
		assert_int_equal(pier_buffer_copy_to(buffer, offset, in, part), 0);
		assert_memory_equal(mapped, model, length);

		offset = test_random_below(random, length + 1);
		part = test_random_below(random, length - offset + 1);
		memset(out, 0xa5, length + 2 * GUARD);
		assert_int_equal(pier_buffer_copy_from(buffer, offset, out + GUARD, part),
				 0);
		assert_memory_equal(out + GUARD, model + offset, part);
		for (size_t j = 0; j < GUARD; j++) {
			assert_int_equal(out[j], 0xa5);
			assert_int_equal(out[GUARD + part + j], 0xa5);
		}
	}
	free(model);
	free(out);
	free(in);
}

static void copies_within_bounds(void **state)
{
	static const char *const specs[] = { "host", "memfd" };
	struct test_random random = test_random_start();

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct pier_buffer *buffer = alloc(specs[i], 9001);

		check_copies(buffer, &random);
		check_range_errors(buffer, 9001);
		assert_int_equal(pier_buffer_copy_to(buffer, 9001, NULL, 0), 0);
		assert_int_equal(pier_buffer_copy_from(buffer, 9001, NULL, 0), 0);
		assert_int_equal(pier_buffer_free(buffer), 0);
	}
}

/* The dma-buf holds the bytes of the range, at its offset. */
static void check_export(struct pier_buffer *buffer, size_t offset, size_t length)
{
	size_t page = pier_host_page();
	size_t whole = (pier_buffer_length(buffer) + page - 1) / page * page;
	struct pier_dmabuf dmabuf;
	void *through, *direct;
	off_t size;

	assert_int_equal(
		pier_dmabuf_export(buffer, offset, length, PIER_MAPPING_AUTO, &dmabuf),
		0);
	assert_true(dmabuf.fd >= 0);
	assert_int_equal(fcntl(dmabuf.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(dmabuf.length, length);
	assert_int_equal(dmabuf.iova, pier_buffer_address(buffer) + offset);
	assert_true(pier_page_agree(dmabuf.offset, dmabuf.iova, page));
	size = lseek(dmabuf.fd, 0, SEEK_END);
	assert_int_equal(size, whole);
	assert_true(dmabuf.offset + length <= (uint64_t)size);

	through = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.fd, 0);
	assert_ptr_not_equal(through, MAP_FAILED);
	assert_int_equal(pier_buffer_map(buffer, &direct), 0);
	assert_memory_equal((char *)through + dmabuf.offset, (char *)direct + offset,
			    length);
	munmap(through, whole);
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(dmabuf.fd, -1);
}

static void exports_ranges(void **state)
{
	struct test_random random = test_random_start();
	size_t page = pier_host_page(), length = 5 * page + 123;
	struct pier_buffer *buffer = alloc("memfd", length);
	void *mapped;

	(void)state;
	assert_int_equal(pier_buffer_map(buffer, &mapped), 0);
	for (size_t i = 0; i < length; i++)
		((char *)mapped)[i] = (char)test_random_next(&random);
	check_export(buffer, 0, length);
	check_export(buffer, 0, 1);
	check_export(buffer, length - 1, 1);
	check_export(buffer, page, page);
	check_export(buffer, page - 1, 2);
	for (int i = 0; i < 50; i++) {
		size_t offset = test_random_below(&random, length);

		check_export(buffer, offset,
			     1 + test_random_below(&random, length - offset));
	}
	assert_int_equal(pier_buffer_free(buffer), 0);
}

/* This process writes through its mapping; the fd gives others the right to read. */
static void readonly_memfd_is_written_here_only(void **state)
{
	struct pier_buffer *buffer = alloc("memfd:readonly", 100);
	struct pier_dmabuf dmabuf;
	char text[5] = "";

	(void)state;
	assert_int_equal(pier_buffer_copy_to(buffer, 10, "text", 5), 0);
	assert_int_equal(pier_dmabuf_export(buffer, 0, 100, PIER_MAPPING_AUTO, &dmabuf),
			 0);
	assert_int_equal(pread(dmabuf.fd, text, 5, (off_t)dmabuf.offset + 10), 5);
	assert_string_equal(text, "text");
	assert_int_equal(pwrite(dmabuf.fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_ptr_equal(
		mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.fd, 0),
		MAP_FAILED);
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void refuses_invalid_exports(void **state)
{
	struct pier_buffer *buffer = alloc("host", 100);
	struct pier_dmabuf dmabuf = { .fd = -7, .offset = 5 };

	(void)state;
	assert_int_equal(pier_dmabuf_export(buffer, 0, 0, PIER_MAPPING_AUTO, &dmabuf),
			 -EINVAL);
	test_assert_sentence("length is 0");
	assert_int_equal(pier_dmabuf_export(buffer, 0, 100, PIER_MAPPING_AUTO, &dmabuf),
			 -EOPNOTSUPP);
	test_assert_sentence("host: memory of this backend has no dma-buf");
	assert_int_equal(pier_dmabuf_export(buffer, 99, 2, PIER_MAPPING_AUTO, &dmabuf),
			 -ERANGE);
	assert_int_equal(dmabuf.fd, -7);
	assert_int_equal(dmabuf.offset, 5);
	assert_int_equal(pier_buffer_free(buffer), 0);

	dmabuf.fd = -1;
	pier_dmabuf_close(&dmabuf);
	pier_dmabuf_close(NULL);
}

static void refuses_to_free_a_busy_buffer(void **state)
{
	struct pier_buffer *buffer = alloc("memfd", 100);
	struct pier_dmabuf first, second;

	(void)state;
	assert_int_equal(pier_dmabuf_export(buffer, 0, 100, PIER_MAPPING_AUTO, &first),
			 0);
	assert_int_equal(pier_dmabuf_export(buffer, 50, 1, PIER_MAPPING_AUTO, &second),
			 0);
	assert_int_equal(pier_object_count(PIER_OBJECT_DMABUF), 2);
	assert_int_equal(pier_buffer_free(buffer), -EBUSY);
	test_assert_sentence("it still has 2 dma-bufs");
	pier_dmabuf_close(&first);
	pier_dmabuf_close(&first);
	assert_int_equal(pier_buffer_free(buffer), -EBUSY);
	pier_buffer_hold(buffer);
	pier_dmabuf_close(&second);
	assert_int_equal(pier_buffer_free(buffer), -EBUSY);
	/* Nothing was changed. */
	assert_int_equal(pier_buffer_copy_to(buffer, 99, "x", 1), 0);
	pier_buffer_unhold(buffer);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void refuses_invalid_wraps(void **state)
{
	struct pier_buffer *inner = alloc("memfd", 3 * pier_host_page());
	struct pier_buffer *buffer = (struct pier_buffer *)0x1;
	size_t length = pier_buffer_length(inner);
	void *mapped;

	(void)state;
	assert_int_equal(pier_buffer_map(inner, &mapped), 0);
	assert_int_equal(pier_buffer_wrap(NULL, 1, &buffer), -EINVAL);
	test_assert_sentence("NULL");
	assert_int_equal(pier_buffer_wrap(mapped, 0, &buffer), -EINVAL);
	test_assert_sentence("the length is 0");
	assert_int_equal(pier_buffer_wrap(mapped, SIZE_MAX, &buffer), -EINVAL);
	test_assert_sentence("past the end of the addresses");
	assert_int_equal(pier_buffer_wrap((void *)UINTPTR_MAX, 1, &buffer), -EINVAL);
	assert_int_equal(pier_buffer_wrap(mapped, length + 1, &buffer), -ERANGE);
	test_assert_sentence("leave their allocation of memfd");
	assert_int_equal(pier_buffer_wrap((char *)mapped + length - 1, 2, &buffer),
			 -ERANGE);
	assert_ptr_equal(buffer, (void *)0x1);
	assert_int_equal(pier_buffer_free(inner), 0);
}

static void wraps_host_memory(void **state)
{
	size_t page = pier_host_page();
	/* Whole pages: freeing them by mistake would unmap them. */
	char *bytes = mmap(NULL, page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pier_buffer *buffer;
	struct pier_dmabuf dmabuf;
	void *mapped;

	(void)state;
	assert_ptr_not_equal(bytes, MAP_FAILED);
	assert_int_equal(pier_buffer_wrap(bytes, page, &buffer), 0);
	assert_string_equal(test_buffer_info(buffer).backend, "host");
	assert_int_equal(pier_buffer_map(buffer, &mapped), 0);
	assert_ptr_equal(mapped, bytes);
	assert_int_equal(pier_buffer_copy_to(buffer, page - 2, "xy", 2), 0);
	assert_int_equal(pier_buffer_copy_to(buffer, page - 1, "xy", 2), -ERANGE);
	assert_int_equal(pier_dmabuf_export(buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf),
			 -EOPNOTSUPP);
	assert_int_equal(pier_buffer_free(buffer), 0);
	assert_int_equal(msync(bytes, page, MS_ASYNC), 0); /* ENOMEM: unmapped */
	assert_int_equal(bytes[page - 1], 'y');
	munmap(bytes, page);
}

/* A pointer into a buffer belongs to that backend and outlives the buffer. */
static void wraps_part_of_a_buffer(void **state)
{
	size_t page = pier_host_page();
	struct pier_buffer *outer = alloc("memfd", 4 * page);
	struct pier_buffer *inner;
	struct pier_dmabuf dmabuf;
	char byte = 0;
	void *mapped;

	(void)state;
	assert_int_equal(pier_buffer_map(outer, &mapped), 0);
	((char *)mapped)[page + 7] = 'z';
	assert_int_equal(pier_buffer_wrap((char *)mapped + page + 7, page, &inner), 0);
	assert_string_equal(test_buffer_info(inner).backend, "memfd");
	assert_int_equal(pier_buffer_address(inner),
			 pier_buffer_address(outer) + page + 7);
	assert_int_equal(pier_buffer_free(outer), 0);

	assert_int_equal(pier_buffer_map(inner, &mapped), 0);
	assert_int_equal(*(char *)mapped, 'z');
	assert_int_equal(pier_buffer_copy_from(inner, 0, &byte, 1), 0);
	assert_int_equal(byte, 'z');
	assert_int_equal(
		pier_dmabuf_export(inner, 1, page - 1, PIER_MAPPING_AUTO, &dmabuf), 0);
	assert_int_equal(dmabuf.offset, page + 8);
	assert_int_equal(dmabuf.iova, pier_buffer_address(inner) + 1);
	assert_int_equal(pread(dmabuf.fd, &byte, 1, (off_t)dmabuf.offset - 1), 1);
	assert_int_equal(byte, 'z');
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(pier_buffer_free(inner), 0);
	/* No backend owns it now: the next mapping there would be plain host memory. */
	assert_int_equal(pier_buffer_wrap(mapped, 1, &inner), 0);
	assert_string_equal(test_buffer_info(inner).backend, "host");
	assert_int_equal(pier_buffer_free(inner), 0);
}

static void set_fd_limit(rlim_t limit)
{
	struct rlimit now;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
	now.rlim_cur = limit;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
}

static void survives_running_out_of_fds(void **state)
{
	struct pier_buffer *buffer = alloc("memfd", 100), *other = (void *)0x1;
	struct pier_dmabuf dmabuf = { .fd = -7 };
	struct rlimit before;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	set_fd_limit(3); /* at most the standard streams, which are open */
	assert_int_equal(pier_dmabuf_export(buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf),
			 -EMFILE);
	assert_int_equal(pier_buffer_alloc("memfd", 1, &other), -EMFILE);
	set_fd_limit(before.rlim_cur);
	test_assert_sentence("Too many open files");
	assert_int_equal(dmabuf.fd, -7);
	assert_ptr_equal(other, (void *)0x1);
	/* A failed export neither keeps the buffer busy nor is remembered. */
	assert_int_equal(pier_dmabuf_export(buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf), 0);
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

/* One cycle; every odd one fails at some step. */
static void cycle(struct test_random *random, bool fails)
{
	size_t length = 1 + test_random_below(random, 100000);
	uint64_t way = fails ? test_random_below(random, 5) : 5;
	struct pier_buffer *buffer = NULL, *wrapped;
	struct pier_dmabuf dmabuf = { .fd = -1 };
	struct rlimit limit;
	void *mapped;

	if (way == 0) {
		assert_int_equal(pier_buffer_alloc("memfd:no", length, &buffer), -EINVAL);
		return;
	}
	buffer = alloc(way == 1 ? "host" : "memfd", length);
	assert_int_equal(pier_buffer_map(buffer, &mapped), 0);
	if (way == 1)
		assert_int_equal(
			pier_dmabuf_export(buffer, 0, length, PIER_MAPPING_AUTO, &dmabuf),
			-EOPNOTSUPP);
	if (way == 2)
		assert_int_equal(
			pier_dmabuf_export(buffer, length, 1, PIER_MAPPING_AUTO, &dmabuf),
			-ERANGE);
	if (way == 3) {
		getrlimit(RLIMIT_NOFILE, &limit);
		set_fd_limit(3);
		assert_int_equal(
			pier_dmabuf_export(buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf),
			-EMFILE);
		set_fd_limit(limit.rlim_cur);
	}
	if (way == 4)
		assert_int_equal(pier_buffer_wrap(mapped, length + 200000, &wrapped),
				 -ERANGE);
	if (way == 5) {
		assert_int_equal(pier_buffer_wrap(mapped, length, &wrapped), 0);
		assert_int_equal(pier_dmabuf_export(wrapped, 0, length, PIER_MAPPING_AUTO,
						    &dmabuf),
				 0);
		assert_int_equal(pier_buffer_free(wrapped), -EBUSY);
		pier_dmabuf_close(&dmabuf);
		assert_int_equal(pier_buffer_free(wrapped), 0);
	}
	assert_int_equal(dmabuf.fd, -1);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void cycles_leave_nothing_behind(void **state)
{
	struct test_random random = test_random_start();

	(void)state;
	for (int i = 0; i < 1000; i++)
		cycle(&random, i % 2 == 1);
}

/* Success must not clear the last error; errno behaves the same way. */
static void success_keeps_the_last_error(void **state)
{
	struct pier_buffer *buffer, *wrapped;
	struct pier_dmabuf dmabuf;
	char bytes[8] = "";

	(void)state;
	check_alloc_fails("host", 0, EINVAL, "length is 0");
	buffer = alloc("memfd", 100);
	assert_int_equal(pier_buffer_copy_to(buffer, 0, bytes, 8), 0);
	assert_int_equal(pier_dmabuf_export(buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf), 0);
	pier_dmabuf_close(&dmabuf);
	assert_int_equal(pier_buffer_wrap(bytes, 8, &wrapped), 0);
	assert_int_equal(pier_buffer_free(wrapped), 0);
	assert_int_equal(pier_buffer_free(buffer), 0);
	test_assert_sentence("length is 0");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, before_test, after_test)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(refuses_invalid_allocations),
		TEST(allocates_huge_pages),
		TEST(refuses_unavailable_backends),
		TEST(returns_what_was_allocated),
		TEST(copies_within_bounds),
		TEST(exports_ranges),
		TEST(readonly_memfd_is_written_here_only),
		TEST(refuses_invalid_exports),
		TEST(refuses_to_free_a_busy_buffer),
		TEST(refuses_invalid_wraps),
		TEST(wraps_host_memory),
		TEST(wraps_part_of_a_buffer),
		TEST(survives_running_out_of_fds),
		TEST(cycles_leave_nothing_behind),
		TEST(success_keeps_the_last_error),
	};

	unsetenv("PIER_BACKEND_PATH");
	return cmocka_run_group_tests_name("buffer", tests, NULL, NULL);
}
