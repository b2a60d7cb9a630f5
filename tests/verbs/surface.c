/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libpier-verbs as a program of verbs sees it. The program knows nothing of pier; it is
 * linked with libpier-verbs before libibverbs, which has the same effect as LD_PRELOAD.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "end.h"

enum {
	THREADS = 8,
	ROUNDS = 20
};

static void soft0_is_the_only_device(void **state)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = open_soft0();
	struct ibv_device_attr attr;

	(void)state;
	assert_int_equal(count, 1);
	assert_null(list[1]);
	assert_string_equal(ibv_get_device_name(list[0]), "soft0");
	assert_int_equal(ibv_get_device_index(list[0]), -1);
	assert_ptr_equal(context->device, list[0]);
	assert_int_equal(ibv_query_device(context, &attr), 0);
	assert_int_not_equal(attr.node_guid, 0);
	assert_true(attr.node_guid == ibv_get_device_guid(list[0]));
	assert_int_equal(ibv_close_device(context), 0);
	ibv_free_device_list(list);
}

/* Where libmlx5 is installed. */
static void libmlx5_does_not_take_soft0_for_its_own(void **state)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	void *driver = dlopen("libmlx5.so.1", RTLD_NOW);
	bool (*ask)(struct ibv_device *) = NULL;

	(void)state;
	if (driver)
		ask = (bool (*)(struct ibv_device *))dlsym(driver, "mlx5dv_is_supported");
	assert_false(ask && ask(list[0]));
	ibv_free_device_list(list);
}

static void tables_of_the_port_have_one_entry(void **state)
{
	struct ibv_context *context = open_soft0();
	struct ibv_gid_entry entry, table[2];
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;

	(void)state;
	assert_int_equal(ibv_query_port(context, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	assert_int_equal(ibv_query_port(context, 2, &port), EINVAL);
	assert_int_equal(ibv_query_gid(context, 1, 0, &gid), 0);
	assert_int_equal(ibv_query_gid(context, 1, 1, &gid), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
	assert_memory_equal(&entry.gid, &gid, sizeof(gid));
	assert_int_equal(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
	assert_int_equal(ibv_query_gid_ex(context, 1, 1, &entry, 0), EINVAL);
	assert_int_equal(ibv_query_gid_table(context, table, 2, 0), 1);
	assert_int_equal(ibv_query_gid_table(context, table, 0, 0), -EINVAL);
	assert_int_equal(ibv_query_pkey(context, 1, 0, &pkey), 0);
	assert_int_equal(pkey, 0xffff);
	assert_int_equal(ibv_query_pkey(context, 1, 1, &pkey), -1);
	assert_int_equal(ibv_get_pkey_index(context, 1, 0xffff), 0);
	assert_int_equal(ibv_get_pkey_index(context, 1, 0x7fff), -1);
	assert_int_equal(ibv_close_device(context), 0);
}

/* Older and newer programs have a struct of another size. */
static void structs_of_any_size_are_filled(void **state)
{
	struct ibv_context *context = open_soft0();
	struct verbs_context *verbs = verbs_get_ctx(context);
	struct {
		struct ibv_device_attr_ex attr;
		uint8_t newer[8], beyond[8];
	} device;
	struct {
		struct ibv_port_attr attr;
		uint8_t newer[8], beyond[8];
	} port;
	static const uint8_t zeros[8], untouched[8] = "untouche";

	(void)state;
	memcpy(device.beyond, untouched, 8);
	memcpy(port.beyond, untouched, 8);
	memset(device.newer, 1, 8);
	memset(port.newer, 1, 8);
	assert_int_equal(verbs->query_device_ex(context, NULL, &device.attr,
						sizeof(device.attr) + 8),
			 0);
	assert_int_equal(verbs->query_port(context, 1, &port.attr, sizeof(port.attr) + 8),
			 0);
	assert_memory_equal(device.newer, zeros, 8);
	assert_memory_equal(port.newer, zeros, 8);
	assert_memory_equal(device.beyond, untouched, 8);
	assert_memory_equal(port.beyond, untouched, 8);
	memset(&device.attr, 1, sizeof(device.attr));
	assert_int_equal(verbs->query_device_ex(context, NULL, &device.attr,
						sizeof(device.attr.orig_attr)),
			 0);
	assert_true(device.attr.orig_attr.max_qp > 0);
	assert_int_equal(device.attr.comp_mask, 0x01010101);
	assert_int_equal(ibv_close_device(context), 0);
}

static void what_soft0_lacks_is_refused(void **state)
{
	struct ibv_context *context = open_soft0();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_td_init_attr td = { 0 };
	struct ibv_xrcd_init_attr xrcd = { 0 };
	struct ibv_wq_init_attr wq = { 0 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_flow_attr flow = { 0 };
	struct ibv_qp qp = { .context = context };
	struct ibv_ece ece = { .vendor_id = 1 };

	(void)state;
	assert_no_object(ibv_import_device(context->cmd_fd));
	assert_no_object(ibv_import_pd(context, 0));
	assert_no_object(ibv_import_mr(pd, 0));
	assert_no_object(ibv_import_dm(context, 0));
	assert_no_object(ibv_alloc_td(context, &td));
	assert_no_object(ibv_alloc_null_mr(pd));
	assert_no_object(ibv_open_xrcd(context, &xrcd));
	assert_no_object(ibv_create_wq(context, &wq));
	assert_no_object(ibv_create_counters(context, &counters));
	assert_no_object(ibv_create_flow(&qp, &flow));
	assert_int_equal(ibv_set_ece(&qp, &ece), EOPNOTSUPP);
	assert_int_equal(ibv_query_ece(&qp, &ece), EOPNOTSUPP);
	assert_int_equal(ibv_attach_mcast(&qp, NULL, 0), EOPNOTSUPP);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
	assert_int_equal(ibv_close_device(context), 0);
}

static void contexts_of_a_process_share_gid_and_qpns(void **state)
{
	struct end a = { 0 }, b = { 0 };
	union ibv_gid gid;

	(void)state;
	open_end(&a);
	open_end(&b);
	assert_ptr_not_equal(a.context, b.context);
	assert_int_not_equal(a.qp->qp_num, b.qp->qp_num);
	/* Each names its own GID, as pyverbs' tests do. */
	assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
	connect_end(&a, &gid, b.qp->qp_num);
	assert_int_equal(ibv_query_gid(b.context, 1, 0, &gid), 0);
	connect_end(&b, &gid, a.qp->qp_num);
	write_between(&a, &b);
	close_end(&a);
	close_end(&b);
}

static void a_context_closes_with_objects(void **state)
{
	size_t fds = test_count_fds();
	struct end a = { 0 }, b = { 0 };
	union ibv_gid gid;

	(void)state;
	open_end(&a);
	open_end(&b);
	assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
	connect_end(&a, &gid, b.qp->qp_num);
	connect_end(&b, &gid, a.qp->qp_num);
	assert_int_equal(ibv_close_device(a.context), 0);
	assert_int_equal(a.qp->state, IBV_QPS_ERR);
	assert_int_equal(b.qp->state, IBV_QPS_RTS);
	/* Late, and harmless. */
	destroy_objects(&a);
	close_end(&b);
	assert_int_equal(test_count_fds(), fds);
}

static int use_device(const union ibv_gid *parents_gid)
{
	struct end a = { 0 };
	union ibv_gid gid;

	open_end(&a);
	if (ibv_query_gid(a.context, 1, 0, &gid) ||
	    memcmp(&gid, parents_gid, sizeof(gid)) == 0)
		return 1;
	connect_end(&a, &gid, a.qp->qp_num);
	write_between(&a, &a);
	close_end(&a);
	return 0;
}

static void skip_under_thread_sanitizer(void)
{
#ifdef __SANITIZE_THREAD__
	printf("skip: a forked child cannot start threads under ThreadSanitizer\n");
	skip();
#endif
}

static void a_forked_child_opens_its_own(void **state)
{
	struct end a = { 0 };
	union ibv_gid gid;
	int status;
	pid_t child;

	(void)state;
	skip_under_thread_sanitizer();
	open_end(&a);
	assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
	connect_end(&a, &gid, a.qp->qp_num);
	child = fork();
	if (child == 0)
		_exit(use_device(&gid));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	write_between(&a, &a);
	close_end(&a);
}

static int call_parent(const union ibv_gid *gid, uint32_t qpn)
{
	struct end a = { 0 };

	open_end(&a);
	connect_end(&a, gid, qpn);
	close_end(&a);
	return 0;
}

/* Its copy alone: others still reach the parent. */
/* Its functions are inline, but for the last one, which is newer than the headers. */
static void memory_of_the_nic_is_read_and_written(void **state)
{
	struct ibv_alloc_dm_attr attr = { .length = 2 * LENGTH };
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_device_attr_ex device;
	int (*export)(struct ibv_dm *);
	struct end a = { 0 }, b = { 0 };
	struct ibv_sge piece = { .addr = (uintptr_t)a.memory, .length = LENGTH };
	struct ibv_send_wr wr = { .sg_list = &piece, .num_sge = 1 }, *bad;
	union ibv_gid gid;
	struct ibv_mr *mr, *exported;
	struct ibv_dm *dm;
	struct ibv_wc wc;
	char now[LENGTH];
	int fd;

	(void)state;
	open_end(&a);
	open_end(&b);
	assert_int_equal(ibv_query_device_ex(a.context, NULL, &device), 0);
	attr.length = device.max_dm_size + 1;
	assert_null(ibv_alloc_dm(b.context, &attr));
	attr.length = 2 * LENGTH;
	dm = ibv_alloc_dm(b.context, &attr);
	assert_non_null(dm);
	assert_int_equal(ibv_memcpy_to_dm(dm, 2, a.memory, 4), EINVAL);
	assert_int_equal(ibv_memcpy_from_dm(now, dm, 0, 3), EINVAL);
	assert_int_equal(ibv_memcpy_to_dm(dm, LENGTH + 4, a.memory, LENGTH), EFAULT);
	assert_null(ibv_reg_dm_mr(b.pd, dm, 0, LENGTH, access));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dm_mr(a.pd, dm, 0, LENGTH, access | IBV_ACCESS_ZERO_BASED));
	assert_null(ibv_reg_dm_mr(b.pd, dm, LENGTH + 1, LENGTH,
				  access | IBV_ACCESS_ZERO_BASED));
	mr = ibv_reg_dm_mr(b.pd, dm, LENGTH, LENGTH, access | IBV_ACCESS_ZERO_BASED);
	assert_non_null(mr);
	assert_int_equal(ibv_free_dm(dm), EBUSY);
	*(void **)&export = dlvsym(RTLD_DEFAULT, "ibv_dm_export_dmabuf_fd",
				   "IBVERBS_1.16");
	assert_non_null(export);
	fd = export(dm);
	exported = ibv_reg_dmabuf_mr(a.pd, 0, 2 * LENGTH, 0, fd, IBV_ACCESS_LOCAL_WRITE);
	assert_non_null(exported);
	assert_int_equal(close(fd), 0);

	memset(a.memory, 'd', LENGTH);
	assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
	connect_end(&a, &gid, b.qp->qp_num);
	connect_end(&b, &gid, a.qp->qp_num);
	piece.lkey = a.mr->lkey;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.rkey = mr->rkey; /* at 0 */
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	while (ibv_poll_cq(a.cq, 1, &wc) == 0)
		;
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(ibv_memcpy_from_dm(now, dm, LENGTH, LENGTH), 0);
	assert_memory_equal(now, a.memory, LENGTH);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dereg_mr(exported), 0);
	assert_int_equal(ibv_free_dm(dm), 0);
	close_end(&a);
	close_end(&b);
}

static void a_forked_child_closes_what_it_inherited(void **state)
{
	struct ibv_context *context;
	struct end a = { 0 };
	union ibv_gid gid;
	int status;
	pid_t child;

	(void)state;
	skip_under_thread_sanitizer();
	context = open_soft0();
	child = fork();
	if (child == 0)
		_exit(ibv_close_device(context) != 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	open_end(&a);
	assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
	child = fork();
	if (child == 0)
		_exit(call_parent(&gid, a.qp->qp_num));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close_end(&a);
	assert_int_equal(ibv_close_device(context), 0);
}

static void a_forked_child_closes_a_context_in_use(void **state)
{
	struct end a = { 0 };
	union ibv_gid gid;
	int status;
	pid_t child;

	(void)state;
	open_end(&a);
	assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
	connect_end(&a, &gid, a.qp->qp_num);
	child = fork();
	if (child == 0)
		_exit(ibv_close_device(a.context) != 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	write_between(&a, &a);
	close_end(&a);
}

static void *open_and_close(void *unused)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct end a = { 0 };
		union ibv_gid gid;

		open_end(&a);
		assert_int_equal(ibv_query_gid(a.context, 1, 0, &gid), 0);
		connect_end(&a, &gid, a.qp->qp_num);
		write_between(&a, &a);
		close_end(&a);
	}
	return unused;
}

static void threads_open_and_close_at_once(void **state)
{
	pthread_t threads[THREADS];

	(void)state;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, NULL),
				 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* NCCL asks for versions, too. */
static void a_handle_of_libibverbs_has_these_functions(void **state)
{
	static const char *const names[] = { "libibverbs.so.1", "/any/libibverbs.so" };

	(void)state;
	for (int i = 0; i < 2; i++) {
		void *handle = dlopen(names[i], RTLD_NOW);

		assert_non_null(handle);
		assert_ptr_equal(dlsym(handle, "ibv_open_device"),
				 dlsym(RTLD_DEFAULT, "ibv_open_device"));
		assert_ptr_equal(dlvsym(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"),
				 dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr"));
		assert_non_null(dlvsym(handle, "ibv_wc_status_str", "IBVERBS_1.1"));
		assert_int_equal(dlclose(handle), 0);
	}
	assert_null(dlopen("no-such-library.so", RTLD_NOW));
}

/* While other threads create and destroy queue pairs of other contexts. */
static void contexts_close_with_objects_at_once(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, open_and_close, NULL), 0);
	for (int i = 0; i < ROUNDS; i++) {
		struct end a = { 0 };

		open_end(&a);
		assert_int_equal(ibv_close_device(a.context), 0);
		destroy_objects(&a);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* realpath(3) of this library fills no more than the caller's PATH_MAX bytes. */
static void a_path_that_is_too_long_is_refused(void **state)
{
	static const char name[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123";
	char folder[] = "/tmp/surface-XXXXXX", path[PATH_MAX + 16];
	int start = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), depth = 0;

	(void)state;
	memset(path, 'g', sizeof(path));
	assert_non_null(mkdtemp(folder));
	assert_int_equal(chdir(folder), 0);
	for (; depth < PATH_MAX / (int)sizeof(name) + 1; depth++)
		assert_true(mkdir(name, 0700) == 0 && chdir(name) == 0);
	assert_null(realpath(".", path));
	assert_int_equal(errno, ENAMETOOLONG);
	assert_memory_equal(path + PATH_MAX, "gggggggggggggggg", 16);
	for (; depth > 0; depth--)
		assert_true(chdir("..") == 0 && rmdir(name) == 0);
	assert_int_equal(fchdir(start), 0);
	assert_int_equal(close(start), 0);
	assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(soft0_is_the_only_device),
		cmocka_unit_test(libmlx5_does_not_take_soft0_for_its_own),
		cmocka_unit_test(tables_of_the_port_have_one_entry),
		cmocka_unit_test(structs_of_any_size_are_filled),
		cmocka_unit_test(what_soft0_lacks_is_refused),
		cmocka_unit_test(contexts_of_a_process_share_gid_and_qpns),
		cmocka_unit_test(memory_of_the_nic_is_read_and_written),
		cmocka_unit_test(a_forked_child_closes_what_it_inherited),
		cmocka_unit_test(a_forked_child_closes_a_context_in_use),
		cmocka_unit_test(a_context_closes_with_objects),
		cmocka_unit_test(a_forked_child_opens_its_own),
		cmocka_unit_test(threads_open_and_close_at_once),
		cmocka_unit_test(contexts_close_with_objects_at_once),
		cmocka_unit_test(a_handle_of_libibverbs_has_these_functions),
		cmocka_unit_test(a_path_that_is_too_long_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
