/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The driver: not loaded, not initialised, without devices, in every version, and in
 * children of fork(2). A process keeps its driver for life, so each case runs in a child.
 */
#include "cuda_fixture.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
	HANGS_AFTER_S = 60, /* far more than it needs */
};

struct fake_cuda_calls app;

/* In children, cmocka would go on with its other tests. */
#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: not: %s; last error: %s\n", __FILE__, \
				__LINE__, #condition, pier_error_message());          \
			_exit(1);                                                     \
		}                                                                     \
	} while (0)
#define CHECK_RESULT(call, expected)                                                \
	do {                                                                        \
		int result_ = (call);                                               \
                                                                                    \
		if (result_ != (expected)) {                                        \
			fprintf(stderr, "%s:%d: %s = %d: %s\n", __FILE__, __LINE__, \
				#call, result_, pier_error_message());              \
			_exit(1);                                                   \
		}                                                                   \
	} while (0)
#define CHECK_SENTENCE(part) CHECK(strstr(pier_error_message(), (part)))

static void run_in_child(void (*body)(void))
{
	int status = -1;
	pid_t child;

	fflush(NULL);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		alarm(HANGS_AFTER_S);
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status))
		fail_msg("the child hung, or died: signal %d", WTERMSIG(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* The driver that reports this version. */
static void be_of_version(const char *version)
{
	setenv("FAKE_CUDA_VERSION", version, 1);
	CHECK(fake_cuda_load(&app));
}

static bool is_loaded(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

	if (library)
		dlclose(library);
	return library;
}

/* Memory of the application, whatever the driver supports. */
static uint64_t allocate(size_t length)
{
	CUdeviceptr address = 0;
	CUcontext context;

	CHECK_RESULT(app.cuInit(0), CUDA_SUCCESS);
	CHECK_RESULT(app.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	CHECK_RESULT(app.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	CHECK_RESULT(app.cuMemAlloc_v2(&address, length), CUDA_SUCCESS);
	CHECK_RESULT(app.cuCtxPopCurrent_v2(&context), CUDA_SUCCESS);
	return address;
}

/* Wrapping a host pointer loads nothing and initialises nothing. */
static void stay_away(void)
{
	struct pier_memory memory;
	struct pier_buffer *buffer;
	uint64_t identity;
	char plain[8];
	int count;

	CHECK_RESULT(call_find(cuda, (uintptr_t)plain, 1, &memory), -ENOENT);
	CHECK_RESULT(call_find(cuda, (uintptr_t)plain, 8, &memory), -ENOENT);
	CHECK_RESULT(cuda->identity((uintptr_t)plain, &identity), -ENOENT);
	CHECK_RESULT(pier_buffer_wrap(plain, sizeof(plain), &buffer), 0);
	CHECK(strcmp(test_buffer_info(buffer).backend, "host") == 0);
	CHECK_RESULT(pier_buffer_free(buffer), 0);
	CHECK(!is_loaded());
	/* Loaded, as by a program that links with it, but not used. */
	CHECK(fake_cuda_load(&app));
	CHECK_RESULT(call_find(cuda, (uintptr_t)plain, 1, &memory), -ENOENT);
	CHECK_RESULT(cuda->identity((uintptr_t)plain, &identity), -ENOENT);
	CHECK_RESULT(app.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

static void leaves_an_unused_driver_alone(void **state)
{
	(void)state;
	run_in_child(stay_away);
}

/* From here on opening a file kills the process. */
static void forbid_files(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* No driver is loaded: the disk is not searched. */
static void look_nowhere(void)
{
	struct pier_memory memory;
	uint64_t identity;
	char plain[8];

	forbid_files();
	for (int again = 0; again < 3; again++) {
		CHECK_RESULT(call_find(cuda, (uintptr_t)plain, 1, &memory), -ENOENT);
		CHECK_RESULT(cuda->identity((uintptr_t)plain, &identity), -ENOENT);
	}
}

/* A library loaded since then is found. */
static void load_later(void)
{
	struct pier_memory memory;
	char plain[8];

	CHECK_RESULT(call_find(cuda, (uintptr_t)plain, 1, &memory), -ENOENT);
	CHECK(fake_cuda_load(&app));
	CHECK_RESULT(call_find(cuda, allocate(FIXTURE_MIB), 1, &memory), 0);
	cuda->release(&memory);
}

static void uses_only_a_loaded_driver(void **state)
{
	(void)state;
	run_in_child(look_nowhere);
	run_in_child(load_later);
}

/* `pier info` initialises the driver, and creates no context. */
static void probe(void)
{
	struct pier_backend_unit unit;
	char detail[512];

	CHECK_RESULT(cuda->probe(detail, sizeof(detail)), 0);
	CHECK_RESULT(cuda->unit(1, &unit), 0);
	CHECK(fake_cuda_load(&app));
	CHECK(app.control->pushes == 0);
	CHECK(app.control->live[FAKE_CUDA_PRIMARY] == 0);
	CHECK(app.control->live[FAKE_CUDA_CONTEXT] == 0);
}

static void probe_creates_no_context(void **state)
{
	(void)state;
	run_in_child(probe);
}

/* The allocation's own context is used: no primary context is created beside it. */
static void own_context(void)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;
	CUdeviceptr address;
	CUcontext context;
	char byte = 1;

	CHECK(fake_cuda_load(&app));
	CHECK_RESULT(app.cuInit(0), CUDA_SUCCESS);
	CHECK_RESULT(app.cuCtxCreate_v2(&context, 0, 1), CUDA_SUCCESS);
	CHECK_RESULT(app.cuMemAlloc_v2(&address, 4 * FIXTURE_MIB), CUDA_SUCCESS);
	CHECK_RESULT(app.cuCtxPopCurrent_v2(&context), CUDA_SUCCESS);
	CHECK_RESULT(call_find(cuda, address + 5, 1, &memory), 0);
	CHECK_RESULT(cuda->copy_to(&memory, 5, &byte, 1), 0);
	CHECK_RESULT(call_export(cuda, &memory, address, pier_host_page(),
				 PIER_MAPPING_DEFAULT, &dmabuf),
		     0);
	cuda->close_export(&dmabuf);
	cuda->release(&memory);
	CHECK(app.control->live[FAKE_CUDA_PRIMARY] == 0);
	CHECK(app.control->current == 0);
}

static void uses_the_context_of_the_allocation(void **state)
{
	(void)state;
	run_in_child(own_context);
}

/* The very first use, while another thread captures: the capture continues. */
static void first_beside_capture(void)
{
	struct pier_memory memory;

	CHECK(fake_cuda_load(&app));
	CHECK_RESULT(app.cuInit(0), CUDA_SUCCESS);
	app.control->capturing = true;
	CHECK_RESULT(cuda->alloc("1", 1, &memory), 0);
	cuda->free(&memory);
	CHECK(app.control->breaks == 0);
}

static void first_use_does_not_end_a_capture(void **state)
{
	(void)state;
	run_in_child(first_beside_capture);
}

static unsigned int flags_of(CUcontext context)
{
	unsigned int flags = 0;

	CHECK_RESULT(app.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
	CHECK_RESULT(app.cuCtxGetFlags(&flags), CUDA_SUCCESS);
	CHECK_RESULT(app.cuCtxPopCurrent_v2(&context), CUDA_SUCCESS);
	return flags;
}

/* Contexts are made synchronous at their first use, and nothing is set later. */
static void synchronous_early(void)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct fake_cuda_call *set;
	struct pier_memory memory;
	CUcontext primary;

	CHECK(fake_cuda_load(&app));
	set = fake_cuda_call(app.control, "cuCtxSetFlags");
	CHECK_RESULT(cuda->alloc("0", 1, &memory), 0);
	CHECK(set->calls == 1);
	CHECK_RESULT(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	CHECK(flags_of(primary) == CU_CTX_SYNC_MEMOPS);
	cuda->free(&memory);
	CHECK_RESULT(cuda->alloc("0:vmm", 1, &memory), 0);
	CHECK_RESULT(call_export(cuda, &memory, memory.address, memory.length,
				 PIER_MAPPING_DEFAULT, &dmabuf),
		     0);
	cuda->close_export(&dmabuf);
	cuda->free(&memory);
	CHECK(set->calls == 1);
}

/* The runtime's context, and another one, when their memory is wrapped. */
static void synchronous_at_wrap(void)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	uint64_t address;
	CUmemGenericAllocationHandle handle;
	CUcontext primary, own;
	struct pier_memory memory;
	CUdeviceptr mapped;

	CHECK(fake_cuda_load(&app));
	address = allocate(4 * FIXTURE_MIB);
	CHECK_RESULT(app.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	CHECK_RESULT(call_find(cuda, address, 1, &memory), 0);
	CHECK(flags_of(primary) == CU_CTX_SYNC_MEMOPS);
	cuda->release(&memory);
	CHECK_RESULT(app.cuCtxCreate_v2(&own, 1, 0), CUDA_SUCCESS);
	CHECK_RESULT(app.cuMemAddressReserve(&mapped, FIXTURE_BLOCK, 0, 0, 0),
		     CUDA_SUCCESS);
	CHECK_RESULT(app.cuMemCreate(&handle, FIXTURE_BLOCK, &prop, 0), CUDA_SUCCESS);
	CHECK_RESULT(app.cuMemMap(mapped, FIXTURE_BLOCK, 0, handle, 0), CUDA_SUCCESS);
	CHECK_RESULT(call_find(cuda, mapped, 1, &memory), 0);
	cuda->release(&memory);
	CHECK(flags_of(own) == (CU_CTX_SYNC_MEMOPS | 1));
}

static void makes_contexts_synchronous(void **state)
{
	(void)state;
	run_in_child(synchronous_early);
	run_in_child(synchronous_at_wrap);
}

static void no_device(void)
{
	struct pier_backend_unit unit;
	struct pier_memory memory;
	char detail[512];

	setenv("FAKE_CUDA_DEVICES", "0", 1);
	CHECK_RESULT(cuda->probe(detail, sizeof(detail)), -ENODEV);
	CHECK(strstr(detail, "CUDA_ERROR_NO_DEVICE"));
	CHECK(access("/proc/driver/nvidia/version", F_OK) == 0 ||
	      strstr(detail, "kernel module nvidia is not loaded"));
	CHECK_RESULT(cuda->alloc(NULL, 1, &memory), -ENODEV);
	CHECK_SENTENCE("CUDA_ERROR_NO_DEVICE");
	CHECK_RESULT(cuda->unit(0, &unit), -ENOENT);
}

static void reports_a_missing_device(void **state)
{
	(void)state;
	run_in_child(no_device);
}

/* Failures are not remembered: once repaired, it works. */
static void init_fails(void)
{
	static const struct {
		const char *result;
		int error;
		const char *sentence;
	} cases[] = {
		{ "3", ECHILD, "fork" },
		{ "34", EOPNOTSUPP, "stub" },
		{ "46", ENODEV, "CUDA_ERROR_DEVICE_UNAVAILABLE" },
		{ "100", ENODEV, "CUDA_ERROR_NO_DEVICE" },
		{ "802", ENODEV, "nvidia-fabricmanager" },
		{ "803", EOPNOTSUPP, "different versions" },
		{ "804", EOPNOTSUPP, "compat" },
		{ "999", EIO, "CUDA_ERROR_UNKNOWN" },
	};
	struct pier_memory memory;
	char detail[512];

	CHECK(fake_cuda_load(&app));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fake_cuda_call *call = fake_cuda_call(app.control, "cuInit");

		call->fail_in = 1;
		call->fail_more = 1;
		call->fail_result = atoi(cases[i].result);
		CHECK_RESULT(cuda->probe(detail, sizeof(detail)), -cases[i].error);
		CHECK(strstr(detail, "cuInit: "));
		CHECK(strstr(detail, cases[i].sentence));
		CHECK_RESULT(cuda->alloc("0", 1, &memory), -cases[i].error);
		CHECK_SENTENCE(cases[i].sentence);
	}
	CHECK_RESULT(cuda->alloc("0", 1, &memory), 0);
	cuda->free(&memory);
}

static void retries_a_failed_initialisation(void **state)
{
	(void)state;
	run_in_child(init_fails);
}

/* Before the functions that pier needs existed. */
static void too_old(void)
{
	struct pier_memory memory;
	char detail[512];

	be_of_version("6050");
	CHECK_RESULT(cuda->probe(detail, sizeof(detail)), -EOPNOTSUPP);
	CHECK(strstr(detail, "older than CUDA 7.0"));
	CHECK_RESULT(cuda->alloc("0", 1, &memory), -EOPNOTSUPP);
	CHECK_SENTENCE("libcuda.so.1 has no cu");
}

/* CUDA 9.2: by dlsym(3); no VMM, no ranges of pointers, no dma-bufs. */
static void of_9_2(void)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory_facts facts = { 0 };
	struct pier_memory memory;
	uint64_t address;
	char bytes[4] = "abc";

	be_of_version("9020");
	CHECK_RESULT(cuda->alloc("0:vmm", 1, &memory), -EOPNOTSUPP);
	CHECK_SENTENCE(
		"the CUDA driver (9.2) has no cuMemCreate, which came with CUDA 10.2");
	address = allocate(3 * FIXTURE_MIB);
	CHECK_RESULT(call_find(cuda, address + FIXTURE_MIB, 1, &memory), 0);
	CHECK(memory.address == address && memory.length == 3 * FIXTURE_MIB);
	CHECK_RESULT(cuda->copy_to(&memory, 7, bytes, sizeof(bytes)), 0);
	CHECK_RESULT(call_export(cuda, &memory, address, pier_host_page(),
				 PIER_MAPPING_DEFAULT, &dmabuf),
		     -EOPNOTSUPP);
	CHECK_SENTENCE("CUDA 11.7");
	cuda->describe(&memory, &facts);
	CHECK(strstr(facts.no_export, "CUDA 11.7"));
	cuda->release(&memory);
}

/* CUDA 11.0: VMM without the attribute of pools; nothing flushes. */
static void of_11_0(void)
{
	struct pier_memory memory, found;

	be_of_version("11000");
	CHECK_RESULT(cuda->alloc("0:vmm:2M", 5 * FIXTURE_MIB, &memory), 0);
	app.control->device[0].ordering = 0;
	/* The attribute is missing too: neither ordering nor flush is available. */
	CHECK_RESULT(call_flush_once(cuda, &memory, PIER_MAPPING_DEFAULT, false),
		     PIER_BACKEND_READ_BACK);
	CHECK_RESULT(call_find(cuda, memory.address, 1, &found), 0);
	cuda->release(&found);
	cuda->free(&memory);
}

/* CUDA 11.7: cuGetProcAddress() in its first form; dma-bufs, but no context flag. */
static void of_11_7(void)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	be_of_version("11070");
	CHECK_RESULT(cuda->alloc("0:vmm", 1, &memory), 0);
	CHECK_RESULT(call_export(cuda, &memory, memory.address, memory.length,
				 PIER_MAPPING_DEFAULT, &dmabuf),
		     0);
	cuda->close_export(&dmabuf);
	CHECK_RESULT(call_export(cuda, &memory, memory.address, memory.length,
				 PIER_MAPPING_PCIE, &dmabuf),
		     -EOPNOTSUPP);
	CHECK_SENTENCE("CUDA 12.8");
	CHECK_SENTENCE("CUDA 11.7");
	cuda->free(&memory);
	CHECK(fake_cuda_call(app.control, "cuGetProcAddress")->calls > 0);
	CHECK(app.control->current == 0);
}

static void of_12_8(void)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory memory;

	be_of_version("12080");
	CHECK_RESULT(cuda->alloc("0", 1, &memory), 0);
	CHECK_RESULT(call_export(cuda, &memory, memory.address, memory.length,
				 PIER_MAPPING_PCIE, &dmabuf),
		     0);
	cuda->close_export(&dmabuf);
	cuda->free(&memory);
}

static void supports_every_driver_version(void **state)
{
	(void)state;
	run_in_child(too_old);
	run_in_child(of_9_2);
	run_in_child(of_11_0);
	run_in_child(of_11_7);
	run_in_child(of_12_8);
}

/* The calls that a child may make with a driver that its parent initialised. */
static void use_in_child(const struct pier_memory *memory)
{
	struct pier_backend_export dmabuf = { .fd = -1 };
	struct pier_memory other, found, copy = *memory;
	char byte = 1, detail[512];

	CHECK_RESULT(cuda->probe(detail, sizeof(detail)), 0);
	CHECK_RESULT(cuda->alloc("0", 1, &other), -ECHILD);
	CHECK_SENTENCE("child of fork(2)");
	CHECK_RESULT(cuda->copy_to(memory, 0, &byte, 1), -ECHILD);
	CHECK_SENTENCE("child of fork(2)");
	CHECK_RESULT(cuda->copy_from(memory, 0, &byte, 1), -ECHILD);
	CHECK_RESULT(call_export(cuda, memory, memory->address, memory->length,
				 PIER_MAPPING_DEFAULT, &dmabuf),
		     -ECHILD);
	CHECK(dmabuf.fd == -1);
	CHECK_RESULT(call_flush(cuda, memory), -ECHILD);
	CHECK_RESULT(cuda->lock_host(memory, detail, sizeof(detail)), -ECHILD);
	/* It still recognises pier's own memory, and frees it without harm. */
	CHECK_RESULT(call_find(cuda, memory->address, 1, &found), 0);
	cuda->release(&found);
	cuda->free(&copy);
	CHECK_RESULT(call_find(cuda, (uintptr_t)&byte, 1, &found), -ENOENT);
}

static void fork_after(void)
{
	struct pier_memory memory;
	char byte = 3, seen = 0;
	int status = -1;
	pid_t child;

	CHECK_RESULT(cuda->alloc("0", 1, &memory), 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(HANGS_AFTER_S);
		use_in_child(&memory);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* The parent's memory is unchanged. */
	CHECK_RESULT(cuda->copy_to(&memory, 0, &byte, 1), 0);
	CHECK_RESULT(cuda->copy_from(&memory, 0, &seen, 1), 0);
	CHECK(seen == byte);
	cuda->free(&memory);
}

/* The parent used CUDA; only the child uses pier. */
static void fork_before(void)
{
	struct pier_memory memory;
	int status = -1;
	pid_t child;

	CHECK(fake_cuda_load(&app));
	allocate(FIXTURE_MIB);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(HANGS_AFTER_S);
		CHECK_RESULT(cuda->alloc("0", 1, &memory), -ECHILD);
		CHECK_SENTENCE("child of fork(2)");
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void child_leaves_the_driver_alone(void **state)
{
	(void)state;
	run_in_child(fork_after);
	run_in_child(fork_before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leaves_an_unused_driver_alone),
		cmocka_unit_test(uses_only_a_loaded_driver),
		cmocka_unit_test(probe_creates_no_context),
		cmocka_unit_test(uses_the_context_of_the_allocation),
		cmocka_unit_test(first_use_does_not_end_a_capture),
		cmocka_unit_test(reports_a_missing_device),
		cmocka_unit_test(makes_contexts_synchronous),
		cmocka_unit_test(retries_a_failed_initialisation),
		cmocka_unit_test(supports_every_driver_version),
		cmocka_unit_test(child_leaves_the_driver_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
