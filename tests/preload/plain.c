/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program of verbs with memory of a GPU, which knows nothing of pier. It is linked with
 * libpier-dmabuf before libibverbs, which has the same effect as LD_PRELOAD. The device
 * is the first of libibverbs: soft0 by libpier-verbs, which comes second, or rxe in the
 * guest. The GPU is the fake CUDA driver's.
 *
 * With the argument "refused" it is linked without libpier-dmabuf, and expects that the
 * device takes no memory of a GPU.
 */
#include "tests/support/cmocka.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "backends/cuda/api.h"
#include "tests/fakes/cuda/control.h"

enum {
	LENGTH = 3 * 65536,
	ODD = 4099, /* the registered range begins inside a page */
	PIECE = 64,
	THREADS = 8,
	ROUNDS = 50,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		 IBV_ACCESS_REMOTE_READ,
	SECONDS = 60,
};

static struct {
	CUresult (*init)(unsigned int flags);
	CUresult (*retain)(CUcontext *ret_context, CUdevice device);
	CUresult (*set_current)(CUcontext context);
	CUresult (*alloc)(CUdeviceptr *ret_pointer, size_t size);
	CUresult (*alloc_host)(void **ret_pointer, size_t size);
	CUresult (*free)(CUdeviceptr pointer);
	CUresult (*free_host)(void *pointer);
	CUresult (*read)(void *host, CUdeviceptr pointer, size_t size);
	CUresult (*write)(CUdeviceptr pointer, const void *host, size_t size);
} cuda;

static struct fake_cuda *fake;
static struct ibv_context *context;
static struct ibv_pd *pd;
static char *report; /* PIER_DMABUF_REPORT */

static void look_up(void *driver, const char *name, void *ret_function)
{
	void *symbol = dlsym(driver, name);

	assert_non_null(symbol);
	memcpy(ret_function, &symbol, sizeof(symbol));
}

static void open_cuda(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	struct fake_cuda *(*find)(void);
	CUcontext primary;

	assert_non_null(driver);
	look_up(driver, "cuInit", &cuda.init);
	look_up(driver, "cuDevicePrimaryCtxRetain", &cuda.retain);
	look_up(driver, "cuCtxSetCurrent", &cuda.set_current);
	look_up(driver, "cuMemAlloc_v2", &cuda.alloc);
	look_up(driver, "cuMemAllocHost_v2", &cuda.alloc_host);
	look_up(driver, "cuMemFree_v2", &cuda.free);
	look_up(driver, "cuMemFreeHost", &cuda.free_host);
	look_up(driver, "cuMemcpyDtoH_v2", &cuda.read);
	look_up(driver, "cuMemcpyHtoD_v2", &cuda.write);
	look_up(driver, "fake_cuda_control", &find);
	fake = find();
	assert_int_equal(cuda.init(0), CUDA_SUCCESS);
	assert_int_equal(cuda.retain(&primary, 0), CUDA_SUCCESS);
	assert_int_equal(cuda.set_current(primary), CUDA_SUCCESS);
}

/* Before the driver is there, as in a program that opens its NIC first. */
static int open_device(void **state)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	(void)state;
	assert_true(list && list[0]);
	context = ibv_open_device(list[0]);
	assert_non_null(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	assert_non_null(pd);
	report = getenv("PIER_DMABUF_REPORT");
	assert_non_null(report);
	return 0;
}

static int close_device(void **state)
{
	(void)state;
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(context), 0);
	unlink(report);
	return 0;
}

static char *allocate(void)
{
	CUdeviceptr pointer;

	assert_int_equal(cuda.alloc(&pointer, LENGTH), CUDA_SUCCESS);
	return (char *)(uintptr_t)pointer;
}

static void release(char *memory)
{
	assert_int_equal(cuda.free((CUdeviceptr)(uintptr_t)memory), CUDA_SUCCESS);
}

/* The last line of the report, or "". */
static const char *last_line(void)
{
	static char text[65536];
	int fd = open(report, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	char *line;

	if (fd >= 0)
		close(fd);
	assert_true(length >= 0 && length < (ssize_t)sizeof(text) - 1);
	text[length] = '\0';
	if (length == 0)
		return text;
	text[length - 1] = '\0';
	line = strrchr(text, '\n');
	return line ? line + 1 : text;
}

static void assert_reported(const char *words)
{
	if (!strstr(last_line(), words))
		fail_msg("no \"%s\" in: %s", words, last_line());
}

static void forget_report(void)
{
	assert_true(truncate(report, 0) == 0 || errno == ENOENT);
}

/* Two queue pairs of one process that write to each other. */
static struct ibv_qp *make_queue_pair(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4,
			 .max_send_sge = 1,
			 .max_recv_wr = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ACCESS,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	assert_non_null(qp);
	assert_int_equal(ibv_modify_qp(qp, &attr,
				       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS),
			 0);
	return qp;
}

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 },
	};

	assert_int_equal(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), 0);
	assert_int_equal(ibv_modify_qp(qp, &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_MIN_RNR_TIMER),
			 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.max_rd_atomic = 1;
	assert_int_equal(ibv_modify_qp(qp, &attr,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
}

static void wait_for_success(struct ibv_cq *cq)
{
	time_t end = time(NULL) + SECONDS;
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		assert_true(time(NULL) < end);
	assert_int_equal(count, 1);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
}

/* Write from one region to the other; the addresses are those of their keys. */
static void write_bytes(const struct ibv_mr *from, uint64_t from_address,
			const struct ibv_mr *to, uint64_t to_address)
{
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp *sender = make_queue_pair(cq), *receiver = make_queue_pair(cq);
	struct ibv_sge piece = { from_address, PIECE, from->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = to_address, .rkey = to->rkey },
	}, *bad;

	connect_to(receiver, sender);
	connect_to(sender, receiver);
	assert_int_equal(ibv_post_send(sender, &wr, &bad), 0);
	wait_for_success(cq);
	assert_int_equal(ibv_destroy_qp(sender), 0);
	assert_int_equal(ibv_destroy_qp(receiver), 0);
	assert_int_equal(ibv_destroy_cq(cq), 0);
}

/* Bytes go from host memory to the GPU and back to other host memory, by the NIC. */
static void check_bytes(char *memory, const struct ibv_mr *mr, uint64_t address)
{
	char there[PIECE], back[PIECE], seen[PIECE];
	struct ibv_mr *out = ibv_reg_mr(pd, there, PIECE, ACCESS);
	struct ibv_mr *in = ibv_reg_mr(pd, back, PIECE, ACCESS);

	assert_true(out && in);
	for (int i = 0; i < PIECE; i++)
		there[i] = (char)rand();
	memset(back, 0, PIECE);
	write_bytes(out, (uintptr_t)there, mr, address);
	assert_int_equal(cuda.read(seen, (CUdeviceptr)(uintptr_t)memory, PIECE),
			 CUDA_SUCCESS);
	assert_memory_equal(seen, there, PIECE);
	write_bytes(mr, address, in, (uintptr_t)back);
	assert_memory_equal(back, there, PIECE);
	assert_int_equal(ibv_dereg_mr(out), 0);
	assert_int_equal(ibv_dereg_mr(in), 0);
}

/* No driver is loaded, so nothing is asked. */
static void host_memory_passes_before_there_is_a_driver(void **state)
{
	char memory[PIECE];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PIECE, ACCESS);

	(void)state;
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
	assert_string_equal(last_line(), "");
	open_cuda();
}

/* UCX takes no device without it; for soft0 it is libpier-verbs that answers. */
static void the_file_of_the_device_is_there(void **state)
{
	char path[PATH_MAX];

	(void)state;
	snprintf(path, sizeof(path), "/dev/infiniband/%s", context->device->dev_name);
	assert_int_equal(access(path, R_OK | W_OK), 0);
}

static void memory_of_a_gpu_is_registered(void **state)
{
	char *memory = allocate();
	struct ibv_mr *mr = ibv_reg_mr(pd, memory + ODD, LENGTH - ODD, ACCESS);

	(void)state;
	if (!mr)
		fail_msg("ibv_reg_mr: %s", strerror(errno));
	assert_ptr_equal(mr->addr, memory + ODD);
	assert_int_equal(mr->length, LENGTH - ODD);
	assert_ptr_equal(mr->pd, pd);
	assert_ptr_equal(mr->context, context);
	assert_reported("cuda:0");
	assert_reported("\tdma-buf\tdefault\t");
	check_bytes(memory + ODD, mr, (uintptr_t)memory + ODD);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	release(memory);
}

/* The macro of libibverbs calls one or the other, by how constant the access is. */
static void an_iova_is_the_programs(void **state)
{
	char *memory = allocate();
	uint64_t inside = ((uintptr_t)memory + ODD) % (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t iova = UINT64_C(0x123400000000) + inside;
	struct ibv_mr *mr = (ibv_reg_mr_iova)(pd, memory + ODD, PIECE, iova, ACCESS);

	(void)state;
	assert_non_null(mr);
	check_bytes(memory + ODD, mr, iova);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	mr = ibv_reg_mr_iova2(pd, memory + ODD, PIECE, iova,
			      ACCESS | IBV_ACCESS_RELAXED_ORDERING | 1u << 28);
	assert_non_null(mr);
	check_bytes(memory + ODD, mr, iova);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	release(memory);
}

static void host_memory_of_the_driver_is_host_memory(void **state)
{
	void *memory;
	struct ibv_mr *mr;

	(void)state;
	forget_report();
	assert_int_equal(cuda.alloc_host(&memory, LENGTH), CUDA_SUCCESS);
	mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
	assert_non_null(mr);
	assert_string_equal(last_line(), "");
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(cuda.free_host(memory), CUDA_SUCCESS);
}

/* What NCCL does. */
static void a_handle_of_libibverbs_has_these_functions(void **state)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
	int (*dereg)(struct ibv_mr *);
	char *memory = allocate();
	struct ibv_mr *mr;
	void *symbol;

	(void)state;
	assert_non_null(handle);
	symbol = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.1");
	assert_non_null(symbol);
	memcpy(&reg, &symbol, sizeof(symbol));
	look_up(handle, "ibv_dereg_mr", &dereg);
	mr = reg(pd, memory, LENGTH, ACCESS);
	assert_non_null(mr);
	check_bytes(memory, mr, (uintptr_t)memory);
	assert_int_equal(dereg(mr), 0);
	assert_int_equal(dlclose(handle), 0);
	release(memory);
}

/* The errno is that of libibverbs' own call; the reason is one line on standard error. */
static char *errors_of(int fd)
{
	static char text[4096];
	ssize_t length;

	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	length = read(fd, text, sizeof(text) - 1);
	assert_true(length >= 0);
	text[length] = '\0';
	return text;
}

static void fail_exports(void)
{
	for (int i = 0; i < FAKE_CUDA_MAX_CALLS; i++) {
		struct fake_cuda_call *call = &fake->call[i];

		if (strcmp(call->name, "cuMemGetHandleForAddressRange") != 0)
			continue;
		call->fail_in = 1;
		call->fail_more = 1000;
		call->fail_result = CUDA_ERROR_NOT_SUPPORTED;
		return;
	}
	fail_msg("the fake exports by another function");
}

/* A daemon closes standard error; its next file then has that number. */
static void a_file_in_place_of_stderr_is_left_alone(void **state)
{
	int keep = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), fd;
	char *memory = allocate(), *text;
	struct ibv_mr *mr;

	(void)state;
	fail_exports();
	close(STDERR_FILENO);
	fd = memfd_create("data", MFD_CLOEXEC);
	mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
	text = errors_of(fd);
	assert_int_equal(dup2(keep, STDERR_FILENO), STDERR_FILENO);
	assert_int_equal(fd, STDERR_FILENO);
	assert_null(mr);
	assert_string_equal(text, "");
	fake->restore();
	release(memory);
	close(keep);
}

static void a_refusal_is_the_programs_errno_and_one_line(void **state)
{
	int keep = dup(STDERR_FILENO), fd = memfd_create("stderr", MFD_CLOEXEC);
	char *memory = allocate(), *text;
	struct ibv_mr *mr;
	int error;

	(void)state;
	fail_exports();
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
	for (int i = 0; i < 3; i++) {
		errno = 0;
		mr = ibv_reg_mr(pd, memory, LENGTH - i * PIECE, ACCESS);
		error = errno;
		assert_null(mr);
	}
	assert_int_equal(dup2(keep, STDERR_FILENO), STDERR_FILENO);
	text = errors_of(fd);
	assert_int_equal(error, EFAULT);
	assert_non_null(strstr(text, "pier: memory of a GPU was not registered: "));
	assert_non_null(strchr(text, '\n'));
	assert_string_equal(strchr(text, '\n'), "\n");
	assert_reported("\t14\t");
	fake->restore();
	release(memory);
	close(fd);
	close(keep);
}

/* errno is that of before, as after a call of libibverbs that succeeds. */
static void a_success_leaves_errno(void **state)
{
	char *memory = allocate();
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *mr;

	(void)state;
	errno = ENOANO;
	mr = ibv_reg_mr(other, memory, LENGTH, ACCESS);
	assert_int_equal(errno, ENOANO);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(errno, ENOANO);
	assert_int_equal(ibv_dealloc_pd(other), 0);
	assert_int_equal(errno, ENOANO);
	release(memory);
}

static void a_full_disk_stops_the_report_alone(void **state)
{
	int keep = dup(STDERR_FILENO), fd = memfd_create("stderr", MFD_CLOEXEC);
	char *memory = allocate();
	struct ibv_mr *mr;

	(void)state;
	assert_int_equal(setenv("PIER_DMABUF_REPORT", "/dev/full", 1), 0);
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
	mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
	assert_int_equal(dup2(keep, STDERR_FILENO), STDERR_FILENO);
	assert_int_equal(setenv("PIER_DMABUF_REPORT", report, 1), 0);
	assert_non_null(mr);
	assert_non_null(strstr(errors_of(fd), "No space left on device\n"));
	assert_int_equal(ibv_dereg_mr(mr), 0);
	release(memory);
	close(fd);
	close(keep);
}

static void a_region_of_a_gpu_keeps_its_memory(void **state)
{
	char *memory = allocate(), host[PIECE];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);

	(void)state;
	assert_non_null(mr);
	errno = 0;
	assert_int_equal(
		ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, host, PIECE, 0),
		IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EOPNOTSUPP);
	check_bytes(memory, mr, (uintptr_t)memory);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	release(memory);
}

/* A protection domain with regions stays; without them, its address may come again. */
static void protection_domains_come_and_go(void **state)
{
	char *memory = allocate();

	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_pd *other = ibv_alloc_pd(context);
		struct ibv_mr *mr;

		assert_non_null(other);
		mr = ibv_reg_mr(other, memory, LENGTH, ACCESS);
		assert_non_null(mr);
		assert_ptr_equal(mr->pd, other);
		assert_int_equal(ibv_dealloc_pd(other), EBUSY);
		assert_int_equal(ibv_dereg_mr(mr), 0);
		assert_int_equal(ibv_dealloc_pd(other), 0);
	}
	release(memory);
}

static void *register_often(void *argument)
{
	char *memory = argument, host[PIECE];

	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_mr *device = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
		struct ibv_mr *plain = ibv_reg_mr(pd, host, PIECE, ACCESS);

		if (!device || !plain || device->addr != memory || ibv_dereg_mr(device) ||
		    ibv_dereg_mr(plain))
			return NULL;
	}
	return argument;
}

static void threads_register_at_once(void **state)
{
	char *memory = allocate();
	pthread_t threads[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, register_often, memory), 0);
	for (int i = 0; i < THREADS; i++) {
		void *result;

		assert_int_equal(pthread_join(threads[i], &result), 0);
		assert_ptr_equal(result, memory);
	}
	release(memory);
}

/* A child has no regions of its parent's; what it registers fails and does not hang. */
static void a_child_is_refused(void **state)
{
	char *memory = allocate();
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
	int status;
	pid_t child;

	(void)state;
	assert_non_null(mr);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		alarm(SECONDS);
		_exit(ibv_reg_mr(pd, memory, LENGTH, ACCESS) != NULL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	check_bytes(memory, mr, (uintptr_t)memory);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	release(memory);
}

static struct ibv_mr *left;

static void deregister_at_exit(void)
{
	if (ibv_dereg_mr(left) != 0)
		_exit(9);
}

static void close_at_exit(void)
{
	ibv_close_device(context);
}

/* The program that ends with a region: nothing, or what an exit handler does with it. */
static int leave(const char *how)
{
	open_device(NULL);
	open_cuda();
	left = ibv_reg_mr(pd, allocate(), LENGTH, ACCESS);
	assert_non_null(left);
	if (strcmp(how, "deregisters") == 0)
		return atexit(deregister_at_exit);
	return strcmp(how, "closes") == 0 ? atexit(close_at_exit) : 0;
}

static void a_program_may_end_with_regions(void **state)
{
	static const char *const ways[] = { "forgets", "deregisters", "closes" };
	int status;

	(void)state;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0) {
			alarm(SECONDS);
			execl("/proc/self/exe", "plain", "leave", ways[i], NULL);
			_exit(8);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		if (status)
			fail_msg("%s: wait status %#x", ways[i], (unsigned int)status);
	}
}

/* As a driver of the kernel, soft0 finds no pages of the CPU at that address. */
static void without_the_library_it_is_refused(void **state)
{
	char *memory, host[PIECE];
	struct ibv_mr *mr;

	(void)state;
	open_cuda();
	memory = allocate();
	errno = 0;
	mr = ibv_reg_mr(pd, memory, LENGTH, ACCESS);
	assert_null(mr);
	assert_int_equal(errno, EFAULT);
	errno = 0;
	mr = ibv_reg_mr_iova2(pd, memory + ODD, PIECE, (uintptr_t)memory + ODD, ACCESS);
	assert_null(mr);
	assert_int_equal(errno, EFAULT);
	mr = ibv_reg_mr(pd, host, PIECE, ACCESS);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(fake->exports, 0);
	assert_string_equal(last_line(), "");
	release(memory);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest refused[] = {
		cmocka_unit_test(without_the_library_it_is_refused),
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_memory_passes_before_there_is_a_driver),
		cmocka_unit_test(the_file_of_the_device_is_there),
		cmocka_unit_test(memory_of_a_gpu_is_registered),
		cmocka_unit_test(an_iova_is_the_programs),
		cmocka_unit_test(host_memory_of_the_driver_is_host_memory),
		cmocka_unit_test(a_handle_of_libibverbs_has_these_functions),
		/* Before the cause is told. */
		cmocka_unit_test(a_file_in_place_of_stderr_is_left_alone),
		cmocka_unit_test(a_refusal_is_the_programs_errno_and_one_line),
		cmocka_unit_test(a_success_leaves_errno),
		cmocka_unit_test(a_full_disk_stops_the_report_alone),
		cmocka_unit_test(a_region_of_a_gpu_keeps_its_memory),
		cmocka_unit_test(protection_domains_come_and_go),
		cmocka_unit_test(threads_register_at_once),
		cmocka_unit_test(a_child_is_refused),
		cmocka_unit_test(a_program_may_end_with_regions),
	};

	if (argc > 2 && strcmp(argv[1], "leave") == 0)
		return leave(argv[2]);
	if (argc > 1 && strcmp(argv[1], "refused") == 0)
		return cmocka_run_group_tests(refused, open_device, close_device);
	return cmocka_run_group_tests(tests, open_device, close_device);
}
