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

#include <infiniband/verbs.h>

#include "src/provider/comp_counter.h"

enum {
	LENGTH = 64,
	THREADS = 8,
	ROUNDS = 20
};

static struct ibv_context *open_soft0(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	assert_non_null(list);
	context = ibv_open_device(list[0]);
	assert_non_null(context);
	ibv_free_device_list(list);
	return context;
}

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

#define assert_no_object(call)                       \
	do {                                         \
		errno = 0;                           \
		assert_null(call);                   \
		assert_int_equal(errno, EOPNOTSUPP); \
	} while (0)

static void what_soft0_lacks_is_refused(void **state)
{
	struct ibv_context *context = open_soft0();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_alloc_dm_attr dm = { .length = LENGTH };
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
	assert_no_object(ibv_alloc_dm(context, &dm));
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

/* One end of a connection, and the memory that it offers. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[LENGTH];
};

static void open_end(struct end *end)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	end->context = open_soft0();
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 4, NULL, NULL, 0);
	assert_true(end->pd && end->cq);
	init.send_cq = init.recv_cq = end->cq;
	init.cap = (struct ibv_qp_cap){
		.max_send_wr = 4,
		.max_send_sge = 1,
		.max_recv_wr = 4,
		.max_recv_sge = 1,
	};
	end->qp = ibv_create_qp(end->pd, &init);
	end->mr = ibv_reg_mr(end->pd, end->memory, LENGTH,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ);
	assert_true(end->qp && end->mr);
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	assert_int_equal(ibv_modify_qp(end->qp, &attr,
				       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS),
			 0);
}

static void connect_end(struct end *end, const union ibv_gid *gid, uint32_t qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qpn,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = *gid },
	};

	assert_int_equal(ibv_modify_qp(end->qp, &attr,
				       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_MIN_RNR_TIMER),
			 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.max_rd_atomic = 1;
	assert_int_equal(ibv_modify_qp(end->qp, &attr,
				       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC),
			 0);
}

static void post_between(struct end *from, struct end *to, enum ibv_wr_opcode opcode,
			 uint32_t rkey, unsigned int flags)
{
	struct ibv_sge piece = {
		.addr = (uintptr_t)from->memory,
		.length = LENGTH,
		.lkey = from->mr->lkey,
	};
	struct ibv_send_wr wr = {
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = flags,
		.wr.rdma = { .remote_addr = (uintptr_t)to->memory, .rkey = rkey },
	}, *bad;

	assert_int_equal(ibv_post_send(from->qp, &wr, &bad), 0);
}

static enum ibv_wc_status wait_for_completion(struct end *end)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		continue;
	assert_int_equal(count, 1);
	return wc.status;
}

static void write_between(struct end *from, struct end *to)
{
	memset(from->memory, 'f', LENGTH);
	post_between(from, to, IBV_WR_RDMA_WRITE, to->mr->rkey, IBV_SEND_SIGNALED);
	assert_int_equal(wait_for_completion(from), IBV_WC_SUCCESS);
	assert_memory_equal(to->memory, from->memory, LENGTH);
}

static void destroy_objects(struct end *end)
{
	assert_int_equal(ibv_destroy_qp(end->qp), 0);
	assert_int_equal(ibv_dereg_mr(end->mr), 0);
	assert_int_equal(ibv_destroy_cq(end->cq), 0);
	assert_int_equal(ibv_dealloc_pd(end->pd), 0);
}

static void close_end(struct end *end)
{
	destroy_objects(end);
	assert_int_equal(ibv_close_device(end->context), 0);
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

/* Newer headers declare these functions, with types that older ones lack. */
static struct pier_comp_counter_functions counters;

static int find_counters(void **state)
{
	(void)state;
#define FIND(member, symbol)                                       \
	*(void **)&counters.member = dlvsym(RTLD_DEFAULT, #symbol, \
					    PIER_COMP_COUNTER_VERSION);
	PIER_COMP_COUNTER_SYMBOLS(FIND)
#define CHECK(member, symbol) assert_non_null(counters.member);
	PIER_COMP_COUNTER_SYMBOLS(CHECK)
	return 0;
}

static struct pier_comp_counter *new_counter(struct end *end)
{
	const struct pier_comp_counter_init_attr attr = { .type = PIER_COUNTS_REQUESTS };
	struct pier_comp_counter *counter = counters.create(end->context, &attr);

	assert_non_null(counter);
	assert_ptr_equal(counter->context, end->context);
	return counter;
}

static int attach(struct end *end, struct pier_comp_counter *counter, uint32_t kinds)
{
	const struct pier_comp_counter_attach_attr attr = { .kinds = kinds };

	return counters.attach(end->qp, counter, &attr);
}

static struct pier_comp_counter *counter_of(struct end *end, uint32_t kinds)
{
	struct pier_comp_counter *counter = new_counter(end);

	assert_int_equal(attach(end, counter, kinds), 0);
	return counter;
}

static void expect_counts(struct pier_comp_counter *counter, uint64_t successes,
			  uint64_t errors)
{
	uint64_t value = UINT64_MAX;

	assert_int_equal(counters.read(counter, &value), 0);
	assert_int_equal(value, successes);
	assert_int_equal(counters.read_errors(counter, &value), 0);
	assert_int_equal(value, errors);
}

static void connect_both(struct end *a, struct end *b)
{
	union ibv_gid gid;

	assert_int_equal(ibv_query_gid(a->context, 1, 0, &gid), 0);
	connect_end(a, &gid, b->qp->qp_num);
	connect_end(b, &gid, a->qp->qp_num);
}

static void post_recv(struct end *end)
{
	struct ibv_sge piece = {
		.addr = (uintptr_t)end->memory,
		.length = LENGTH,
		.lkey = end->mr->lkey,
	};
	struct ibv_recv_wr wr = { .sg_list = &piece, .num_sge = 1 }, *bad;

	assert_int_equal(ibv_post_recv(end->qp, &wr, &bad), 0);
}

static void counters_count_each_kind_of_operation(void **state)
{
	struct pier_comp_counter *writes, *reads, *sends, *recvs, *remote;
	struct end a = { 0 }, b = { 0 };

	(void)state;
	open_end(&a);
	open_end(&b);
	writes = counter_of(&a, PIER_COUNTS_WRITE);
	reads = counter_of(&a, PIER_COUNTS_READ);
	sends = counter_of(&a, PIER_COUNTS_SEND);
	recvs = counter_of(&b, PIER_COUNTS_RECV);
	remote = counter_of(&b, PIER_COUNTS_REMOTE_WRITE);
	connect_both(&a, &b);
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		/* An unsignaled request counts too, and completes before the next one. */
		post_between(&a, &b, IBV_WR_RDMA_WRITE, b.mr->rkey, 0);
		write_between(&a, &b);
		expect_counts(writes, 2 * i, 0);
	}
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		post_between(&a, &b, IBV_WR_RDMA_READ, b.mr->rkey, IBV_SEND_SIGNALED);
		assert_int_equal(wait_for_completion(&a), IBV_WC_SUCCESS);
		expect_counts(reads, i, 0);
	}
	post_recv(&b);
	post_recv(&b);
	post_between(&a, &b, IBV_WR_SEND, 0, IBV_SEND_SIGNALED);
	post_between(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, b.mr->rkey, IBV_SEND_SIGNALED);
	for (uint64_t i = 1; i <= 2; i++) {
		assert_int_equal(wait_for_completion(&a), IBV_WC_SUCCESS);
		assert_int_equal(wait_for_completion(&b), IBV_WC_SUCCESS);
	}
	/* The message came after all writes before it. */
	expect_counts(remote, 2 * ROUNDS + 1, 0);
	expect_counts(writes, 2 * ROUNDS + 1, 0);
	expect_counts(reads, ROUNDS, 0);
	expect_counts(sends, 1, 0);
	expect_counts(recvs, 2, 0);
	close_end(&a);
	close_end(&b);
	assert_int_equal(counters.destroy(writes), 0);
	assert_int_equal(counters.destroy(reads), 0);
	assert_int_equal(counters.destroy(sends), 0);
	assert_int_equal(counters.destroy(recvs), 0);
	assert_int_equal(counters.destroy(remote), 0);
}

static void counters_count_failures_apart(void **state)
{
	const uint32_t local = PIER_COUNTS_SEND | PIER_COUNTS_WRITE;
	struct pier_comp_counter *sent, *received;
	struct end a = { 0 }, b = { 0 };

	(void)state;
	open_end(&a);
	open_end(&b);
	sent = counter_of(&a, local);
	received = counter_of(&b, PIER_COUNTS_REMOTE_WRITE | PIER_COUNTS_RECV);
	connect_both(&a, &b);
	write_between(&a, &b);
	post_recv(&b);
	/* A key that nobody has, and a request that is flushed after it. */
	post_between(&a, &b, IBV_WR_RDMA_WRITE, b.mr->rkey + 1, 0);
	post_between(&a, &b, IBV_WR_SEND, 0, 0);
	assert_int_equal(wait_for_completion(&a), IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(wait_for_completion(&a), IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(wait_for_completion(&b), IBV_WC_WR_FLUSH_ERR);
	expect_counts(sent, 1, 2);
	expect_counts(received, 1, 2);
	close_end(&a);
	close_end(&b);
	assert_int_equal(counters.destroy(sent), 0);
	assert_int_equal(counters.destroy(received), 0);
}

static void counters_are_attached_before_the_connection(void **state)
{
	struct pier_comp_counter *counter, *other;
	struct end a = { 0 }, b = { 0 };

	(void)state;
	open_end(&a);
	open_end(&b);
	counter = counter_of(&a, PIER_COUNTS_WRITE | PIER_COUNTS_READ);
	other = new_counter(&a);
	assert_int_equal(attach(&a, other, PIER_COUNTS_READ | PIER_COUNTS_SEND), EBUSY);
	assert_int_equal(attach(&a, other, 0), EINVAL);
	assert_int_equal(attach(&a, other, PIER_COUNTS_REMOTE_READ), ENOTSUP);
	assert_int_equal(attach(&a, other, 1 << PIER_COUNTED_KINDS), ENOTSUP);
	assert_int_equal(attach(&b, other, PIER_COUNTS_SEND), EINVAL);
	connect_both(&a, &b);
	assert_int_equal(attach(&a, other, PIER_COUNTS_SEND), EINVAL);
	assert_int_equal(counters.destroy(other), 0);
	assert_int_equal(counters.destroy(counter), EBUSY);
	close_end(&a);
	close_end(&b);
	assert_int_equal(counters.destroy(counter), 0);
}

static void counters_are_set_and_wrap(void **state)
{
	struct pier_comp_counter_init_attr attr = { .type = PIER_COUNTS_BYTES };
	struct pier_comp_counter_caps caps = { .kinds = 1 };
	struct pier_comp_counter *counter;
	struct end a = { 0 };

	(void)state;
	open_end(&a);
	assert_int_equal(counters.query_caps(a.context, &caps, sizeof(caps)), 0);
	assert_true(caps.max_value == UINT64_MAX && caps.max_counters > 0);
	assert_int_equal(caps.kinds,
			 (1 << PIER_COUNTED_KINDS) - 1 - PIER_COUNTS_REMOTE_READ);
	errno = 0;
	assert_null(counters.create(a.context, &attr));
	assert_int_equal(errno, ENOTSUP);
	attr = (struct pier_comp_counter_init_attr){ .flags = 1 };
	assert_null(counters.create(a.context, &attr));
	assert_int_equal(errno, EINVAL);
	counter = new_counter(&a);
	expect_counts(counter, 0, 0);
	assert_int_equal(counters.set(counter, UINT64_MAX), 0);
	assert_int_equal(counters.set_errors(counter, 7), 0);
	expect_counts(counter, UINT64_MAX, 7);
	assert_int_equal(counters.add(counter, 3), 0);
	assert_int_equal(counters.add_errors(counter, 3), 0);
	expect_counts(counter, 2, 10);
	assert_int_equal(counters.destroy(counter), 0);
	close_end(&a);
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
		cmocka_unit_test(a_forked_child_closes_what_it_inherited),
		cmocka_unit_test(a_forked_child_closes_a_context_in_use),
		cmocka_unit_test(a_context_closes_with_objects),
		cmocka_unit_test(a_forked_child_opens_its_own),
		cmocka_unit_test(threads_open_and_close_at_once),
		cmocka_unit_test(contexts_close_with_objects_at_once),
		cmocka_unit_test(a_handle_of_libibverbs_has_these_functions),
		cmocka_unit_test(a_path_that_is_too_long_is_refused),
		cmocka_unit_test(counters_count_each_kind_of_operation),
		cmocka_unit_test(counters_count_failures_apart),
		cmocka_unit_test(counters_are_attached_before_the_connection),
		cmocka_unit_test(counters_are_set_and_wrap),
	};

	return cmocka_run_group_tests(tests, find_counters, NULL);
}
