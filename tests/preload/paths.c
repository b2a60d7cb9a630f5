/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which paths exist for a program with PIER_PRELOAD=peermem, linked with libpier-dmabuf.
 * Usage: paths ANSWERS, which is 1 if the environment lets the library answer.
 */
#include "tests/support/cmocka.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/cuda/api.h"
#include "tests/fakes/cuda/control.h"

enum {
	UNTOUCHED = 4711, /* an errno of nothing */
};

static const char *const answered[] = {
	"/sys/kernel/mm/memory_peers/nv_mem/version",
	"/sys/kernel/mm/memory_peers/nv_mem_nc/version",
	"/sys/kernel/mm/memory_peers/nvidia-peermem/version",
	"/sys/module/nv_peer_mem/version",
	"/sys/module/nvidia_peermem/version",
};
/* Not the five. */
static const char *const others[] = {
	"",
	"/",
	"/dev/null",
	"/sys/module/nvidia_peermem",
	"/sys/module/nvidia_peermem/",
	"/sys/module/nvidia_peermem/version/",
	"/sys/module/nvidia_peermem/version2",
	"/sys/module/nvidia_peermem/refcnt",
	"/sys/module//nvidia_peermem/version",
	"/sys/module/nvidia-peermem/version",
	"/sys/kernel/mm/memory_peers",
	"/sys/kernel/mm/memory_peers/amd_mem/version",
	"/proc/driver/nvidia-peermem",
	"sys/module/nvidia_peermem/version",
};

static bool answers; /* the library may answer */
static struct fake_cuda *fake;
static CUresult (*init)(unsigned int flags);

/* The errno of the kernel's answer, or 0. */
static int kernel_says(const char *path, int mode)
{
	return syscall(SYS_faccessat, AT_FDCWD, path, mode) == 0 ? 0 : errno;
}

static void assert_access(const char *path, int mode, int expected)
{
	int result, error;

	errno = UNTOUCHED;
	result = access(path, mode);
	error = errno;
	if (result != (expected ? -1 : 0) || error != (expected ? expected : UNTOUCHED))
		fail_msg("access(\"%s\", %d): %d, errno %d, and not %d", path, mode,
			 result, error, expected);
}

/* All five, whatever module this machine has. */
static void assert_five(bool found)
{
	for (size_t i = 0; i < sizeof(answered) / sizeof(answered[0]); i++) {
		int expected = found ? 0 : kernel_says(answered[i], F_OK);

		assert_access(answered[i], F_OK, expected);
		assert_access(answered[i], R_OK, expected);
		/* Nobody can write it or execute it. */
		assert_access(answered[i], X_OK, kernel_says(answered[i], X_OK));
		assert_access(answered[i], R_OK | W_OK,
			      kernel_says(answered[i], R_OK | W_OK));
	}
}

static void no_driver_no_answer(void **state)
{
	(void)state;
	assert_five(false);
	assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

/* A look at a file does not initialise the driver. */
static void a_driver_that_nobody_initialised_is_left_alone(void **state)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	struct fake_cuda *(*find)(void);

	(void)state;
	assert_non_null(driver);
	*(void **)&find = dlsym(driver, "fake_cuda_control");
	*(void **)&init = dlsym(driver, "cuInit");
	assert_true(find && init);
	fake = find();
	assert_five(false);
	assert_int_equal(fake_cuda_call(fake, "cuInit")->calls, 0);
}

static void a_driver_that_exports_is_an_answer(void **state)
{
	(void)state;
	assert_int_equal(init(0), CUDA_SUCCESS);
	assert_five(answers);
	assert_int_equal(fake->live[FAKE_CUDA_PRIMARY], 0);
}

/* Host memory still works there; a registration would fail. */
static void a_device_that_exports_nothing_is_none(void **state)
{
	(void)state;
	fake->devices = 2;
	fake->device[1].dmabuf = false;
	assert_five(false);
	fake->restore();
	assert_five(answers);
}

static void other_paths_are_the_kernels(void **state)
{
	const char *nowhere = (const char *)1;

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		for (int mode = 0; mode <= (R_OK | W_OK | X_OK); mode++)
			assert_access(others[i], mode, kernel_says(others[i], mode));
	errno = 0;
	assert_int_equal(access(nowhere, F_OK), -1);
	assert_int_equal(errno, EFAULT);
}

static void other_calls_are_the_kernels(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(answered) / sizeof(answered[0]); i++) {
		const char *path = answered[i];
		int expected = kernel_says(path, F_OK) ? -1 : 0, fd;
		struct stat file;

		assert_int_equal(faccessat(AT_FDCWD, path, F_OK, 0), expected);
		assert_int_equal(faccessat(AT_FDCWD, path, F_OK, AT_EACCESS), expected);
		assert_int_equal(euidaccess(path, F_OK), expected);
		assert_int_equal(eaccess(path, F_OK), expected);
		assert_int_equal(stat(path, &file), expected);
		assert_int_equal(lstat(path, &file), expected);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		assert_int_equal(fd < 0 ? -1 : 0, expected);
		if (fd >= 0)
			close(fd);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_driver_no_answer),
		cmocka_unit_test(a_driver_that_nobody_initialised_is_left_alone),
		cmocka_unit_test(a_driver_that_exports_is_an_answer),
		cmocka_unit_test(a_device_that_exports_nothing_is_none),
		cmocka_unit_test(other_paths_are_the_kernels),
		cmocka_unit_test(other_calls_are_the_kernels),
	};

	if (argc != 2)
		return 2;
	answers = strcmp(argv[1], "1") == 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
