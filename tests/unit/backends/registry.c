/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/plugins.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <pier/buffer.h>
#include <pier/version.h>

#include "backends/backend.h"

static char folder[] = "/tmp/pier-unit-XXXXXX";

static void fill_folder(const char *good, const char *bad)
{
	static const char *const refused[] = {
		"abi1",	     "bad_name", "long_name", "no_alloc", "no_export",
		"no_symbol", "refuses",	 "taken",     "tiny",	  "wrong_abi",
	};
	char path[128];
	FILE *file;

	assert_int_equal(mkdir(good, 0755), 0);
	assert_int_equal(mkdir(bad, 0755), 0);
	test_link_plugin(good, "arena");
	test_link_plugin(good, "cut");
	test_link_plugin(good, "small");
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		test_link_plugin(bad, refused[i]);
	test_link_plugin(bad, "arena"); /* a second time */

	snprintf(path, sizeof(path), "%s/garbage.so", bad);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("\x7f"
	      "EL, not quite",
	      file);
	fclose(file);
	snprintf(path, sizeof(path), "%s/fifo.so", bad);
	assert_int_equal(mkfifo(path, 0644), 0);
	snprintf(path, sizeof(path), "%s/folder.so", bad);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/gone.so", bad);
	assert_int_equal(symlink("/nowhere", path), 0);
	/* Not tried: another suffix. */
	snprintf(path, sizeof(path), "%s/README", bad);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
}

/* The registry reads the variable once, so set it before everything else. */
static int make_folder(void **state)
{
	char good[64], bad[64], path[256];

	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(good, sizeof(good), "%s/a", folder);
	snprintf(bad, sizeof(bad), "%s/b", folder);
	fill_folder(good, bad);
	/* Empty entries do not mean the working directory. */
	snprintf(path, sizeof(path), ":%s::%s:%s/missing:", good, bad, folder);
	return setenv("PIER_BACKEND_PATH", path, 1);
}

static int remove_folder(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

static const struct {
	const char *name;
	const char *detail; /* part of the sentence; NULL: it was loaded */
	const char *origin; /* path below the folder */
} expected[] = {
	{ "host", NULL, "" },
	{ "memfd", NULL, "" },
	{ "udmabuf", NULL, "" },
	{ "dma_heap", NULL, "" },
#ifdef PIER_HAVE_CUDA
	{ "cuda", NULL, "" },
#endif
#ifdef PIER_HAVE_HIP
	{ "hip", NULL, "" },
#endif
#ifdef PIER_HAVE_LEVEL_ZERO
	{ "level_zero", NULL, "" },
#endif
	{ "arena", NULL, "/a/arena.so" },
	{ "cut", NULL, "/a/cut.so" },
	{ "small", NULL, "/a/small.so" },
	{ "abi1",
	  "it has backend ABI 1 (symbol pier_backend), and this library, "
	  "pier " PIER_VERSION ", "
	  "has 2",
	  "/b/abi1.so" },
	{ "arena", "a backend named arena is already registered (", "/b/arena.so" },
	{ "bad_name", "not 1 to 31 letters, digits and _", "/b/bad_name.so" },
	{ "fifo", "not a regular file", "/b/fifo.so" },
	{ "folder", "not a regular file", "/b/folder.so" },
	{ "garbage", "garbage.so", "/b/garbage.so" },
	{ "gone", "No such file or directory", "/b/gone.so" },
	{ "long_name", "not 1 to 31 letters, digits and _", "/b/long_name.so" },
	{ "no_alloc", "its table has no alloc", "/b/no_alloc.so" },
	{ "no_export", "its table has no export_range", "/b/no_export.so" },
	{ "no_symbol", "it has no symbol pier_backend_get", "/b/no_symbol.so" },
	{ "refuses", "it refuses version ", "/b/refuses.so" },
	{ "taken", "a backend named memfd is already registered (a built-in",
	  "/b/taken.so" },
	{ "tiny", "its table has 8 bytes", "/b/tiny.so" },
	{ "wrong_abi",
	  "it has backend ABI 999, and this library, pier " PIER_VERSION ", has 2",
	  "/b/wrong_abi.so" },
	{ "missing", "PIER_BACKEND_PATH names this folder: No such file", "/missing" },
};

static void lists_plugins_with_reasons(void **state)
{
	struct pier_backend_info *list;
	uint32_t count, arena = 0;

	(void)state;
	assert_int_equal(pier_backend_list(&list, &count, sizeof(*list)), 0);
	for (size_t i = 0; i < count && i < sizeof(expected) / sizeof(expected[0]); i++) {
		assert_string_equal(list[i].name, expected[i].name);
		if (expected[i].origin[0]) {
			assert_memory_equal(list[i].origin, folder, strlen(folder));
			assert_string_equal(list[i].origin + strlen(folder),
					    expected[i].origin);
		} else {
			assert_string_equal(list[i].origin, "");
		}
		if (!expected[i].detail)
			continue;
		assert_false(list[i].available);
		assert_string_equal(list[i].description, "could not be loaded");
		if (!strstr(list[i].detail, expected[i].detail))
			fail_msg("%s: %s", list[i].name, list[i].detail);
	}
	assert_int_equal(count, sizeof(expected) / sizeof(expected[0]));
	while (strcmp(list[arena].name, "arena") != 0)
		arena++;
	assert_true(list[arena].available);
	assert_string_equal(list[arena].detail, "16 slots of 256 KiB");
	free(list);
}

static void finds_backends_by_name(void **state)
{
	struct pier_buffer *buffer;

	(void)state;
	assert_ptr_equal(pier_find_backend("memfd", 5), &pier_memfd_backend);
	assert_null(pier_find_backend("memfd", 4));
	assert_null(pier_find_backend("memfdx", 6));
	assert_null(pier_find_backend("wrong_abi", 9));
	assert_int_equal(pier_buffer_alloc("wrong_abi", 1, &buffer), -ENOENT);
	test_assert_sentence("; there are: host, memfd, udmabuf, dma_heap, ");
	test_assert_sentence(
		"arena, cut, small; 16 more in PIER_BACKEND_PATH could not be "
		"loaded");
}

/* Bytes beyond the size of the object's table are not read. */
static void accepts_smaller_tables(void **state)
{
	struct pier_buffer *buffer;
	struct pier_dmabuf dmabuf;
	char byte = 0;

	(void)state;
	assert_null(pier_find_backend("small", 5)->copy_to);
	/* Half a pointer is not read either. */
	assert_null(pier_find_backend("cut", 3)->copy_to);
	assert_int_equal(pier_buffer_alloc("small", 10, &buffer), 0);
	assert_int_equal(pier_buffer_copy_to(buffer, 9, "x", 1), 0);
	assert_int_equal(pier_buffer_copy_from(buffer, 9, &byte, 1), 0);
	assert_int_equal(byte, 'x');
	assert_int_equal(pier_dmabuf_export(buffer, 0, 1, PIER_MAPPING_AUTO, &dmabuf),
			 -EOPNOTSUPP);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

static void fill_arena(void)
{
	struct pier_buffer *slots[17];
	int result = 0;
	size_t count;

	for (count = 0; count < 17 && result == 0; count++)
		result = pier_buffer_alloc("arena", 1, &slots[count]);
	assert_int_equal(result, -ENOMEM);
	test_assert_sentence("allocating 1 bytes of arena: all 16 slots of the arena");
	for (count--; count > 0; count--)
		assert_int_equal(pier_buffer_free(slots[count - 1]), 0);
}

/* The example: its dma-bufs begin at some offset of the arena's fd. */
static void loads_the_example(void **state)
{
	struct pier_buffer *first, *second, *wrapped;
	struct pier_dmabuf dmabuf;
	struct test_census before;
	char byte = 0;
	void *mapped;

	(void)state;
	fill_arena();
	before = test_take_census(); /* The arena itself stays. */
	assert_int_equal(pier_buffer_alloc("arena:1", 1, &first), -EINVAL);
	assert_int_equal(pier_buffer_alloc("arena", (256 << 10) + 1, &first), -E2BIG);
	test_assert_sentence("262144 bytes");
	assert_int_equal(pier_buffer_alloc("arena", 100, &first), 0);
	assert_int_equal(pier_buffer_alloc("arena", 70000, &second), 0);
	assert_int_equal(pier_buffer_copy_to(second, 69999, "q", 1), 0);
	assert_int_equal(pier_dmabuf_export(second, 69999, 1, PIER_MAPPING_AUTO, &dmabuf),
			 0);
	assert_int_equal(dmabuf.offset, (256 << 10) + 69999);
	assert_int_equal(pread(dmabuf.fd, &byte, 1, (off_t)dmabuf.offset), 1);
	assert_int_equal(byte, 'q');
	pier_dmabuf_close(&dmabuf);

	assert_int_equal(pier_buffer_map(second, &mapped), 0);
	assert_int_equal(pier_buffer_wrap((char *)mapped + 1, 10, &wrapped), 0);
	assert_string_equal(test_buffer_info(wrapped).backend, "arena");
	assert_int_equal(pier_buffer_free(wrapped), 0);
	assert_int_equal(pier_buffer_free(second), 0);
	assert_int_equal(pier_buffer_free(first), 0);
	test_assert_census(&before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_plugins_with_reasons),
		cmocka_unit_test(finds_backends_by_name),
		cmocka_unit_test(accepts_smaller_tables),
		cmocka_unit_test(loads_the_example),
	};

	return cmocka_run_group_tests_name("registry", tests, make_folder, remove_folder);
}
