/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/census.h"
#include "../support/expect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "driver.h"

struct gpu gpu;

/* Prints a TAP plan without cases, and the reason for people. */
void gpu_skip_program(const char *reason)
{
	printf("skip: %s\n1..0 # skip %s\n", reason, reason);
	exit(GPU_SKIPPED);
}

void gpu_choose_device(void)
{
	const char *chosen = getenv("PIER_GPU_DEVICE");

	gpu.device = chosen ? atoi(chosen) : 0;
	if (gpu.device >= 0 && gpu.device < gpu.count)
		return;
	fprintf(stderr, "PIER_GPU_DEVICE=%s: there are %d devices\n", chosen, gpu.count);
	exit(1);
}

void gpu_open(void)
{
	const char *backend = getenv("PIER_GPU_BACKEND");

	setvbuf(stdout, NULL, _IOLBF, 0);
	gpu.vendor = &gpu_cuda;
	if (backend && strcmp(backend, gpu_hip.name) == 0) {
		gpu.vendor = &gpu_hip;
	} else if (backend && strcmp(backend, gpu_cuda.name) != 0) {
		fprintf(stderr, "PIER_GPU_BACKEND=%s: neither cuda nor hip\n", backend);
		exit(1);
	}
	gpu.vendor->open();
}

void gpu_open_cuda(void)
{
	gpu_open();
	if (gpu.vendor != &gpu_cuda)
		gpu_skip_program("a test of CUDA alone");
}

void gpu_push(void)
{
	gpu.vendor->push();
}

void gpu_pop(void)
{
	gpu.vendor->pop();
}

void gpu_check(unsigned int error, const char *call)
{
	if (error)
		fail_msg("%s: %s", call, gpu_error(error));
}

const char *gpu_error(unsigned int error)
{
	static char number[24];
	const char *name = error ? gpu.vendor->error(error) : "ok";

	if (name)
		return name;
	snprintf(number, sizeof(number), "error %u", error);
	return number;
}

const char *gpu_spec(const char *rest)
{
	static char spec[64];

	snprintf(spec, sizeof(spec), "%s:%d%s", gpu.vendor->name, gpu.device, rest);
	return spec;
}

void gpu_say(const char *format, ...)
{
	va_list args;

	if (gpu.silent)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

void gpu_read_line(const char *path, const char *part, char *ret_line, size_t size)
{
	FILE *file = fopen(path, "re");

	ret_line[0] = '\0';
	while (file && fgets(ret_line, (int)size, file) && !strstr(ret_line, part))
		ret_line[0] = '\0';
	if (file)
		fclose(file);
	ret_line[strcspn(ret_line, "\n")] = '\0';
}

/* Each line is "START END FLAGS". sysfs has the address in lower case. */
void gpu_say_bars(const char *pci)
{
	unsigned long long start, end, flags;
	char path[96], line[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource", pci);
	for (char *c = path; *c; c++)
		*c = (char)(*c >= 'A' && *c <= 'F' ? *c + 'a' - 'A' : *c);
	file = fopen(path, "re");
	if (!file) {
		gpu_say("BARs: %s is not there", path);
		return;
	}
	for (int i = 0; i < 6 && fgets(line, sizeof(line), file); i++) {
		if (sscanf(line, "%llx %llx %llx", &start, &end, &flags) == 3 && end)
			gpu_say("PCI resource %d: %llu MiB", i, (end - start + 1) >> 20);
	}
	fclose(file);
}

void gpu_skip(const char *format, ...)
{
	char reason[256];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	print_message("skip: %s\n", reason);
	skip();
}

void gpu_run_steady(void (*body)(void *argument), void *argument)
{
	struct test_census census;

	body(argument);
	census = test_take_census();
	gpu.silent = true;
	for (int i = 0; i < 2; i++)
		body(argument);
	gpu.silent = false;
	test_assert_census(&census);
}

/* If pier chooses none, there is a reason, which gpu_facts prints. */
int gpu_open_device(bool peer, struct pier_device **ret_device)
{
	const char *nic = peer ? getenv("PIER_GPU_PEER_NIC") : NULL;
	int error;

	if (!nic)
		nic = getenv("PIER_GPU_NIC");
	error = pier_device_open(nic, ret_device);
	if (error == -ENODEV && !nic)
		error = pier_device_open(PIER_SOFT_DEVICE, ret_device);
	return error;
}

int gpu_open_nic(void **state)
{
	(void)state;
	expect_ok(gpu_open_device(false, &gpu.nic));
	expect_ok(pier_pd_alloc(gpu.nic, &gpu.pd));
	return 0;
}

int gpu_close_nic(void **state)
{
	(void)state;
	expect_ok(pier_pd_dealloc(gpu.pd));
	expect_ok(pier_device_close(gpu.nic));
	return 0;
}

static struct test_census before;

static void check_clean(void)
{
	if (gpu.vendor->check_clean)
		gpu.vendor->check_clean();
}

int gpu_setup(void **state)
{
	(void)state;
	gpu.silent = false;
	before = test_take_census();
	check_clean();
	return 0;
}

/* gpu_run_steady() checks the fds. */
int gpu_teardown(void **state)
{
	(void)state;
	before.fds = test_count_fds();
	test_assert_census(&before);
	check_clean();
	return 0;
}
