/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of another process: children that are forked before the driver is opened own it.
 */
#include "cuda_fixture.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <pier/ipc.h>

enum {
	OWNERS = 2,
	LENGTH = 3 * FIXTURE_MIB + 17,
	/* Where the owner's buffer begins in its allocation. */
	OFFSET = 4099,
};

struct order {
	char what; /* 'a': allocate, 'r': read, 'f': free */
	int device;
	uint64_t offset; /* of the allocation */
};

struct answer {
	uint8_t handle[PIER_IPC_HANDLE_SIZE];
	uint8_t bytes[64];
};

static struct owner {
	pid_t pid;
	int fd;
} owners[OWNERS];

static void require(bool condition, const char *step)
{
	if (condition)
		return;
	fprintf(stderr, "# the owner: %s: %s\n", step, pier_error_message());
	_exit(1);
}

static void allocate(int device, struct pier_buffer **ret_all,
		     struct pier_buffer **ret_part, uint8_t *ret_handle)
{
	char spec[16], *start;

	snprintf(spec, sizeof(spec), "cuda:%d", device);
	require(pier_buffer_alloc(spec, LENGTH + 2 * OFFSET, ret_all) == 0, "alloc");
	start = (char *)(uintptr_t)pier_buffer_address(*ret_all);
	require(pier_buffer_wrap(start + OFFSET, LENGTH, ret_part) == 0, "wrap");
	require(pier_buffer_ipc_export(*ret_part, ret_handle, PIER_IPC_HANDLE_SIZE) == 0,
		"handle");
}

static void serve(int fd)
{
	struct pier_buffer *all = NULL, *part = NULL;
	struct answer answer;
	struct order order;

	while (read(fd, &order, sizeof(order)) == sizeof(order)) {
		memset(&answer, 0, sizeof(answer));
		if (order.what == 'a')
			allocate(order.device, &all, &part, answer.handle);
		else if (order.what == 'r')
			require(pier_buffer_copy_from(all, order.offset, answer.bytes,
						      sizeof(answer.bytes)) == 0,
				"read");
		else
			require(pier_buffer_free(part) == 0 && pier_buffer_free(all) == 0,
				"free");
		require(write(fd, &answer, sizeof(answer)) == sizeof(answer), "answer");
	}
	_exit(0);
}

static void start_owner(struct owner *owner)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	owner->pid = fork();
	assert_true(owner->pid >= 0);
	if (owner->pid == 0) {
		close(pair[0]);
		serve(pair[1]);
	}
	close(pair[1]);
	owner->fd = pair[0];
}

static int start_owners(void **state)
{
	for (int i = 0; i < OWNERS; i++)
		start_owner(&owners[i]);
	return fixture_begin(state);
}

static int end_owners(void **state)
{
	int status;

	(void)state;
	for (int i = 0; i < OWNERS; i++) {
		if (owners[i].fd >= 0)
			close(owners[i].fd);
		if (owners[i].pid > 0) {
			assert_int_equal(waitpid(owners[i].pid, &status, 0),
					 owners[i].pid);
			assert_int_equal(status, 0);
		}
	}
	return 0;
}

static struct answer ask(char what, int device, uint64_t offset)
{
	struct order order = { .what = what, .device = device, .offset = offset };
	struct answer answer;

	assert_int_equal(write(owners[0].fd, &order, sizeof(order)), sizeof(order));
	assert_int_equal(read(owners[0].fd, &answer, sizeof(answer)), sizeof(answer));
	return answer;
}

static struct pier_buffer *alloc_here(const char *spec)
{
	struct pier_buffer *buffer;

	expect_ok(pier_buffer_alloc(spec, LENGTH, &buffer));
	return buffer;
}

static struct pier_buffer *open_here(const struct answer *answer,
				     struct pier_buffer *from)
{
	struct pier_buffer *opened;

	expect_ok(pier_buffer_ipc_open(answer->handle, sizeof(answer->handle), from,
				       &opened));
	assert_int_equal(pier_buffer_length(opened), LENGTH);
	assert_string_equal(test_buffer_info(opened).backend, "cuda");
	return opened;
}

static void check_copies(int here, int there)
{
	static const char text[32] = "into another process's memory";
	struct answer owned = ask('a', there, 0), seen;
	struct pier_buffer *from, *opened;
	char spec[16], back[sizeof(text)] = "";

	snprintf(spec, sizeof(spec), "cuda:%d", here);
	from = alloc_here(spec);
	opened = open_here(&owned, from);
	expect_ok(pier_buffer_copy_to(from, 100, text, sizeof(text)));
	expect_ok(pier_buffer_copy(opened, 16, from, 100, sizeof(text)));
	seen = ask('r', 0, OFFSET);
	assert_memory_equal(seen.bytes + 16, text, sizeof(text));
	for (size_t i = 0; i < sizeof(seen.bytes); i++)
		if (i < 16 || i >= 16 + sizeof(text))
			assert_int_equal(seen.bytes[i], 0);
	/* The other way round, and to its last byte. */
	expect_ok(pier_buffer_copy(opened, LENGTH - sizeof(text), opened, 16,
				   sizeof(text)));
	expect_ok(pier_buffer_copy(from, 0, opened, LENGTH - sizeof(text), sizeof(text)));
	expect_ok(pier_buffer_copy_from(from, 0, back, sizeof(back)));
	assert_string_equal(back, text);
	expect_result(pier_buffer_copy(opened, LENGTH, from, 0, 1), -ERANGE);
	expect_result(pier_buffer_copy(from, 0, opened, LENGTH - 1, 2), -ERANGE);
	expect_ok(pier_buffer_free(opened));
	ask('f', 0, 0);
	expect_ok(pier_buffer_free(from));
}

static void copies_on_one_device_and_between_two(void **state)
{
	(void)state;
	check_copies(0, 0);
	check_copies(0, 1);
	check_copies(1, 0);
}

/* The device begins no copy before something waits for it. */
static void the_bytes_are_there_when_the_copy_returns(void **state)
{
	struct answer owned = ask('a', 1, 0), seen;
	struct pier_buffer *from = alloc_here("cuda:0"),
			   *opened = open_here(&owned, from);

	(void)state;
	expect_ok(pier_buffer_copy_to(from, 0, "arrived", 8));
	app.control->stalled = true;
	expect_ok(pier_buffer_copy(opened, 0, from, 0, 8));
	app.control->stalled = false;
	seen = ask('r', 0, OFFSET);
	assert_string_equal((char *)seen.bytes, "arrived");
	/* Nor does it wait for the application's kernels. */
	app.control->kernel_polls = true;
	expect_ok(pier_buffer_copy(opened, 0, from, 0, 8));
	app.control->kernel_polls = false;
	assert_int_equal(app.control->hangs, 0);
	expect_ok(pier_buffer_free(opened));
	ask('f', 0, 0);
	expect_ok(pier_buffer_free(from));
}

/* The copy runs in the context in which the memory is mapped. */
static void copies_in_the_context_that_opened(void **state)
{
	struct answer owned = ask('a', 1, 0);
	struct pier_buffer *from = alloc_here("cuda:0"), *other = alloc_here("cuda:1");
	struct pier_buffer *opened = open_here(&owned, from);

	(void)state;
	expect_ok(pier_buffer_copy(opened, 0, other, 0, 8));
	expect_ok(pier_buffer_copy(other, 0, opened, 0, 8));
	expect_ok(pier_buffer_free(opened));
	ask('f', 0, 0);
	expect_ok(pier_buffer_free(other));
	expect_ok(pier_buffer_free(from));
}

/* Each open is closed once; the driver maps the memory once. */
static void two_buffers_of_one_handle_are_independent(void **state)
{
	struct answer owned = ask('a', 0, 0);
	struct pier_buffer *from = alloc_here("cuda:0");
	struct pier_buffer *first = open_here(&owned, from),
			   *second = open_here(&owned, from);

	(void)state;
	assert_int_equal(app.control->live[FAKE_CUDA_OPENED], 1);
	expect_ok(pier_buffer_free(first));
	expect_ok(pier_buffer_copy(second, 0, from, 0, LENGTH));
	expect_ok(pier_buffer_free(second));
	assert_int_equal(app.control->live[FAKE_CUDA_OPENED], 0);
	ask('f', 0, 0);
	expect_ok(pier_buffer_free(from));
}

static void a_process_cannot_open_its_own_memory(void **state)
{
	struct pier_buffer *buffer = alloc_here("cuda:0"), *opened;
	uint8_t handle[PIER_IPC_HANDLE_SIZE];

	(void)state;
	expect_result(pier_buffer_ipc_export(buffer, handle, sizeof(handle) - 1),
		      -ENOSPC);
	expect_ok(pier_buffer_ipc_export(buffer, handle, sizeof(handle)));
	expect_result(pier_buffer_ipc_open(handle, sizeof(handle), buffer, &opened),
		      -EINVAL);
	test_assert_sentence("CUDA_ERROR_INVALID_CONTEXT");
	test_assert_sentence("a process cannot open its own memory");
	expect_ok(pier_buffer_free(buffer));
}

static void only_linear_memory_is_shared(void **state)
{
	static const char *const specs[][2] = {
		{ "cuda:0:vmm", "VMM" },
		{ "cuda:0:host", "page-locked host" },
		{ "host", "the backend host cannot" },
	};
	uint8_t handle[PIER_IPC_HANDLE_SIZE];
	struct pier_buffer *buffer;
	CUdeviceptr managed;
	CUcontext context;

	(void)state;
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		buffer = alloc_here(specs[i][0]);
		expect_result(pier_buffer_ipc_export(buffer, handle, sizeof(handle)),
			      -EOPNOTSUPP);
		test_assert_sentence(specs[i][1]);
		expect_ok(pier_buffer_free(buffer));
	}
	context = fixture_context(0);
	assert_int_equal(app.cuMemAllocManaged(&managed, LENGTH, CU_MEM_ATTACH_GLOBAL),
			 CUDA_SUCCESS);
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)managed, LENGTH, &buffer));
	expect_result(pier_buffer_ipc_export(buffer, handle, sizeof(handle)),
		      -EOPNOTSUPP);
	test_assert_sentence("managed memory: allocate it with cudaMalloc");
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(app.cuMemFree_v2(managed), CUDA_SUCCESS);
	fixture_destroy(context);
}

static void refused(const struct answer *owned, struct pier_buffer *from, int error,
		    const char *sentence)
{
	struct pier_buffer *opened = NULL;

	expect_result(
		pier_buffer_ipc_open(owned->handle, sizeof(owned->handle), from, &opened),
		error);
	assert_null(opened);
	test_assert_sentence(sentence);
}

static void refusals_of_the_driver_name_the_remedy(void **state)
{
	struct answer owned = ask('a', 1, 0);
	struct pier_buffer *from = alloc_here("cuda:0"), *memfd = alloc_here("memfd");

	(void)state;
	app.control->contained = true;
	refused(&owned, from, -EINVAL, "--pid=host --ipc=host");
	app.control->contained = false;
	app.control->no_peers = true;
	refused(&owned, from, -EOPNOTSUPP, "cannot reach each other's memory");
	app.control->no_peers = false;
	app.control->no_ipc = true;
	refused(&owned, from, -EOPNOTSUPP, "MIG");
	expect_result(pier_buffer_ipc_export(from, owned.handle, sizeof(owned.handle)),
		      -EOPNOTSUPP);
	test_assert_sentence("MIG");
	app.control->no_ipc = false;
	fixture_fail("cuCtxPushCurrent", CUDA_ERROR_INVALID_CONTEXT);
	refused(&owned, from, -EINVAL, "cuCtxPushCurrent");
	refused(&owned, memfd, -EOPNOTSUPP, "a buffer of memfd cannot");
	ask('f', 0, 0);
	refused(&owned, from, -EINVAL, "has the other process freed it");
	expect_ok(pier_buffer_free(memfd));
	expect_ok(pier_buffer_free(from));
}

/* Each byte of a peer's handle is checked before the driver sees it, or by the driver. */
static void hostile_handles_are_refused(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
		int error;
		const char *sentence;
	} changes[] = {
		{ 0, 'X', -EINVAL, "no handle" },
		{ 4, 2, -EPROTONOSUPPORT, "version 2, this library knows 1" },
		{ 6, 223, -EINVAL, "malformed" },
		{ 8, 'z', -EXDEV, "another host" },
		{ 44, 0, -EINVAL, "malformed" },
		{ 44, 129, -EINVAL, "malformed" },
		{ 44, 128, -EINVAL, "has 72 bytes, not 128" },
		{ 44, 71, -EINVAL, "malformed" }, /* a byte behind the driver's part */
		{ 47, 1, -EINVAL, "malformed" },
		{ 48, 0, -EINVAL, "malformed" },
		{ 48, 'C', -EOPNOTSUPP, "of another backend" },
		{ 79, 1, -EINVAL, "malformed" },
		{ 82, 0x40, -ERANGE, "leave their allocation" }, /* the offset */
		{ 87, 0xff, -ERANGE, "leave their allocation" },
		{ 91, 1, -ERANGE, "leave their allocation" }, /* the length */
		{ 95, 0xff, -ERANGE, "leave their allocation" },
		{ 96, 'X', -EINVAL, "CUDA_ERROR_INVALID_HANDLE" },
		{ 96 + 64 + 4, 1, -EINVAL, "its memory has" },
		{ 223, 1, -EINVAL, "malformed" },
	};
	struct answer owned = ask('a', 0, 0);
	struct pier_buffer *from = alloc_here("cuda:0"), *opened;

	(void)state;
	/* So that 71 bytes of the driver's would leave one behind. */
	assert_int_equal(owned.handle[44], 72);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct answer changed = owned;

		changed.handle[changes[i].at] = changes[i].value;
		if (changes[i].value == 71)
			changed.handle[96 + 71] = 1;
		refused(&changed, from, changes[i].error, changes[i].sentence);
	}
	for (size_t size = 0; size < sizeof(owned.handle); size++)
		expect_result(pier_buffer_ipc_open(owned.handle, size, from, &opened),
			      -EINVAL);
	ask('f', 0, 0);
	expect_ok(pier_buffer_free(from));
}

/* The owner is killed: its memory stays as long as this process has it open. */
static void the_owner_may_end(void **state)
{
	struct order order = { .what = 'a', .device = 1 };
	struct owner *owner = &owners[1];
	struct answer owned;
	struct pier_buffer *from = alloc_here("cuda:0"), *opened;
	int status;

	(void)state;
	assert_int_equal(write(owner->fd, &order, sizeof(order)), sizeof(order));
	assert_int_equal(read(owner->fd, &owned, sizeof(owned)), sizeof(owned));
	opened = open_here(&owned, from);
	kill(owner->pid, SIGKILL);
	assert_int_equal(waitpid(owner->pid, &status, 0), owner->pid);
	owner->pid = 0;
	expect_ok(pier_buffer_copy(opened, 0, from, 0, LENGTH));
	expect_ok(pier_buffer_free(opened));
	refused(&owned, from, -EINVAL, "has the other process freed it or ended?");
	expect_ok(pier_buffer_free(from));
}

static void opened_memory_is_not_exported(void **state)
{
	struct answer owned = ask('a', 0, 0);
	struct pier_buffer *from = alloc_here("cuda:0"),
			   *opened = open_here(&owned, from);
	uint8_t handle[PIER_IPC_HANDLE_SIZE];
	struct pier_dmabuf dmabuf;

	(void)state;
	expect_result(pier_dmabuf_export(opened, 0, LENGTH, PIER_MAPPING_AUTO, &dmabuf),
		      -EOPNOTSUPP);
	test_assert_sentence("in the process that owns it");
	expect_result(pier_buffer_ipc_export(opened, handle, sizeof(handle)),
		      -EOPNOTSUPP);
	test_assert_sentence("memory of another process");
	expect_ok(pier_buffer_free(opened));
	ask('f', 0, 0);
	expect_ok(pier_buffer_free(from));
}

/* A reset unmaps it; closing it afterwards closes nothing else. */
static void a_reset_closes_it(void **state)
{
	struct answer owned = ask('a', 0, 0);
	struct pier_buffer *from = alloc_here("cuda:0"),
			   *opened = open_here(&owned, from);
	uint64_t closed = fake_cuda_call(app.control, "cuIpcCloseMemHandle")->calls;

	(void)state;
	assert_int_equal(app.cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
	expect_result(pier_buffer_copy(opened, 0, from, 0, 1), -EINVAL);
	expect_ok(pier_buffer_free(opened));
	assert_int_equal(fake_cuda_call(app.control, "cuIpcCloseMemHandle")->calls,
			 closed);
	expect_ok(pier_buffer_free(from));
	ask('f', 0, 0);
	/* The stream in the new context. */
	expect_ok(pier_buffer_free(alloc_here("cuda:0")));
}

/* Without a copy between devices, the CPU copies what it reaches. */
static void the_cpu_copies_between_host_and_device(void **state)
{
	struct pier_buffer *gpu = alloc_here("cuda:0"), *host = alloc_here("host");
	struct pier_buffer *locked = alloc_here("cuda:0:host");
	char out[6] = "";

	(void)state;
	expect_ok(pier_buffer_copy_to(host, 7, "there", 6));
	expect_ok(pier_buffer_copy(gpu, 3, host, 7, 6));
	expect_ok(pier_buffer_copy(locked, 5, gpu, 3, 6));
	expect_ok(pier_buffer_copy_from(locked, 5, out, 6));
	assert_string_equal(out, "there");
	fixture_fail("cuMemcpyDtoHAsync", CUDA_ERROR_INVALID_VALUE);
	expect_result(pier_buffer_copy(host, 0, gpu, 0, 1), -EINVAL);
	test_assert_sentence("copying 1 bytes from a buffer of cuda to one of host");
	expect_ok(pier_buffer_free(locked));
	expect_ok(pier_buffer_free(host));
	expect_ok(pier_buffer_free(gpu));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
	const struct CMUnitTest tests[] = {
		CASE(copies_on_one_device_and_between_two),
		CASE(the_bytes_are_there_when_the_copy_returns),
		CASE(copies_in_the_context_that_opened),
		CASE(two_buffers_of_one_handle_are_independent),
		CASE(a_process_cannot_open_its_own_memory),
		CASE(only_linear_memory_is_shared),
		CASE(refusals_of_the_driver_name_the_remedy),
		CASE(hostile_handles_are_refused),
		CASE(the_owner_may_end),
		CASE(opened_memory_is_not_exported),
		CASE(a_reset_closes_it),
		CASE(the_cpu_copies_between_host_and_device),
	};

	return cmocka_run_group_tests(tests, start_owners, end_owners);
}
