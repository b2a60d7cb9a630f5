/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Registration of GPU memory with a NIC that asks the kernel module, as the NIC's driver
 * does when it attaches and maps a dma-buf: errors that come only then, the choice of the
 * mapping, and Data Direct.
 */
#include "cuda_fixture.h"

#include <sys/stat.h>

#include "device/device.h"
#include "region/path.h"
#include "tests/support/recorded.h"

/* soft0, with calls of the test's in between. */
static struct {
	struct pier_device *device;
	struct pier_pd *pd;
	const struct pier_provider *soft;
	struct pier_provider provider;
	/* Set by the test. */
	uint64_t least;	 /* the NIC's IOMMU refuses shorter dma-bufs */
	int query_error; /* of query_data_direct */
	const char *sibling;
	int data_direct_error;
	/* Counted and kept. */
	int registrations, data_directs;
	uint64_t offset, length, iova;
	uint64_t pcie_exports; /* before the test */
} nic;

static int pcie_exports(void)
{
	return (int)(app.control->pcie_exports - nic.pcie_exports);
}

static struct ibv_mr *attach(struct ibv_pd *pd, uint64_t offset, size_t length,
			     uint64_t iova, int fd, int access)
{
	struct stat status;

	nic.registrations++;
	nic.offset = offset;
	nic.length = length;
	nic.iova = iova;
	errno = app.control->attach(fd);
	if (errno)
		return NULL;
	assert_int_equal(fstat(fd, &status), 0);
	if ((uint64_t)status.st_size < nic.least) {
		errno = EFAULT;
		return NULL;
	}
	return nic.soft->reg_dmabuf_mr(pd, offset, length, iova, fd, access);
}

/* As reg_user_mr_dmabuf_by_data_direct() in the kernel's mlx5 driver. */
static struct ibv_mr *attach_directly(struct ibv_pd *pd, uint64_t offset, size_t length,
				      uint64_t iova, int fd, int access)
{
	nic.data_directs++;
	errno = nic.data_direct_error;
	if (iova % pier_host_page() != 0)
		errno = EOPNOTSUPP;
	return errno ? NULL : attach(pd, offset, length, iova, fd, access);
}

static int query_data_direct(struct ibv_context *context, char *ret_path, size_t size)
{
	(void)context;
	if (nic.query_error == ENODEV)
		return -pier_fail(ENODEV, "no engine");
	if (!nic.query_error)
		snprintf(ret_path, size, "/devices/pci0001:00/%s", nic.sibling);
	return nic.query_error;
}

static int setup(void **state)
{
	fixture_setup(state);
	app.control->windows = FAKE_CUDA_WINDOWS_COPIED;
	expect_ok(pier_device_open("soft0", &nic.device));
	expect_ok(pier_pd_alloc(nic.device, &nic.pd));
	nic.soft = nic.device->provider;
	nic.provider = *nic.soft;
	nic.provider.reg_dmabuf_mr = attach;
	nic.provider.reg_data_direct_mr = attach_directly;
	nic.provider.query_data_direct = query_data_direct;
	nic.device->provider = &nic.provider;
	nic.device->switches.canary = PIER_SWITCH_OFF;
	nic.least = 0;
	nic.query_error = EOPNOTSUPP;
	nic.sibling = "";
	nic.data_direct_error = 0;
	nic.registrations = nic.data_directs = 0;
	nic.pcie_exports = app.control->pcie_exports;
	return 0;
}

static int teardown(void **state)
{
	nic.device->provider = nic.soft;
	expect_ok(pier_pd_dealloc(nic.pd));
	expect_ok(pier_device_close(nic.device));
	return fixture_teardown(state);
}

static struct pier_buffer *alloc(const char *spec, size_t length)
{
	struct pier_buffer *buffer;

	expect_ok(pier_buffer_alloc(spec, length, &buffer));
	return buffer;
}

/* cuMemAlloc()'s or another kind, of a device that NVLink-C2C joins to the CPU. */
static struct pier_buffer *alloc_coherent(const char *spec)
{
	app.control->device[atoi(strchr(spec, ':') + 1)].coherent = true;
	return alloc(spec, FIXTURE_BLOCK);
}

static int reg(struct pier_buffer *buffer, size_t offset, size_t length,
	       enum pier_mapping mapping, struct pier_mr **ret_mr)
{
	struct pier_mr_range range = pier_mr_range_buffer(buffer, offset, length);
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.mapping = mapping;
	return pier_mr_reg_attr(nic.pd, &attr, ret_mr);
}

static void expect_mapping(struct pier_buffer *buffer, enum pier_mapping mapping)
{
	struct pier_mr *mr = NULL;

	expect_ok(reg(buffer, 0, pier_buffer_length(buffer), PIER_MAPPING_AUTO, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_DMABUF);
	assert_int_equal(test_mr_info(mr).mapping, mapping);
	expect_ok(pier_mr_dereg(mr));
}

/* "Unknown error 524" says nothing. */
static void explains_the_kernels_enotsupp(void **state)
{
	struct pier_buffer *buffer = alloc("cuda:0", FIXTURE_BLOCK);
	struct pier_mr *mr = NULL;

	(void)state;
	app.control->device[0].attach_error = 524;
	expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_AUTO, &mr), -EOPNOTSUPP);
	test_assert_sentence("dmesg");
	test_assert_sentence("with \"pcie\"");
	expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_PCIE, &mr), -EOPNOTSUPP);
	test_assert_sentence("PCIe tree");
	expect_ok(pier_buffer_free(buffer));
}

/* torchcomms' pull request 1354: on GB200, other memory may be taken. */
static void suggests_vmm_on_a_coherent_device(void **state)
{
	struct pier_buffer *plain = alloc("cuda:1:linear", FIXTURE_BLOCK),
			   *linear = alloc_coherent("cuda:1:linear"),
			   *vmm = alloc_coherent("cuda:1:vmm");
	struct pier_mr *mr = NULL;

	(void)state;
	nic.least = UINT64_MAX;
	expect_result(reg(plain, 0, 1, PIER_MAPPING_AUTO, &mr), -EFAULT);
	assert_null(strstr(pier_error_message(), "vmm"));
	expect_result(reg(linear, 0, 1, PIER_MAPPING_AUTO, &mr), -EFAULT);
	test_assert_sentence("with \"pcie\"");
	test_assert_sentence("try cuda:1:vmm, or cuMemCreate with gpuDirectRDMACapable");
	expect_result(reg(linear, 0, 1, PIER_MAPPING_DEFAULT, &mr), -EFAULT);
	test_assert_sentence("try cuda:1:vmm");
	expect_result(reg(vmm, 0, 1, PIER_MAPPING_AUTO, &mr), -EFAULT);
	assert_null(strstr(pier_error_message(), "try cuda"));
	expect_ok(pier_buffer_free(vmm));
	expect_ok(pier_buffer_free(linear));
	expect_ok(pier_buffer_free(plain));
}

/* The BAR is used up when the NIC's driver maps the dma-buf, not when it is exported. */
static void a_full_bar_fails_the_registration(void **state)
{
	struct pier_buffer *first = alloc("cuda:0", FIXTURE_BLOCK);
	struct pier_buffer *second = alloc("cuda:0", FIXTURE_BLOCK);
	struct pier_mr *mr = NULL;

	(void)state;
	app.control->device[0].bar = 3 * FIXTURE_MIB;
	expect_mapping(first, PIER_MAPPING_DEFAULT);
	expect_result(reg(second, 0, FIXTURE_BLOCK, PIER_MAPPING_AUTO, &mr), -ENOMEM);
	test_assert_sentence("is its BAR used up?");
	/* Both mappings would need it. */
	assert_int_equal(pcie_exports(), 0);
	expect_ok(pier_buffer_free(first));
	expect_mapping(second, PIER_MAPPING_DEFAULT);
	expect_ok(pier_buffer_free(second));
}

static void tries_the_other_mapping_of_a_coherent_device(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:linear");

	(void)state;
	app.control->device[0].attach_error = ENOMEM;
	expect_mapping(buffer, PIER_MAPPING_PCIE);
	assert_int_equal(pcie_exports(), 1);
	/* There may be memory again. */
	app.control->device[0].attach_error = 0;
	expect_mapping(buffer, PIER_MAPPING_DEFAULT);
	expect_ok(pier_buffer_free(buffer));
}

/* It registers and reaches other memory, which the canary finds. */
static void the_wrong_mapping_is_followed_by_the_other(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:linear");

	(void)state;
	nic.device->switches.canary = PIER_SWITCH_ON;
	/* Copies are no memory to share. */
	app.control->windows = FAKE_CUDA_WINDOWS_REFUSED;
	app.control->device[0].pcie = FAKE_CUDA_PCIE_REQUIRED;
	expect_mapping(buffer, PIER_MAPPING_PCIE);
	/* The next one knows. */
	nic.registrations = 0;
	expect_mapping(buffer, PIER_MAPPING_PCIE);
	assert_int_equal(nic.registrations, 1);
	expect_ok(pier_buffer_free(buffer));
}

/* The next `count` calls of that name; 0: none any more. */
static void fail_calls(const char *name, int result, uint64_t count)
{
	struct fake_cuda_call *call = fake_cuda_call(app.control, name);

	assert_non_null(call);
	call->fail_in = count > 0;
	call->fail_more = count > 0 ? count - 1 : 0;
	call->fail_result = result;
}

/* Memory of cuMemAlloc() may not be registered there, and says nothing about other
 * memory. */
static void the_canary_is_of_the_kind_of_the_memory(void **state)
{
	struct pier_buffer *vmm = alloc_coherent("cuda:0:vmm");
	struct pier_buffer *linear = alloc_coherent("cuda:0:linear");
	struct pier_buffer *pool = alloc_coherent("cuda:0:pool");

	(void)state;
	nic.device->switches.canary = PIER_SWITCH_ON;
	app.control->windows = FAKE_CUDA_WINDOWS_REFUSED;
	app.control->device[0].pcie = FAKE_CUDA_PCIE_REQUIRED;
	fail_calls("cuMemAlloc", CUDA_ERROR_NOT_SUPPORTED, 1000);
	expect_mapping(vmm, PIER_MAPPING_PCIE);
	fail_calls("cuMemAlloc", 0, 0);
	fail_calls("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED, 1000);
	expect_mapping(linear, PIER_MAPPING_PCIE);
	app.control->device[0].every_kind = true;
	fail_calls("cuMemAlloc", CUDA_ERROR_NOT_SUPPORTED, 1000);
	expect_mapping(pool, PIER_MAPPING_PCIE);
	fail_calls("cuMemAlloc", 0, 0);
	fail_calls("cuMemCreate", 0, 0);
	expect_ok(pier_buffer_free(vmm));
	expect_ok(pier_buffer_free(linear));
	expect_ok(pier_buffer_free(pool));
}

/* One of the two mappings registers and loses bytes. */
static void an_untested_mapping_is_refused(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:vmm");
	struct pier_mr *mr = NULL;

	(void)state;
	nic.device->switches.canary = PIER_SWITCH_AUTO;
	fail_calls("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED, 1000);
	for (int i = 0; i < 3; i++) {
		expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_AUTO, &mr),
			      -EIO);
		test_assert_sentence(
			"with the mapping \"default\": whether soft0 reaches");
		test_assert_sentence("with \"pcie\": whether soft0 reaches");
		test_assert_sentence("the test was not run: allocating ");
		test_assert_sentence("cuda:0:vmm: cuMemCreate");
		test_assert_sentence("PIER_CANARY=off");
		expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_DEFAULT, &mr),
			      -EIO);
	}
	/* With the other policies another path is taken, or none. */
	for (int policy = PIER_POLICY_PEERMEM; policy <= PIER_POLICY_ANY; policy++) {
		expect_result(pier_mr_reg_buffer(nic.pd, buffer, 0, FIXTURE_BLOCK,
						 PIER_ACCESS_SHARED,
						 (enum pier_policy)policy, &mr),
			      -EFAULT);
		test_assert_sentence("as peer memory");
		test_assert_sentence("PIER_CANARY=off accepts it untested");
	}
	expect_ok(pier_mr_reg_buffer(nic.pd, buffer, 0, FIXTURE_BLOCK, PIER_ACCESS_SHARED,
				     PIER_POLICY_BOUNCE, &mr));
	assert_int_equal(pier_mr_path(mr), PIER_PATH_BOUNCE);
	assert_non_null(strstr(pier_mr_reason(mr), "PIER_CANARY=off"));
	expect_ok(pier_mr_dereg(mr));
	/* What a user may consent to. */
	nic.device->switches.canary = PIER_SWITCH_OFF;
	expect_mapping(buffer, PIER_MAPPING_DEFAULT);
	nic.device->switches.canary = PIER_SWITCH_AUTO;
	expect_ok(pier_buffer_free(buffer));
	/* Other devices have no other mapping. */
	app.control->device[0].coherent = false;
	fail_calls("cuMemCreate", 0, 0);
	buffer = alloc("cuda:0:vmm", FIXTURE_BLOCK);
	fail_calls("cuMemCreate", CUDA_ERROR_NOT_SUPPORTED, 1000);
	expect_mapping(buffer, PIER_MAPPING_DEFAULT);
	fail_calls("cuMemCreate", 0, 0);
	expect_ok(pier_buffer_free(buffer));
}

/* An error that may pass is put off, not forgotten. */
static void memory_that_is_short_leaves_it_untested(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:vmm");
	struct pier_mr *mr = NULL;

	(void)state;
	nic.device->switches.canary = PIER_SWITCH_AUTO;
	app.control->windows = FAKE_CUDA_WINDOWS_REFUSED;
	fail_calls("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, 1000);
	for (int i = 0; i < 3; i++)
		expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_DEFAULT, &mr),
			      -EIO);
	fail_calls("cuMemCreate", 0, 0);
	/* The fourth registration tries again. */
	expect_mapping(buffer, PIER_MAPPING_DEFAULT);
	expect_ok(pier_buffer_free(buffer));
}

/* The dma-buf is wider, the key is not. */
static void registers_a_part_by_the_whole_allocation(void **state)
{
	struct pier_buffer *buffer = alloc("cuda:0", 2 * FIXTURE_BLOCK);
	uint64_t page = pier_host_page(), offset = FIXTURE_BLOCK + page + 5;
	struct pier_mr *mr = NULL;

	(void)state;
	nic.least = 2 * FIXTURE_BLOCK;
	expect_ok(reg(buffer, offset, 1000, PIER_MAPPING_AUTO, &mr));
	assert_int_equal(nic.registrations, 2);
	assert_int_equal(nic.offset, offset);
	assert_int_equal(nic.length, 1000);
	assert_int_equal(nic.iova, pier_buffer_address(buffer) + offset);
	assert_int_equal(pier_mr_iova(mr), pier_buffer_address(buffer) + offset);
	assert_int_equal(pier_mr_length(mr), 1000);
	expect_ok(pier_mr_dereg(mr));
	/* If that does not help, the first refusal is the one to know. */
	nic.least = UINT64_MAX;
	expect_result(reg(buffer, 0, 1000, PIER_MAPPING_DEFAULT, &mr), -EFAULT);
	assert_int_equal(nic.registrations, 4);
	/* There is no more than the whole. */
	expect_result(reg(buffer, 0, 2 * FIXTURE_BLOCK, PIER_MAPPING_DEFAULT, &mr),
		      -EFAULT);
	assert_int_equal(nic.registrations, 5);
	expect_ok(pier_buffer_free(buffer));
}

/* The segment that contains it, not the next one. */
static void registers_a_part_by_its_whole_segment(void **state)
{
	struct pier_buffer *buffer = alloc("cuda:0:vmm:2M", 2 * FIXTURE_BLOCK);
	uint64_t offset = pier_host_page() + 100;
	struct pier_mr *mr = NULL;

	(void)state;
	nic.least = FIXTURE_BLOCK;
	expect_ok(reg(buffer, FIXTURE_BLOCK + offset, 100, PIER_MAPPING_AUTO, &mr));
	assert_int_equal(nic.registrations, 2);
	assert_int_equal(nic.offset, offset);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
}

static void remembers_the_mapping_for_each_pair(void **state)
{
	struct pier_buffer *first = alloc_coherent("cuda:0:linear"),
			   *second = alloc_coherent("cuda:1:linear");

	(void)state;
	app.control->device[0].attach_error = 524;
	expect_mapping(first, PIER_MAPPING_PCIE);
	expect_mapping(second, PIER_MAPPING_DEFAULT);
	assert_int_equal(nic.registrations, 3);
	expect_mapping(first, PIER_MAPPING_PCIE);
	assert_int_equal(nic.registrations, 4);
	expect_ok(pier_buffer_free(first));
	expect_ok(pier_buffer_free(second));
}

/* mlx5 without an engine: PCIe would register and not work. */
static void refuses_pcie_without_an_engine(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:linear");
	struct pier_mr *mr = NULL;

	(void)state;
	nic.query_error = ENODEV;
	expect_mapping(buffer, PIER_MAPPING_DEFAULT);
	expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_PCIE, &mr), -EOPNOTSUPP);
	test_assert_sentence("only through Data Direct: no engine");
	app.control->device[0].attach_error = 524;
	expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_AUTO, &mr), -EOPNOTSUPP);
	assert_int_equal(pcie_exports(), 0);
	/* Only coherent devices have two paths. */
	expect_ok(pier_buffer_free(buffer));
	app.control->device[0].coherent = false;
	buffer = alloc("cuda:0", FIXTURE_BLOCK);
	expect_result(reg(buffer, 0, FIXTURE_BLOCK, PIER_MAPPING_PCIE, &mr), -EOPNOTSUPP);
	assert_int_equal(pcie_exports(), 1);
	expect_ok(pier_buffer_free(buffer));
}

static void registers_pcie_with_the_engine(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:linear");
	struct pier_mr *mr = NULL;

	(void)state;
	nic.query_error = 0;
	nic.sibling = "0001:01:00.0";
	expect_ok(reg(buffer, 4096, 1, PIER_MAPPING_PCIE, &mr));
	assert_int_equal(nic.data_directs, 1);
	assert_int_equal(nic.offset, 0);
	expect_ok(pier_mr_dereg(mr));
	/* Not only from the start of a dma-buf on. */
	nic.least = FIXTURE_BLOCK;
	expect_ok(reg(buffer, pier_host_page(), 1, PIER_MAPPING_PCIE, &mr));
	assert_int_equal(nic.data_directs, 3);
	assert_int_equal(nic.offset, pier_host_page());
	expect_ok(pier_mr_dereg(mr));
	nic.least = 0;
	/* The default mapping is the NIC's own. */
	expect_ok(reg(buffer, 0, 1, PIER_MAPPING_DEFAULT, &mr));
	assert_int_equal(nic.data_directs, 3);
	expect_ok(pier_mr_dereg(mr));
	expect_ok(pier_buffer_free(buffer));
}

/* The engine wants the page's first byte, which the key must not cover. */
static void leaves_the_engine_if_the_range_does_not_suit(void **state)
{
	struct pier_buffer *buffer = alloc_coherent("cuda:0:linear");
	struct pier_mr *mr = NULL;

	(void)state;
	nic.query_error = 0;
	expect_result(reg(buffer, 100, 1, PIER_MAPPING_PCIE, &mr), -EOPNOTSUPP);
	test_assert_sentence("this range begins 100 bytes into a page");
	/* No wider dma-buf is tried: the key would begin there, too. */
	assert_int_equal(nic.data_directs, 1);
	app.control->device[0].attach_error = 524;
	expect_result(reg(buffer, 100, 1, PIER_MAPPING_AUTO, &mr), -EOPNOTSUPP);
	expect_ok(reg(buffer, 0, 1, PIER_MAPPING_AUTO, &mr));
	app.control->device[0].attach_error = 0;
	expect_ok(pier_mr_dereg(mr));
	/* PCIe was remembered; the default mapping serves this range. */
	expect_ok(reg(buffer, 100, 1, PIER_MAPPING_AUTO, &mr));
	assert_int_equal(test_mr_info(mr).mapping, PIER_MAPPING_DEFAULT);
	expect_ok(pier_mr_dereg(mr));
	/* Others still use the engine. */
	expect_mapping(buffer, PIER_MAPPING_PCIE);
	expect_ok(pier_buffer_free(buffer));
}

/*
 * As on GB200: below a bridge of domain 1 the first GPU and its NIC's second function;
 * below another one the NIC itself, by the CPU.
 */
static const char *const tree_lines[] = {
	"devices/pci0001:00/0001:00:00.0/0001:01:00.0/0001:02:00.0/numa_node = 0",
	"devices/pci0001:00/0001:00:00.0/0001:01:00.0/0001:03:00.0/numa_node = 0",
	"devices/pci0002:00/0002:00:00.0/0002:01:00.0/numa_node = 0",
	"bus/pci/devices/0001:02:00.0 -> "
	"../../../devices/pci0001:00/0001:00:00.0/0001:01:00.0/0001:02:00.0",
	"bus/pci/devices/0001:03:00.0 -> "
	"../../../devices/pci0001:00/0001:00:00.0/0001:01:00.0/0001:03:00.0",
	"bus/pci/devices/0002:01:00.0 -> "
	"../../../devices/pci0002:00/0002:00:00.0/0002:01:00.0",
};

struct choice {
	bool coherent;
	int query_error;
	const char *sibling; /* the engine */
	const char *own;     /* the NIC's link in sysfs */
	const char *gpu;
	enum pier_mapping mapping;
};

#define NEAR "0001:03:00.0"
#define FAR  "0002:01:00.0"
#define GPU  "0001:02:00.0"

static const struct choice choices[] = {
	/* EFA: by its own place. */
	{ true, EOPNOTSUPP, "", NEAR, GPU, PIER_MAPPING_PCIE },
	{ true, EOPNOTSUPP, "", FAR, GPU, PIER_MAPPING_DEFAULT },
	{ true, EOPNOTSUPP, "", NEAR, FAR, PIER_MAPPING_DEFAULT },
	/* mlx5: by the engine's place, and never without. */
	{ true, 0, NEAR, FAR, GPU, PIER_MAPPING_PCIE },
	{ true, 0, NEAR, FAR, FAR, PIER_MAPPING_DEFAULT },
	{ true, 0, "", FAR, GPU, PIER_MAPPING_DEFAULT },
	{ true, ENODEV, "", NEAR, GPU, PIER_MAPPING_DEFAULT },
	/* One path, so one mapping. */
	{ false, EOPNOTSUPP, "", NEAR, GPU, PIER_MAPPING_DEFAULT },
	{ false, 0, NEAR, NEAR, GPU, PIER_MAPPING_DEFAULT },
};

/* What PIER_TOPO_FILE says counts before the tree. */
static const struct {
	const char *text;
	struct choice choice;
} corrected[] = {
	{ "distance cuda:0 soft0 switch\n",
	  { true, EOPNOTSUPP, "", FAR, GPU, PIER_MAPPING_PCIE } },
	{ "distance cuda:0 soft0 c2c\n",
	  { true, EOPNOTSUPP, "", NEAR, GPU, PIER_MAPPING_DEFAULT } },
	{ "nic soft0 pci=" FAR "\n",
	  { true, EOPNOTSUPP, "", NEAR, GPU, PIER_MAPPING_DEFAULT } },
	/* The engine is a place of its own. */
	{ "distance cuda:0 soft0 switch\n",
	  { true, 0, "0003:01:00.0", FAR, GPU, PIER_MAPPING_DEFAULT } },
	{ "distance cuda:0 0003:01:00.0 switch\n",
	  { true, 0, "0003:01:00.0", FAR, GPU, PIER_MAPPING_PCIE } },
	/* Nobody could be told of an error, so it is only a warning. */
	{ "wrong\n", { true, EOPNOTSUPP, "", NEAR, GPU, PIER_MAPPING_PCIE } },
};

static void write_topology(const struct recorded *tree, const char *text)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "%s/topology.txt", tree->root);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	setenv("PIER_TOPO_FILE", path, 1);
}

/* text: of PIER_TOPO_FILE, or NULL */
static void check_choice(const struct choice *choice, const char *text)
{
	struct pier_buffer *buffer = choice->coherent
					     ? alloc_coherent("cuda:0:linear")
					     : alloc("cuda:0:linear", FIXTURE_BLOCK);
	struct pier_mr *region = calloc(1, sizeof(*region));
	struct pier_part_request segment = {
		.region = region,
		.range = pier_mr_range_buffer(buffer, 0, 1),
	};
	struct recorded tree = recorded_start();
	char line[128];

	assert_non_null(region);
	region->pd = nic.pd;
	for (size_t i = 0; i < sizeof(tree_lines) / sizeof(tree_lines[0]); i++)
		recorded_add(&tree, tree_lines[i]);
	snprintf(line, sizeof(line),
		 "class/infiniband/soft0/device -> ../../../bus/pci/devices/%s",
		 choice->own);
	recorded_add(&tree, line);
	snprintf(app.control->device[0].pci, sizeof(app.control->device[0].pci), "%s",
		 choice->gpu);
	nic.query_error = choice->query_error;
	nic.sibling = choice->sibling;
	if (text)
		write_topology(&tree, text);
	assert_int_equal(pier_choose_mapping(tree.root, &segment), choice->mapping);
	unsetenv("PIER_TOPO_FILE");
	recorded_close(&tree);
	free(region);
	app.control->device[0].coherent = false;
	expect_ok(pier_buffer_free(buffer));
}

static void chooses_the_mapping_by_the_topology(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
		check_choice(&choices[i], NULL);
}

static void corrects_the_topology_of_the_choice(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(corrected) / sizeof(corrected[0]); i++)
		check_choice(&corrected[i].choice, corrected[i].text);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(explains_the_kernels_enotsupp),
		CASE(suggests_vmm_on_a_coherent_device),
		CASE(a_full_bar_fails_the_registration),
		CASE(tries_the_other_mapping_of_a_coherent_device),
		CASE(the_wrong_mapping_is_followed_by_the_other),
		CASE(the_canary_is_of_the_kind_of_the_memory),
		CASE(an_untested_mapping_is_refused),
		CASE(memory_that_is_short_leaves_it_untested),
		CASE(registers_a_part_by_the_whole_allocation),
		CASE(registers_a_part_by_its_whole_segment),
		CASE(remembers_the_mapping_for_each_pair),
		CASE(refuses_pcie_without_an_engine),
		CASE(registers_pcie_with_the_engine),
		CASE(leaves_the_engine_if_the_range_does_not_suit),
		CASE(chooses_the_mapping_by_the_topology),
		CASE(corrects_the_topology_of_the_choice),
	};

	return cmocka_run_group_tests(tests, fixture_begin, NULL);
}
