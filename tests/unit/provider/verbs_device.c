/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices that libibverbs lists, and regions on them. The program replaces libibverbs, so
 * that devices can fail in every way.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/plugins.h"
#include "tests/support/recorded.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <infiniband/verbs.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/log.h>
#include <pier/mr.h>
#include <pier/verbs.h>

#include "device/device.h"
#include "device/open.h"

enum {
	DEVICES = 4,
	LENGTH = 100,
};

struct nic {
	struct ibv_device device; /* must be first: a NIC is found by its device */
	int open_error;
	uint8_t active_port; /* 0: none */
	int probe_error;     /* errno of registering fd -1 as a dma-buf */
	int pd_error;
	int qp_error;
	uint32_t vendor_id;
};

static struct {
	struct nic nics[DEVICES];
	int count, list_error, reg_error;
	int contexts, pds, queues, mrs; /* live objects */
	struct ibv_mr mr;
	int warnings;
	char warning[512];
} verbs;

static struct nic *nic_of(struct ibv_device *device)
{
	return (struct nic *)device;
}

struct ibv_device **ibv_get_device_list(int *ret_count)
{
	struct ibv_device **list;

	if (verbs.list_error) {
		errno = verbs.list_error;
		return NULL;
	}
	list = calloc(DEVICES + 1, sizeof(struct ibv_device *));
	for (int i = 0; i < verbs.count; i++)
		list[i] = &verbs.nics[i].device;
	*ret_count = verbs.count;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context;

	/* Not all providers set it. */
	if (nic_of(device)->open_error > 0)
		errno = nic_of(device)->open_error;
	if (nic_of(device)->open_error)
		return NULL;
	context = calloc(1, sizeof(*context));
	context->device = device;
	context->async_fd = -1;
	verbs.contexts++;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	free(context);
	verbs.contexts--;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
	*ret_attr = (struct ibv_device_attr){
		.max_mr_size = 1 << 20,
		.phys_port_cnt = 2,
		.vendor_id = nic_of(context->device)->vendor_id,
	};
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port,
		   struct _compat_ibv_port_attr *ret_attr)
{
	bool active = nic_of(context->device)->active_port == port;

	((struct ibv_port_attr *)ret_attr)->state = active ? IBV_PORT_ACTIVE
							   : IBV_PORT_DOWN;
	((struct ibv_port_attr *)ret_attr)->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd;

	errno = nic_of(context->device)->pd_error;
	if (errno)
		return NULL;
	pd = calloc(1, sizeof(*pd));
	pd->context = context;
	verbs.pds++;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	verbs.pds--;
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	(void)context, (void)cqe, (void)cq_context, (void)channel, (void)comp_vector;
	verbs.queues++;
	return calloc(1, sizeof(struct ibv_cq));
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	verbs.queues--;
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	(void)attr;
	errno = nic_of(pd->context->device)->qp_error;
	if (errno)
		return NULL;
	verbs.queues++;
	return calloc(1, sizeof(struct ibv_qp));
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	verbs.queues--;
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	(void)pd, (void)addr, (void)length, (void)iova, (void)access;
	errno = verbs.reg_error;
	if (verbs.reg_error)
		return NULL;
	verbs.mrs++;
	return &verbs.mr;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	int probe_error = nic_of(pd->context->device)->probe_error;

	(void)offset, (void)length, (void)iova, (void)access;
	/* The test passes no dma-bufs: the kernel returns EINVAL for all other fds. */
	errno = fd < 0 || probe_error != EBADF ? probe_error : EINVAL;
	return NULL;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	assert_ptr_equal(mr, &verbs.mr);
	verbs.mrs--;
	return 0;
}

static void take_warning(enum pier_log_level level, const char *message, void *argument)
{
	(void)argument;
	if (level != PIER_LOG_WARNING)
		return;
	verbs.warnings++;
	snprintf(verbs.warning, sizeof(verbs.warning), "%s", message);
}

static void add_nic(const char *name, struct nic nic)
{
	snprintf(nic.device.name, sizeof(nic.device.name), "%s", name);
	verbs.nics[verbs.count++] = nic;
}

/* A machine without RDMA devices; opened devices must be closed again. */
static int reset(void **state)
{
	(void)state;
	memset(&verbs, 0, sizeof(verbs));
	pier_log_set(PIER_LOG_WARNING, take_warning, NULL);
	return unsetenv("PIER_DEVICE");
}

static int nothing_left(void **state)
{
	(void)state;
	return verbs.contexts + verbs.pds + verbs.queues + verbs.mrs;
}

static struct pier_device *open_device(const char *name, const char *expected)
{
	struct pier_device *device;

	assert_int_equal(pier_device_open(name, &device), 0);
	assert_string_equal(pier_device_name(device), expected);
	return device;
}

static void lists_soft0_without_libibverbs(void **state)
{
	struct pier_device_info *list;
	uint32_t count;

	(void)state;
	verbs.list_error = ENOSYS;
	assert_int_equal(pier_device_list(&list, &count, sizeof(*list)), 0);
	assert_int_equal(count, 1);
	assert_string_equal(list[0].name, PIER_SOFT_DEVICE);
	free(list);
	pier_device_close(open_device(PIER_SOFT_DEVICE, PIER_SOFT_DEVICE));
}

/* Programs must not silently become slow because a port is down. */
static void never_chooses_soft0(void **state)
{
	struct pier_device *device = NULL;

	(void)state;
	verbs.list_error = ENOSYS;
	assert_int_equal(pier_device_open(NULL, &device), -ENODEV);
	test_assert_sentence(
		"there is no RDMA device: the kernel has no RDMA support, or "
		"/dev/infiniband is not visible here: modprobe ib_uverbs, or pass the "
		"device into the container (PIER_DEVICE=soft0 or the name soft0 selects "
		"the software NIC)");
	verbs.list_error = 0;
	assert_int_equal(pier_device_open(NULL, &device), -ENODEV);
	test_assert_sentence("there is no RDMA device (PIER_DEVICE=soft0");
	add_nic("closed0", (struct nic){ .open_error = EACCES, .active_port = 1 });
	add_nic("down0", (struct nic){ 0 });
	assert_int_equal(pier_device_open(NULL, &device), -ENODEV);
	test_assert_sentence("no RDMA device can be used");
	test_assert_sentence(
		"opening closed0: Permission denied; down0 has no active port");
	assert_null(device);
	setenv("PIER_DEVICE", PIER_SOFT_DEVICE, 1);
	pier_device_close(open_device(NULL, PIER_SOFT_DEVICE));
}

/* A missing feature other than a port is no reason to refuse the device. */
static void accepts_devices_without_dmabufs(void **state)
{
	(void)state;
	add_nic("nic0", (struct nic){ .active_port = 1, .probe_error = EOPNOTSUPP });
	pier_device_close(open_device(NULL, "nic0"));
}

static void reports_why_there_are_no_devices(void **state)
{
	struct pier_device *device = NULL;

	(void)state;
	verbs.list_error = EPERM;
	assert_int_equal(pier_device_open("mlx5_0", &device), -ENODEV);
	test_assert_sentence("no RDMA device \"mlx5_0\"; there are: soft0");
	test_assert_sentence("libibverbs lists none: Operation not permitted");
	assert_int_equal(pier_device_open("soft0,soft0", &device), -ENODEV);
	test_assert_sentence("no RDMA device \"soft0,soft0\": one NIC is opened here");
	assert_null(device);
	verbs.list_error = 0;
	add_nic("mlx5_1", (struct nic){ 0 });
	assert_int_equal(pier_device_open("mlx5_0", &device), -ENODEV);
	test_assert_sentence("there are: mlx5_1, soft0");
	assert_null(strstr(pier_error_message(), "lists none"));
}

/* A device that is listed but cannot be opened is not an unknown one. */
static void reports_why_a_listed_device_is_gone(void **state)
{
	struct pier_device *device = NULL;

	(void)state;
	add_nic("gone0", (struct nic){ .open_error = ENODEV });
	assert_int_equal(pier_device_open("gone0", &device), -ENODEV);
	test_assert_sentence("opening gone0: No such device");
	assert_null(device);
}

static void opens_the_first_working_device(void **state)
{
	(void)state;
	add_nic("closed0", (struct nic){ .open_error = EACCES, .active_port = 1 });
	add_nic("down0", (struct nic){ 0 });
	add_nic("good0", (struct nic){ .active_port = 2 });
	add_nic("good1", (struct nic){ .active_port = 1 });
	pier_device_close(open_device(NULL, "good0"));
	/* The owner of this NIC would otherwise never learn why it is not used. */
	assert_int_equal(verbs.warnings, 1);
	assert_non_null(strstr(verbs.warning, "closed0"));
	assert_non_null(strstr(verbs.warning, "Permission denied"));
	setenv("PIER_DEVICE", "good1", 1);
	pier_device_close(open_device(NULL, "good1"));
	pier_device_close(open_device("down0", "down0"));
	assert_int_equal(verbs.warnings, 1);
}

static void reports_why_a_device_does_not_open(void **state)
{
	struct pier_device *device = NULL;

	(void)state;
	add_nic("closed0", (struct nic){ .open_error = EACCES });
	add_nic("silent0", (struct nic){ .open_error = -1 });
	assert_int_equal(pier_device_open("closed0", &device), -EACCES);
	test_assert_sentence("opening closed0: Permission denied");
	/* Not the errno of another call. */
	errno = ENOTTY;
	assert_int_equal(pier_device_open("silent0", &device), -EIO);
	assert_null(device);
}

static void probes_dmabuf_support(void **state)
{
	static const struct {
		int error;
		bool dmabuf;
	} cases[] = {
		{ EBADF, true },
		{ EOPNOTSUPP, false },
		{ EPROTONOSUPPORT, false },
		/* Drivers from elsewhere have their own ways to refuse fd -1. */
		{ EINVAL, true },
		{ EAGAIN, true },
		{ EPERM, true },
	};
	struct pier_device_attr attr;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_device *device;

		verbs.count = 0;
		add_nic("nic0", (struct nic){ .probe_error = cases[i].error });
		device = open_device("nic0", "nic0");
		assert_int_equal(pier_device_query(device, &attr, sizeof(attr)), 0);
		assert_int_equal(attr.dmabuf, cases[i].dmabuf);
		assert_false(attr.memfd_as_dmabuf);
		pier_device_close(device);
	}
}

/* Without UMR, mlx5 does not look at the fd. */
static void names_what_virtual_functions_lack(void **state)
{
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr = NULL;

	(void)state;
	add_nic("nic0", (struct nic){ .probe_error = EINVAL, .vendor_id = 0x02c9 });
	device = open_device("nic0", "nic0");
	assert_int_equal(pier_pd_alloc(device, &pd), 0);
	assert_int_equal(
		pier_mr_reg_dmabuf(pd, 0, 4096, 0, 0, PIER_ACCESS_LOCAL_WRITE, &mr),
		-EOPNOTSUPP);
	test_assert_sentence("needs UMR");
	test_assert_sentence("virtual functions");
	assert_int_equal(pier_pd_dealloc(pd), 0);
	pier_device_close(device);
}

/* hns alone, whose kernel driver reports the vendor of its PCI device. */
static void knows_whose_cpu_copies_receives(void **state)
{
	static const uint32_t vendors[] = { 0x19e5, 0x02c9, 0 };
	struct pier_device *device;

	(void)state;
	for (size_t i = 0; i < sizeof(vendors) / sizeof(vendors[0]); i++) {
		verbs.count = 0;
		add_nic("nic0",
			(struct nic){ .probe_error = EBADF, .vendor_id = vendors[i] });
		device = open_device("nic0", "nic0");
		assert_int_equal(device->copies_receives, i == 0);
		pier_device_close(device);
	}
}

/* A cgroup's limit, or a container's rights, are not the device's. */
static void passing_refusals_are_no_answer(void **state)
{
	static const int errors[] = { EAGAIN, EPERM, EMFILE };
	struct pier_device *device;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		verbs.count = 0;
		add_nic("nic0", (struct nic){ .probe_error = EBADF,
					      .qp_error = errors[i],
					      .active_port = 1 });
		/* It is chosen, and the first channel will have the reason. */
		device = open_device(NULL, "nic0");
		assert_int_equal(pier_device_check_channels(device), 0);
		pier_device_close(device);
	}
	verbs.count = 0;
	add_nic("nic0", (struct nic){ .probe_error = EBADF, .qp_error = EOPNOTSUPP });
	device = open_device("nic0", "nic0");
	assert_int_equal(pier_device_check_channels(device), -EOPNOTSUPP);
	pier_device_close(device);
}

/* The kernel has a device whose driver's library is missing. */
static void names_the_missing_library(void **state)
{
	struct recorded tree = recorded_start();
	char text[384];

	(void)state;
	recorded_add(&tree, "class/infiniband/mlx5_0/node_guid = 1");
	pier_explain_unlisted(tree.root, NULL, text, sizeof(text));
	assert_non_null(strstr(text, "the kernel has mlx5_0"));
	assert_non_null(strstr(text, "ibverbs-providers"));
	pier_explain_unlisted(tree.root, "mlx5_1", text, sizeof(text));
	assert_string_equal(text, "");
	add_nic("mlx5_0", (struct nic){ 0 });
	pier_explain_unlisted(tree.root, "mlx5_0", text, sizeof(text));
	assert_string_equal(text, "");
	recorded_close(&tree);
}

/* An error that says nothing about the device must not become "no dma-bufs". */
static void does_not_remember_transient_failures(void **state)
{
	struct pier_device *device = NULL;

	(void)state;
	add_nic("nic0", (struct nic){ .probe_error = ENOMEM });
	add_nic("nic1", (struct nic){ .probe_error = EBADF, .pd_error = ENOMEM });
	assert_int_equal(pier_device_open("nic0", &device), -ENOMEM);
	test_assert_sentence("whether nic0 registers dma-bufs");
	assert_int_equal(pier_device_open("nic1", &device), -ENOMEM);
	test_assert_sentence("nic1");
	assert_null(device);
	assert_int_equal(pier_object_count(PIER_OBJECT_DEVICE), 0);
}

struct fixture {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct test_census before;
	struct pier_mr *mr;
};

static struct fixture open_fixture(const char *spec, int probe_error)
{
	struct fixture fixture = { .mr = NULL };

	add_nic("nic0", (struct nic){ .probe_error = probe_error });
	fixture.device = open_device("nic0", "nic0");
	assert_int_equal(pier_pd_alloc(fixture.device, &fixture.pd), 0);
	assert_int_equal(pier_buffer_alloc(spec, LENGTH, &fixture.buffer), 0);
	fixture.before = test_take_census();
	return fixture;
}

static int reg(struct fixture *fixture, int access, enum pier_policy policy)
{
	return pier_mr_reg_buffer(fixture->pd, fixture->buffer, 0, LENGTH, access, policy,
				  &fixture->mr);
}

static void expect_host(struct fixture *fixture)
{
	assert_int_equal(pier_mr_path(fixture->mr), PIER_PATH_HOST);
	assert_int_equal(pier_buffer_free(fixture->buffer), -EBUSY);
	assert_int_equal(pier_pd_dealloc(fixture->pd), -EBUSY);
	assert_int_equal(pier_mr_dereg(fixture->mr), 0);
	fixture->mr = NULL;
}

static void close_fixture(struct fixture *fixture)
{
	assert_null(fixture->mr);
	test_assert_census(&fixture->before);
	assert_int_equal(pier_buffer_free(fixture->buffer), 0);
	assert_int_equal(pier_pd_dealloc(fixture->pd), 0);
	assert_int_equal(pier_device_close(fixture->device), 0);
}

static void registers_memfds_as_host_memory(void **state)
{
	struct fixture fixture = open_fixture("memfd", EBADF);

	(void)state;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_DIRECT), 0);
	expect_host(&fixture);
	assert_int_equal(verbs.warnings, 0);
	close_fixture(&fixture);
}

static void suggests_a_remedy(void **state)
{
	struct fixture fixture = open_fixture("host", EBADF);
	struct rlimit limit;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = 64 << 10;
	if (limit.rlim_cur > limit.rlim_max)
		limit.rlim_cur = limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	verbs.reg_error = ENOMEM;
	assert_int_equal(reg(&fixture, 0, PIER_POLICY_DIRECT), -ENOMEM);
	test_assert_sentence("RLIMIT_MEMLOCK is");
	/* can_do_mlock() of the kernel, where the limit is 0. */
	verbs.reg_error = EPERM;
	assert_int_equal(reg(&fixture, 0, PIER_POLICY_DIRECT), -EPERM);
	test_assert_sentence("RLIMIT_MEMLOCK is");
	verbs.reg_error = EFAULT;
	assert_int_equal(reg(&fixture, 0, PIER_POLICY_DIRECT), -EFAULT);
	test_assert_sentence("a mapping of device memory");
	close_fixture(&fixture);
}

static void stays_on_the_direct_path(void **state)
{
	struct fixture fixture = open_fixture("liar", EOPNOTSUPP);

	(void)state;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_DIRECT),
			 -EOPNOTSUPP);
	test_assert_sentence("nic0 cannot register dma-bufs");
	close_fixture(&fixture);
}

static void falls_back_and_reports_it(void **state)
{
	struct fixture fixture = open_fixture("liar", EOPNOTSUPP);

	(void)state;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_ANY), 0);
	assert_int_equal(verbs.warnings, 1);
	assert_non_null(strstr(verbs.warning, "cannot register dma-bufs"));
	expect_host(&fixture);
	close_fixture(&fixture);
}

/* EINVAL, but no mistake of the caller's. */
static void falls_back_from_a_bad_export(void **state)
{
	struct fixture fixture = open_fixture("liar", EBADF);

	(void)state;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_DIRECT), -EINVAL);
	test_assert_sentence("is a memfd, not a dma-buf");
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_ANY), 0);
	assert_int_equal(verbs.warnings, 1);
	expect_host(&fixture);
	close_fixture(&fixture);
}

static void reports_a_mistake_once(void **state)
{
	struct fixture fixture = open_fixture("liar", EOPNOTSUPP);

	(void)state;
	for (int policy = PIER_POLICY_DIRECT; policy <= PIER_POLICY_ANY; policy++) {
		assert_int_equal(
			reg(&fixture, PIER_ACCESS_REMOTE_WRITE, (enum pier_policy)policy),
			-EINVAL);
		test_assert_sentence("need LOCAL_WRITE");
		assert_null(strstr(pier_error_message(), "dma-buf"));
	}
	assert_int_equal(verbs.warnings, 0);
	close_fixture(&fixture);
}

static void reports_every_attempt(void **state)
{
	struct fixture fixture = open_fixture("liar:far", EOPNOTSUPP);

	(void)state;
	verbs.reg_error = EFAULT;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_ANY), -EFAULT);
	test_assert_sentence("as peer memory");
	test_assert_sentence("nvidia-peermem");
	test_assert_sentence("nic0 cannot register dma-bufs");
	assert_int_equal(verbs.warnings, 0);
	close_fixture(&fixture);
}

/* Memory that the CPU cannot reach, by the device's own pointer. */
static void uses_peer_memory_if_allowed(void **state)
{
	struct fixture fixture = open_fixture("liar:far", EOPNOTSUPP);

	(void)state;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_DIRECT),
			 -EOPNOTSUPP);
	for (int policy = PIER_POLICY_PEERMEM; policy <= PIER_POLICY_ANY; policy++) {
		assert_int_equal(
			reg(&fixture, PIER_ACCESS_SHARED, (enum pier_policy)policy), 0);
		assert_int_equal(pier_mr_path(fixture.mr), PIER_PATH_PEERMEM);
		assert_int_equal(pier_mr_dereg(fixture.mr), 0);
	}
	/* The first is that the canary could not be sent. */
	assert_int_equal(verbs.warnings, 3);
	assert_non_null(strstr(verbs.warning, "as peer memory, not as a dma-buf: "));
	fixture.mr = NULL;
	close_fixture(&fixture);
}

/* Memory that the CPU can reach is not peer memory, and host memory is not allowed. */
static void does_not_treat_host_memory_as_peer_memory(void **state)
{
	struct fixture fixture = open_fixture("liar", EOPNOTSUPP);

	(void)state;
	assert_int_equal(reg(&fixture, PIER_ACCESS_SHARED, PIER_POLICY_PEERMEM),
			 -EOPNOTSUPP);
	test_assert_sentence("nic0 cannot register dma-bufs");
	close_fixture(&fixture);
}

/* As in a program that does not know pier. */
static struct ibv_pd *own_pd(void)
{
	struct ibv_context *context;

	add_nic("nic0", (struct nic){ .probe_error = EBADF });
	context = ibv_open_device(&verbs.nics[0].device);
	return ibv_alloc_pd(context);
}

static void give_own_pd_back(struct ibv_pd *pd)
{
	struct ibv_context *context = pd->context;

	/* pier has left both alone. */
	assert_int_equal(verbs.pds, 1);
	assert_int_equal(verbs.contexts, 1);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
}

static void imports_a_pd_and_borrows_it(void **state)
{
	struct ibv_pd *own = own_pd();
	struct pier_device_attr attr;
	char memory[LENGTH];
	struct pier_pd *pd;
	struct pier_mr *mr;

	(void)state;
	expect_ok(pier_pd_import(own, &pd));
	assert_ptr_equal(pier_pd_verbs(pd), own);
	assert_string_equal(pier_device_name(pier_pd_device(pd)), "nic0");
	expect_ok(pier_device_query(pier_pd_device(pd), &attr, sizeof(attr)));
	assert_true(attr.dmabuf);
	expect_ok(pier_mr_reg(pd, memory, LENGTH, PIER_ACCESS_LOCAL_READ, &mr));
	assert_int_equal(pier_pd_dealloc(pd), -EBUSY);
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(pier_device_close(pier_pd_device(pd)), -EBUSY);
	expect_ok(pier_pd_dealloc(pd));
	assert_int_equal(pier_object_count(PIER_OBJECT_DEVICE), 0);
	assert_int_equal(pier_object_count(PIER_OBJECT_PD), 0);
	give_own_pd_back(own);
}

static void imports_of_a_context_share_a_device(void **state)
{
	struct ibv_pd *own = own_pd(), *other = ibv_alloc_pd(own->context);
	struct pier_pd *pds[4];

	(void)state;
	expect_ok(pier_pd_import(own, &pds[0]));
	expect_ok(pier_pd_import(other, &pds[1]));
	expect_ok(pier_pd_import(own, &pds[2]));
	expect_ok(pier_pd_alloc(pier_pd_device(pds[0]), &pds[3]));
	assert_int_equal(pier_object_count(PIER_OBJECT_DEVICE), 1);
	for (int i = 0; i < 4; i++)
		assert_ptr_equal(pier_pd_device(pds[i]), pier_pd_device(pds[3]));
	for (int i = 0; i < 4; i++)
		expect_ok(pier_pd_dealloc(pds[i]));
	assert_int_equal(pier_object_count(PIER_OBJECT_DEVICE), 0);
	ibv_dealloc_pd(other);
	give_own_pd_back(own);
}

static void imports_a_pd_of_a_device_that_pier_opened(void **state)
{
	struct pier_device *device;
	struct pier_pd *pd, *again;

	(void)state;
	add_nic("nic0", (struct nic){ .probe_error = EBADF });
	device = open_device("nic0", "nic0");
	expect_ok(pier_pd_alloc(device, &pd));
	expect_ok(pier_pd_import(pier_pd_verbs(pd), &again));
	assert_ptr_equal(pier_pd_device(again), device);
	expect_ok(pier_pd_dealloc(again));
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

static void failed_import_leaves_nothing_behind(void **state)
{
	struct ibv_pd *own = own_pd();
	struct pier_pd *pd = NULL;

	(void)state;
	assert_int_equal(pier_pd_import(NULL, &pd), -EINVAL);
	verbs.nics[0].pd_error = ENOMEM;
	assert_int_equal(pier_pd_import(own, &pd), -ENOMEM);
	test_assert_sentence("nic0");
	assert_null(pd);
	assert_int_equal(pier_object_count(PIER_OBJECT_DEVICE), 0);
	give_own_pd_back(own);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, reset, nothing_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(lists_soft0_without_libibverbs),
		CASE(never_chooses_soft0),
		CASE(accepts_devices_without_dmabufs),
		CASE(reports_why_there_are_no_devices),
		CASE(reports_why_a_listed_device_is_gone),
		CASE(opens_the_first_working_device),
		CASE(reports_why_a_device_does_not_open),
		CASE(probes_dmabuf_support),
		CASE(names_what_virtual_functions_lack),
		CASE(knows_whose_cpu_copies_receives),
		CASE(passing_refusals_are_no_answer),
		CASE(names_the_missing_library),
		CASE(does_not_remember_transient_failures),
		CASE(registers_memfds_as_host_memory),
		CASE(suggests_a_remedy),
		CASE(stays_on_the_direct_path),
		CASE(falls_back_and_reports_it),
		CASE(falls_back_from_a_bad_export),
		CASE(reports_a_mistake_once),
		CASE(reports_every_attempt),
		CASE(uses_peer_memory_if_allowed),
		CASE(does_not_treat_host_memory_as_peer_memory),
		CASE(imports_a_pd_and_borrows_it),
		CASE(imports_of_a_context_share_a_device),
		CASE(imports_a_pd_of_a_device_that_pier_opened),
		CASE(failed_import_leaves_nothing_behind),
	};

	return cmocka_run_group_tests_name("verbs_device", tests, test_make_liar,
					   test_remove_liar);
}
