/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Selection of the NIC nearest to memory. The program replaces libibverbs and lists the
 * NICs of a fixed device tree; the memory comes from the plugin "board".
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/plugins.h"
#include "tests/support/recorded.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include <pier/buffer.h>
#include <pier/channel.h>
#include <pier/log.h>

#include "buffer/locate.h"
#include "buffer/near.h"
#include "buffer/topology_file.h"
#include "device/gid_table.h"
#include "device/topology.h"
#include "transfer/rails.h"

enum {
	NIC_GIDS = PIER_GID_OFFERS + 1,
	FOREIGN = 99, /* an interface of another network namespace */
};

struct nic {
	struct ibv_device device; /* must be first: a NIC is found by its device */
	bool down;
	int link_layer; /* -1: unspecified; 0: Ethernet; 1: InfiniBand */
	struct ibv_gid_entry gids[NIC_GIDS];
	int open_error, cq_error, qp_error;
	int ports;	  /* 0: one */
	int second_error; /* of querying port 2 */
};

static struct {
	struct recorded tree;
	struct nic nics[RECORDED_MAX];
	int contexts, pds, queues; /* live objects */
	int warnings;
	char warning[512];
} machine;

static struct nic *nic_of(struct ibv_device *device)
{
	return (struct nic *)device;
}

struct ibv_device **ibv_get_device_list(int *ret_count)
{
	struct ibv_device **list = calloc(RECORDED_MAX + 1, sizeof(*list));

	for (size_t i = 0; list && i < machine.tree.nic_count; i++)
		list[i] = &machine.nics[i].device;
	*ret_count = (int)machine.tree.nic_count;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context;

	errno = nic_of(device)->open_error;
	if (errno)
		return NULL;
	context = calloc(1, sizeof(*context));
	context->device = device;
	context->async_fd = -1;
	machine.contexts++;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	free(context);
	machine.contexts--;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
	int ports = nic_of(context->device)->ports;

	*ret_attr =
		(struct ibv_device_attr){ .phys_port_cnt = (uint8_t)(ports ? ports : 1) };
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port,
		   struct _compat_ibv_port_attr *ret_attr)
{
	struct ibv_port_attr *attr = (struct ibv_port_attr *)ret_attr;
	const struct nic *nic = nic_of(context->device);

	if (port == 2 && nic->second_error)
		return nic->second_error;
	attr->state = nic->down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	attr->link_layer = nic->link_layer < 0	 ? IBV_LINK_LAYER_UNSPECIFIED
			   : nic->link_layer > 0 ? IBV_LINK_LAYER_INFINIBAND
						 : IBV_LINK_LAYER_ETHERNET;
	attr->gid_tbl_len = NIC_GIDS;
	return 0;
}

/* An entry of another network namespace cannot be read. */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
		      struct ibv_gid_entry *ret_entry, uint32_t flags, size_t size)
{
	const struct nic *nic = nic_of(context->device);

	(void)port, (void)flags, (void)size;
	if (index >= NIC_GIDS)
		return EINVAL;
	if (nic->gids[index].ndev_ifindex == FOREIGN)
		return ENODEV;
	if (!nic->gids[index].gid.global.interface_id)
		return ENODATA;
	*ret_entry = nic->gids[index];
	return 0;
}

/* A kernel before 5.10. */
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
			     size_t count, uint32_t flags, size_t size)
{
	(void)context, (void)entries, (void)count, (void)flags, (void)size;
	return -EOPNOTSUPP;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	machine.pds++;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	machine.pds--;
	return 0;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				 uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access;
	errno = EBADF;
	return NULL;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	struct ibv_cq *cq;

	(void)cq_context, (void)channel, (void)comp_vector;
	assert_int_equal(cqe, 1);
	errno = nic_of(context->device)->cq_error;
	if (errno)
		return NULL;
	cq = calloc(1, sizeof(*cq));
	machine.queues++;
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	machine.queues--;
	return 0;
}

/* EFA refuses by the type alone: efa_qp_validate_attr() in efa_verbs.c. */
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *qp;

	assert_int_equal(attr->qp_type, IBV_QPT_RC);
	errno = nic_of(pd->context->device)->qp_error;
	if (errno)
		return NULL;
	qp = calloc(1, sizeof(*qp));
	machine.queues++;
	return qp;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	machine.queues--;
	return 0;
}

static void take_warning(enum pier_log_level level, const char *message, void *argument)
{
	(void)argument;
	if (level != PIER_LOG_WARNING)
		return;
	machine.warnings++;
	snprintf(machine.warning, sizeof(machine.warning), "%s", message);
}

static void start_machine(const char *tree)
{
	memset(&machine, 0, sizeof(machine));
	machine.tree = recorded_open(tree);
	for (size_t i = 0; i < machine.tree.nic_count; i++)
		memcpy(machine.nics[i].device.name, machine.tree.nics[i],
		       sizeof(machine.tree.nics[i]));
	pier_log_set(PIER_LOG_WARNING, take_warning, NULL);
	unsetenv("PIER_DEVICE");
	unsetenv("BOARD");
}

static void stop_machine(void)
{
	recorded_close(&machine.tree);
	assert_int_equal(machine.contexts, 0);
	assert_int_equal(machine.pds, 0);
	assert_int_equal(machine.queues, 0);
}

static struct nic *nic_named(const char *name)
{
	for (size_t i = 0; i < machine.tree.nic_count; i++)
		if (strcmp(machine.nics[i].device.name, name) == 0)
			return &machine.nics[i];
	fail_msg("no NIC %s", name);
	return NULL;
}

static int position(const char *name)
{
	return (int)(nic_named(name) - machine.nics);
}

/*
 * Near devices come before far ones, and fast ones before slow ones; equal ones have the
 * order of libibverbs, from any of them on. The software NIC is not listed.
 */
static void check_order(const struct pier_near_device *list, size_t count)
{
	int wraps = 0;

	assert_int_equal(count, machine.tree.nic_count);
	for (size_t i = 1; i < count; i++) {
		assert_true(list[i - 1].distance <= list[i].distance);
		if (list[i - 1].distance != list[i].distance ||
		    list[i - 1].speed != list[i].speed) {
			assert_true(list[i - 1].distance != list[i].distance ||
				    list[i - 1].speed > list[i].speed);
			wraps = 0;
			continue;
		}
		wraps += position(list[i - 1].name) > position(list[i].name);
		assert_true(wraps <= 1);
	}
}

/* For each GPU of each machine. */
static const struct {
	const char *tree, *gpu, *nic;
	enum pier_distance distance;
} nearest[] = {
	{ "dgx-a100", "0000:07:00.0", "mlx5_0", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:0f:00.0", "mlx5_1", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:47:00.0", "mlx5_2", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:4e:00.0", "mlx5_3", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:87:00.0", "mlx5_6", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:90:00.0", "mlx5_7", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:b7:00.0", "mlx5_8", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:bd:00.0", "mlx5_9", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:1b:00.0", "mlx5_0", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:43:00.0", "mlx5_3", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:52:00.0", "mlx5_4", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:61:00.0", "mlx5_5", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:9d:00.0", "mlx5_6", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:c3:00.0", "mlx5_9", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:d1:00.0", "mlx5_10", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:df:00.0", "mlx5_11", PIER_DISTANCE_SWITCHES },
	{ "hgx-virtual", "0000:b8:00.0", "mlx5_9", PIER_DISTANCE_SWITCH },
	{ "hgx-virtual", "0000:d9:00.0", "mlx5_5", PIER_DISTANCE_SWITCH },
	{ "ec2-p4d", "0000:10:1c.0", "rdmap16s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:10:1d.0", "rdmap16s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:20:1c.0", "rdmap32s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:20:1d.0", "rdmap32s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:90:1c.0", "rdmap144s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:90:1d.0", "rdmap144s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:a0:1c.0", "rdmap160s27", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:a0:1d.0", "rdmap160s27", PIER_DISTANCE_HOST_BRIDGE },
	/* Not rxe0, which is listed first but has no location. */
	{ "kvm-guest", "0000:00:05.0", "mlx5_0", PIER_DISTANCE_HOST_BRIDGE },
	{ "kvm-guest", "0000:00:06.0", "mlx5_1", PIER_DISTANCE_HOST_BRIDGE },
	{ "azure-nd", "0001:00:00.0", "mlx5_ib2", PIER_DISTANCE_NODE },
	{ "azure-nd", "0002:00:00.0", "mlx5_ib3", PIER_DISTANCE_NODE },
	{ "azure-nd", "000b:00:00.0", "mlx5_ib0", PIER_DISTANCE_NODE },
	{ "azure-nd", "000c:00:00.0", "mlx5_ib1", PIER_DISTANCE_NODE },
	{ "desktop", "0000:0a:00.0", "mlx5_0", PIER_DISTANCE_HOST_BRIDGE },
	{ "vmd", "10000:02:00.0", "irdma1", PIER_DISTANCE_HOST_BRIDGE },
	{ "two-socket", "0000:18:00.0", "mlx5_0", PIER_DISTANCE_SWITCH },
	{ "two-socket", "0000:98:00.0", "mlx5_bond_0", PIER_DISTANCE_NODE },
	{ "flat-vm", "0000:00:04.0", "mlx5_0", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:05.0", "mlx5_1", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:06.0", "mlx5_2", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:07.0", "mlx5_3", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:08.0", "mlx5_4", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:09.0", "mlx5_5", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:0a.0", "mlx5_6", PIER_DISTANCE_HOST_BRIDGE },
	{ "flat-vm", "0000:00:0b.0", "mlx5_7", PIER_DISTANCE_HOST_BRIDGE },
};

enum {
	ROWS = sizeof(nearest) / sizeof(nearest[0]),
};

/* The only unit, as the list of units names it. */
static struct pier_location unit_location(const char *place)
{
	struct pier_memory_unit *units;
	struct pier_location location;
	uint32_t count;

	setenv("BOARD", place, 1);
	expect_ok(pier_list_units_in(machine.tree.root, &units, &count));
	assert_int_equal(count, 1);
	location = units[0].location;
	free(units);
	return location;
}

static void lists_nearest_devices_first(void **state)
{
	(void)state;
	for (size_t i = 0; i < ROWS; i++) {
		struct pier_near_device *list;
		struct pier_location location;
		uint32_t count;

		if (i == 0 || strcmp(nearest[i - 1].tree, nearest[i].tree) != 0)
			start_machine(nearest[i].tree);
		location = unit_location(nearest[i].gpu);
		expect_ok(pier_list_near_in(machine.tree.root, &location, &list, &count));
		check_order(list, count);
		if (strcmp(list[0].name, nearest[i].nic) != 0 ||
		    list[0].distance != nearest[i].distance)
			fail_msg("%s: nearest to %s: %s (%s)", nearest[i].tree,
				 nearest[i].gpu, list[0].name,
				 pier_distance_name(list[0].distance));
		free(list);
		if (i + 1 == ROWS || strcmp(nearest[i].tree, nearest[i + 1].tree) != 0)
			stop_machine();
	}
}

/* Without a location all devices are equally far. */
static void keeps_the_order_without_a_location(void **state)
{
	struct pier_location nowhere = { .numa_node = -1 };
	struct pier_near_device *list;
	uint32_t count;

	(void)state;
	start_machine("dgx-a100");
	expect_ok(pier_list_near_in(machine.tree.root, &nowhere, &list, &count));
	check_order(list, count);
	assert_string_equal(list[0].name, "mlx5_0");
	free(list);
	stop_machine();
	/* The public call must also work on the machine that runs the test. */
	expect_ok(pier_device_list_near(&nowhere, &list, &count, sizeof(*list)));
	assert_int_equal(count, machine.tree.nic_count);
	free(list);
}

/*
 * A link that trained down, and a bond at the other socket. A virtual function has the
 * link of its physical one.
 */
static void lists_fast_devices_before_slow_ones(void **state)
{
	static const struct {
		const char *name;
		enum pier_distance distance;
		uint32_t speed;
	} expected[] = {
		{ "mlx5_0", PIER_DISTANCE_SWITCH, 400000 },
		{ "mlx5_3", PIER_DISTANCE_SWITCH, 400000 },
		{ "mlx5_1", PIER_DISTANCE_SWITCH, 63015 },
		{ "mlx5_2", PIER_DISTANCE_SWITCH, 0 },
		{ "mlx5_bond_0", PIER_DISTANCE_SYSTEM, 200000 },
		{ "mlx4_0", PIER_DISTANCE_SYSTEM, 16000 },
	};
	struct pier_near_device *list;
	struct pier_location location;
	uint32_t count;

	(void)state;
	start_machine("two-socket");
	location = unit_location("0000:18:00.0");
	expect_ok(pier_list_near_in(machine.tree.root, &location, &list, &count));
	assert_int_equal(count, sizeof(expected) / sizeof(expected[0]));
	for (size_t i = 0; i < count; i++) {
		assert_string_equal(list[i].name, expected[i].name);
		assert_int_equal(list[i].distance, expected[i].distance);
		assert_int_equal(list[i].speed, expected[i].speed);
	}
	free(list);
	stop_machine();
}

static void expect_first(const struct pier_location *location, const char *name)
{
	struct pier_near_device *list;
	uint32_t count;

	expect_ok(pier_list_near_in(machine.tree.root, location, &list, &count));
	check_order(list, count);
	assert_string_equal(list[0].name, name);
	free(list);
}

/* Memory without an address: the launcher numbers the processes. */
static void spreads_processes_by_local_rank(void **state)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK",
					     "MPI_LOCALRANKID", "SLURM_LOCALID",
					     "LOCAL_RANK" };
	struct pier_location node = { .numa_node = 0 };

	(void)state;
	start_machine("dgx-h100");
	expect_first(&node, "mlx5_0");
	for (int i = 0; i < 4; i++) {
		setenv(names[i], "1", 1);
		expect_first(&node, "mlx5_1");
		setenv(names[i], "6", 1);
		expect_first(&node, "mlx5_0");
		setenv(names[i], "-1", 1);
		expect_first(&node, "mlx5_0");
		unsetenv(names[i]);
	}
	stop_machine();
}

static void write_topology(const char *text)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "%s/topology.txt", machine.tree.root);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
	setenv("PIER_TOPO_FILE", path, 1);
}

/* A machine that hides its tree. */
static void file_overrides_the_tree(void **state)
{
	struct pier_location gpu = { "0000:00:04.0", -1 };
	struct pier_near_device *list;
	uint32_t count;

	(void)state;
	start_machine("flat-vm");
	expect_first(&gpu, "mlx5_0");
	write_topology("# places\n\n"
		       "distance 0000:00:04.0 mlx5_6 switch # the only one so near\n"
		       "distance mlx5_7 0000:00:04.0 host bridge \n"
		       "distance mlx5_5 0000:00:04.0 system\n");
	expect_first(&gpu, "mlx5_6");
	write_topology("distance 0000:00:04.0 mlx5_4 c2c\r\n\r\nnic mlx5_1 numa=1\r\n");
	expect_first(&gpu, "mlx5_4");
	write_topology("nic mlx5_3 numa=1 speed=800000");
	expect_first(&gpu, "mlx5_3");
	/* Nodes decide where the tree does not. */
	write_topology("nic mlx5_2 pci=0001:00:08.0 numa=1\npci 0000:00:04.0 numa=1\n"
		       "distance 0000:00:04.0 0000:00:0f.0 system\n");
	expect_ok(pier_list_near_in(machine.tree.root, &gpu, &list, &count));
	assert_int_equal(count, 8);
	assert_int_equal(list[5].distance, PIER_DISTANCE_HOST_BRIDGE);
	assert_string_equal(list[6].name, "mlx5_2");
	assert_int_equal(list[6].distance, PIER_DISTANCE_NODE);
	assert_string_equal(list[7].name, "mlx5_3");
	assert_int_equal(list[7].distance, PIER_DISTANCE_SYSTEM);
	free(list);
	assert_int_equal(machine.warnings, 0);
	unsetenv("PIER_TOPO_FILE");
	stop_machine();
}

static void check_distance(const struct pier_location *location, const char *name,
			   enum pier_distance expected)
{
	struct pier_near_device *list;
	uint32_t count, i = 0;

	expect_ok(pier_list_near_in(machine.tree.root, location, &list, &count));
	while (i < count && strcmp(list[i].name, name) != 0)
		i++;
	assert_true(i < count);
	assert_int_equal(list[i].distance, expected);
	free(list);
}

/* Units of memory stand for their PCI addresses. */
static void file_names_units_of_memory(void **state)
{
	struct pier_location first = { "0000:00:04.0", -1 },
			     second = { "0000:00:05.0", -1 };

	(void)state;
	start_machine("flat-vm");
	setenv("BOARD", "0000:00:04.0,0000:00:05.0,/1", 1);
	write_topology("distance board:0 mlx5_6 switch\n"
		       "distance mlx5_7 board:1 switch\n");
	expect_first(&first, "mlx5_6");
	expect_first(&second, "mlx5_7");
	write_topology("pci board:1 numa=1\nnic mlx5_3 pci=0001:00:08.0 numa=1\n"
		       "nic mlx5_2 pci=0001:00:09.0 numa=0\n");
	check_distance(&second, "mlx5_3", PIER_DISTANCE_NODE);
	check_distance(&second, "mlx5_2", PIER_DISTANCE_SYSTEM);
	assert_int_equal(machine.warnings, 0);
	/* The backend is not asked if the file names no unit of it. */
	setenv("BOARD", "error", 1);
	write_topology("distance 0000:00:04.0 mlx5_6 switch\n");
	expect_first(&first, "mlx5_6");
	assert_int_equal(machine.warnings, 0);
	unsetenv("PIER_TOPO_FILE");
	stop_machine();
}

/* The others of its lines count. */
static void lines_about_absent_devices_are_ignored(void **state)
{
	static const struct {
		const char *line, *warning;
	} absent[] = {
		{ "distance mlx5_9 0000:00:04.0 switch\n", "there is no NIC mlx5_9" },
		{ "nic mlx5_9 speed=100\n", "line 1 is ignored: there is no NIC mlx5_9" },
		{ "distance mlx5_1 board:3 switch\n", "there is no board:3 here" },
		{ "distance board:1 mlx5_1 same\n", "address is known of board:1" },
		{ "pci board:1 numa=0\n", "line 1 is ignored: no PCI address is known" },
	};
	struct pier_location gpu = { "0000:00:04.0", -1 };
	char text[128];

	(void)state;
	start_machine("flat-vm");
	setenv("BOARD", "0000:00:04.0,/1", 1);
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
		snprintf(text, sizeof(text), "%sdistance board:0 mlx5_6 switch\n",
			 absent[i].line);
		write_topology(text);
		machine.warnings = 0;
		expect_first(&gpu, "mlx5_6");
		assert_int_equal(machine.warnings, 1);
		assert_non_null(strstr(machine.warning, absent[i].warning));
	}
	/* They are not about the same device. */
	write_topology("distance board:3 mlx5_1 node\ndistance board:4 mlx5_1 node\n"
		       "pci board:1 numa=0\ndistance mlx5_6 board:0 switch\n");
	expect_first(&gpu, "mlx5_6");
	unsetenv("PIER_TOPO_FILE");
	stop_machine();
}

static void errors_of_the_file_name_the_line(void **state)
{
	static const struct {
		const char *text, *sentence;
	} wrong[] = {
		{ "\nhost x\n",
		  "line 2: a line begins with nic, pci or distance: \"host\"" },
		{ "nic\n", "line 1: a NIC, a PCI address or a unit of memory is" },
		{ "nic mlx5_0\n", "nothing follows the name: \"mlx5_0\"" },
		{ "nic mlx5_0 pci=17:00.0\n", "not a PCI address like 0000:17:00.0" },
		{ "nic mlx5_0 numa=-1\n", "a NUMA node is 0 to 65535: \"numa=-1\"" },
		{ "nic mlx5_0 speed=0\n", "a speed is in Mbit/s" },
		{ "nic mlx5_0 width=16\n", "not pci=ADDRESS, numa=N or speed=MBIT" },
		{ "pci mlx5_0 numa=0\n", "not a PCI address" },
		{ "pci 0000:00:04.0 speed=1\n", "not numa=N: \"speed=1\"" },
		{ "distance 0000:00:04.0\n", "is missing" },
		{ "distance 0000:00:04.0 mlx5_0\n", "needs two places and a name" },
		{ "distance 0000:00:04.0 mlx5_0 near\n", "not same, switch" },
		{ "\ndistance baord:0 mlx5_0 switch\n",
		  "line 2: not a PCI address like 0000:17:00.0 or a unit of memory like "
		  "cuda:0: \"baord:0\"" },
		{ "distance mlx5_0 board: switch\n", "line 1: not a PCI address" },
		{ "pci 17:00.0 numa=0\n", "line 1: not a PCI address" },
		{ "nic mlx5_0 numa=0\n#\nnic mlx5_0 speed=1\n",
		  "line 3: already stated: \"line 1\"" },
		{ "pci 0000:00:04.0 numa=0\npci board:0 numa=0\n", "line 2: already" },
		{ "distance mlx5_0 board:0 same\ndistance 0000:00:04.0 mlx5_0 node\n",
		  "line 2: already stated" },
	};
	struct pier_location gpu = { "0000:00:04.0", -1 };
	char long_line[600];
	struct pier_near_device *list;
	uint32_t count;

	(void)state;
	start_machine("flat-vm");
	setenv("BOARD", "0000:00:04.0", 1);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		write_topology(wrong[i].text);
		expect_result(pier_list_near_in(machine.tree.root, &gpu, &list, &count),
			      -EINVAL);
		test_assert_sentence("PIER_TOPO_FILE: ");
		test_assert_sentence(wrong[i].sentence);
	}
	memset(long_line, 'x', sizeof(long_line) - 1);
	long_line[sizeof(long_line) - 1] = '\0';
	write_topology(long_line);
	expect_result(pier_list_near_in(machine.tree.root, &gpu, &list, &count), -EINVAL);
	test_assert_sentence("line 1: a line has at most 510 bytes, none of them zero");
	setenv("PIER_TOPO_FILE", machine.tree.root, 1);
	for (int i = 0; i < 2; i++) {
		expect_result(pier_list_near_in(machine.tree.root, &gpu, &list, &count),
			      -EISDIR);
		assert_true(strncmp(pier_error_message(), "PIER_TOPO_FILE: reading /",
				    25) == 0);
		assert_null(strstr(pier_error_message() + 1, "PIER_TOPO_FILE"));
	}
	setenv("PIER_TOPO_FILE", "/nonexistent/file", 1);
	expect_result(pier_list_near_in(machine.tree.root, &gpu, &list, &count), -ENOENT);
	test_assert_sentence("PIER_TOPO_FILE: opening /nonexistent/file");
	/* A call that cannot fail goes on without the file. */
	assert_int_equal(machine.warnings, 0);
	assert_int_equal(pier_location_distance(&gpu, &gpu), PIER_DISTANCE_SAME);
	assert_int_equal(machine.warnings, 1);
	unsetenv("PIER_TOPO_FILE");
	stop_machine();
}

/* Memory of the first unit of BOARD, and the device that is opened for it. */
static void check_opens(const char *place, const char *expected)
{
	struct test_census before = test_take_census();
	struct pier_device *device = NULL;
	struct pier_buffer *buffer;

	setenv("BOARD", place, 1);
	expect_ok(pier_buffer_alloc("board:0", 1, &buffer));
	expect_ok(pier_open_near_in(machine.tree.root, buffer, &device));
	assert_string_equal(pier_device_name(device), expected);
	expect_ok(pier_device_close(device));
	expect_ok(pier_buffer_free(buffer));
	test_assert_census(&before);
}

static void check_opens_none(const char *place)
{
	struct test_census before = test_take_census();
	struct pier_device *device = NULL;
	struct pier_buffer *buffer;

	setenv("BOARD", place, 1);
	expect_ok(pier_buffer_alloc("board:0", 1, &buffer));
	expect_result(pier_open_near_in(machine.tree.root, buffer, &device), -ENODEV);
	assert_null(device);
	expect_ok(pier_buffer_free(buffer));
	test_assert_census(&before);
}

static void opens_the_nearest_device(void **state)
{
	(void)state;
	start_machine("dgx-h100");
	check_opens("0000:C3:00.0", "mlx5_9");
	check_opens("0000:61:00.0", "mlx5_5");
	/* Host memory has only a node. */
	check_opens("/1", "mlx5_6");
	check_opens("/0", "mlx5_0");
	check_opens("not a place", "mlx5_0");
	assert_int_equal(machine.warnings, 0);
	stop_machine();
}

static void skips_devices_that_do_not_work(void **state)
{
	(void)state;
	start_machine("dgx-h100");
	nic_named("mlx5_9")->down = true;
	check_opens("0000:c3:00.0", "mlx5_6"); /* the first device of that node */
	assert_int_equal(machine.warnings, 0);
	nic_named("mlx5_6")->open_error = EACCES;
	check_opens("0000:c3:00.0", "mlx5_7");
	assert_int_equal(machine.warnings, 1);
	assert_non_null(strstr(machine.warning, "mlx5_6 is passed over"));
	assert_non_null(strstr(machine.warning, "Permission denied"));
	for (size_t i = 0; i < machine.tree.nic_count; i++)
		machine.nics[i].down = true;
	check_opens_none("0000:c3:00.0");
	/* The nearest device comes first, and each has its own reason. */
	test_assert_sentence(
		"no RDMA device can be used (PIER_DEVICE=soft0 or the name "
		"soft0 selects the software NIC): mlx5_9 has no active port; "
		"opening mlx5_6: Permission denied; mlx5_7 has no");
	setenv("PIER_DEVICE", "soft0", 1);
	check_opens("0000:c3:00.0", PIER_SOFT_DEVICE);
	stop_machine();
}

static void expect_no_channels(const char *name, const char *reason)
{
	struct pier_channel *channel = NULL;
	struct pier_device *device;
	struct pier_pd *pd;

	expect_ok(pier_device_open(name, &device));
	expect_result(pier_device_check_channels(device), -EOPNOTSUPP);
	test_assert_sentence(reason);
	expect_ok(pier_pd_alloc(device, &pd));
	expect_result(pier_channel_create(pd, NULL, &channel), -EOPNOTSUPP);
	test_assert_sentence(reason);
	assert_null(channel);
	expect_ok(pier_pd_dealloc(pd));
	expect_ok(pier_device_close(device));
}

/* They register memory, so they open when they are named. */
static void passes_over_devices_without_channels(void **state)
{
	struct pier_device *device;

	(void)state;
	start_machine("dgx-h100");
	nic_named("mlx5_9")->qp_error = EOPNOTSUPP;
	nic_named("mlx5_6")->device.transport_type = IBV_TRANSPORT_IWARP;
	nic_named("mlx5_7")->link_layer = -1;
	check_opens("0000:c3:00.0", "mlx5_8");
	expect_no_channels("mlx5_9",
			   "mlx5_9 creates no reliable connected (RC) queue pairs: "
			   "Operation not supported: name another device, or use");
	expect_no_channels("mlx5_6", "mlx5_6 is an iWARP device");
	for (size_t i = 0; i < machine.tree.nic_count; i++)
		machine.nics[i].cq_error = EINVAL;
	check_opens_none("0000:c3:00.0");
	test_assert_sentence("no RDMA device can be used (PIER_DEVICE=soft0 or the name "
			     "soft0 selects the software NIC): mlx5_9 creates no ");
	/* No memory is no answer. */
	nic_named("mlx5_9")->cq_error = ENOMEM;
	expect_result(pier_device_open("mlx5_9", &device), -ENOMEM);
	test_assert_sentence("asking whether mlx5_9 has channels: Cannot allocate");
	stop_machine();
}

static void set_gid(struct nic *nic, int index, const char *text, uint32_t type)
{
	assert_int_equal(inet_pton(AF_INET6, text, &nic->gids[index].gid), 1);
	nic->gids[index].gid_type = type;
}

/* The description of this machine's only port. */
static struct pier_rail_port describe_port(const char *name)
{
	uint8_t bytes[PIER_RAILS_SIZE_MAX];
	struct pier_rails rails;
	int size = pier_rails_describe(NULL, name, bytes, sizeof(bytes));

	assert_int_equal(size, 112);
	expect_ok(pier_rails_unpack(bytes, (size_t)size, &rails));
	assert_string_equal(rails.ports[0].device, name);
	return rails.ports[0];
}

/* What another end learns of a port; the loopback's address stands for a local one. */
static void describes_ports_to_the_peer(void **state)
{
	static const uint8_t network[16] = { [10] = 0xff, 0xff, 127 };
	struct pier_rail_port port;
	struct nic *nic;

	(void)state;
	start_machine("kvm-guest");
	nic = nic_named("mlx5_1");
	nic->link_layer = 1;
	set_gid(nic, 0, "fec0:0:0:7::5", IBV_GID_TYPE_IB);
	port = describe_port("mlx5_1");
	assert_int_equal(port.link_layer, PIER_LINK_INFINIBAND);
	assert_int_equal(port.subnet_bits, 64);
	assert_memory_equal(port.subnet, "\xfe\xc0\0\0\0\0\0\7\0\0\0\0\0\0\0\0", 16);
	nic->link_layer = 0;
	set_gid(nic, 0, "fe80::1", IBV_GID_TYPE_ROCE_V1);
	set_gid(nic, 1, "::ffff:198.51.100.7", IBV_GID_TYPE_ROCE_V2);
	set_gid(nic, 2, "2001:db8::1", IBV_GID_TYPE_ROCE_V2);
	nic->gids[2].ndev_ifindex = FOREIGN;
	port = describe_port("mlx5_1");
	assert_int_equal(port.gids, PIER_RAIL_ROCE_V1 | PIER_RAIL_IPV4);
	assert_int_equal(port.subnet_bits, 0);
	/* The first one with an address here gives the subnet. */
	set_gid(nic, 3, "::ffff:127.0.0.1", IBV_GID_TYPE_ROCE_V2);
	port = describe_port("mlx5_1");
	assert_int_equal(port.gids, PIER_RAIL_ROCE_V1 | PIER_RAIL_IPV4);
	assert_int_equal(port.subnet_bits, 104);
	assert_memory_equal(port.subnet, network, sizeof(network));
	/* A channel offers only so many, so the IPv6 address is no way to reach it. */
	for (int i = 0; i < PIER_GID_OFFERS; i++)
		set_gid(nic, i, "::ffff:198.51.100.7", IBV_GID_TYPE_ROCE_V2);
	set_gid(nic, PIER_GID_OFFERS, "2001:db8::1", IBV_GID_TYPE_ROCE_V2);
	nic->gids[2].ndev_ifindex = 0;
	assert_int_equal(describe_port("mlx5_1").gids, PIER_RAIL_IPV4);
	set_gid(nic, 0, "::ffff:169.254.0.7", IBV_GID_TYPE_ROCE_V2);
	assert_int_equal(describe_port("mlx5_1").gids, PIER_RAIL_IPV4 | PIER_RAIL_IPV6);
	expect_result(pier_rails_describe(NULL, ",", NULL, 0), -EINVAL);
	test_assert_sentence("\",\" names no device");
	nic->down = true;
	expect_result(pier_rails_describe(NULL, "mlx5_1", NULL, 0), -ENETDOWN);
	/* Without names, all that work: one is down, and one has no channels. */
	nic_named("mlx5_0")->qp_error = EOPNOTSUPP;
	describe_port("rxe0");
	assert_int_equal(pier_rails_describe(NULL, NULL, NULL, 0), 112);
	nic_named("rxe0")->down = true;
	expect_result(pier_rails_describe(NULL, NULL, NULL, 0), -ENODEV);
	test_assert_sentence("mlx5_1 has no active port");
	stop_machine();
}

/* In a network namespace of its own, whose loopback has the address of the NIC's GID. */
static int describe_routes(void)
{
	static const struct {
		const char *command;
		bool routed;
	} steps[] = {
		{ "ip link set lo up && ip address add 198.51.100.7/32 dev lo && "
		  "ip route add 198.51.100.128/25 dev lo",
		  false },
		{ "ip route add 203.0.113.0/24 via 198.51.100.200", true },
		{ "ip route delete 203.0.113.0/24", false },
		{ "ip route add default via 198.51.100.200 table 77", true },
		{ "ip route flush table 77", false },
		{ "ip route add default nexthop dev lo nexthop via 198.51.100.200",
		  true },
		{ "ip route delete default", false },
		{ "ip route add blackhole default", false },
	};

	if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) < 0)
		return 77;
	for (int i = 0; i < (int)(sizeof(steps) / sizeof(steps[0])); i++) {
		uint8_t bytes[PIER_RAILS_SIZE_MAX];
		struct pier_rails rails;
		int size;

		if (system(steps[i].command) != 0)
			return 77;
		size = pier_rails_describe(NULL, "mlx5_1", bytes, sizeof(bytes));
		if (size < 0 || pier_rails_unpack(bytes, (size_t)size, &rails) ||
		    rails.ports[0].subnet_bits != 128 ||
		    !(rails.ports[0].gids & PIER_RAIL_ROUTED) != !steps[i].routed)
			return i + 1;
	}
	return 0;
}

static void describes_whether_a_router_is_known(void **state)
{
	int status;
	pid_t child;

	(void)state;
	start_machine("kvm-guest");
	set_gid(nic_named("mlx5_1"), 0, "::ffff:198.51.100.7", IBV_GID_TYPE_ROCE_V2);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(describe_routes());
	assert_int_equal(waitpid(child, &status, 0), child);
	stop_machine();
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77) {
		print_message("skip: no network namespace, or no iproute2 in it\n");
		skip();
	}
	/* The number of the step. */
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* All ports of this machine; returns their number, or an error. */
static int describe_all(struct pier_rails *ret_rails)
{
	uint8_t bytes[PIER_RAILS_SIZE_MAX];
	int size = pier_rails_describe_in(machine.tree.root, NULL, NULL, bytes,
					  sizeof(bytes));

	if (size < 0)
		return size;
	expect_ok(pier_rails_unpack(bytes, (size_t)size, ret_rails));
	return (int)ret_rails->count;
}

/* With none of its ports, although the first one was described before. */
static void passes_over_a_device_with_all_ports(void **state)
{
	struct pier_rails rails;

	(void)state;
	start_machine("kvm-guest");
	for (size_t i = 0; i < machine.tree.nic_count; i++)
		machine.nics[i].ports = 2;
	assert_int_equal(describe_all(&rails), 6);
	nic_named("mlx5_0")->second_error = nic_named("mlx5_1")->second_error = EIO;
	assert_int_equal(describe_all(&rails), 2);
	assert_string_equal(rails.ports[0].device, "rxe0");
	assert_string_equal(rails.ports[1].device, "rxe0");
	expect_result(pier_rails_describe(NULL, "rxe0,mlx5_1", NULL, 0), -EIO);
	nic_named("rxe0")->second_error = EIO;
	assert_true(describe_all(&rails) < 0);
	stop_machine();
}

/* A 25 Gbit/s port is no rail beside the 100 Gbit/s port of the same NIC. */
static void describes_the_speed_of_each_port(void **state)
{
	static const char *const lines[] = {
		"class/infiniband/mlx5_1/ports/1/state = 4: ACTIVE",
		"class/infiniband/mlx5_1/ports/1/rate = 25 Gb/sec (1X EDR)",
		"class/infiniband/mlx5_1/ports/2/state = 4: ACTIVE",
		"class/infiniband/mlx5_1/ports/2/rate = 100 Gb/sec (4X EDR)",
	};
	struct pier_rails rails;

	(void)state;
	start_machine("kvm-guest");
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		recorded_add(&machine.tree, lines[i]);
	nic_named("mlx5_0")->down = nic_named("rxe0")->down = true;
	nic_named("mlx5_1")->ports = 2;
	assert_int_equal(describe_all(&rails), 2);
	assert_int_equal(rails.ports[0].speed, 25000);
	assert_int_equal(rails.ports[1].speed, 100000);
	/* The file raises the speed of the NIC, so of its fastest port. */
	write_topology("nic mlx5_1 speed=400000\n");
	assert_int_equal(describe_all(&rails), 2);
	assert_int_equal(rails.ports[0].speed, 25000);
	assert_int_equal(rails.ports[1].speed, 400000);
	unsetenv("PIER_TOPO_FILE");
	stop_machine();
}

/* The port and the GID that all channels of the process will have. */
static void describes_what_the_environment_demands(void **state)
{
	struct pier_rails rails;
	struct nic *nic;

	(void)state;
	start_machine("kvm-guest");
	nic = nic_named("mlx5_1");
	nic->ports = 2;
	set_gid(nic, 0, "fe80::1", IBV_GID_TYPE_ROCE_V1);
	set_gid(nic, 1, "::ffff:198.51.100.7", IBV_GID_TYPE_ROCE_V2);
	setenv("PIER_CHANNEL", "tc=106", 1);
	assert_int_equal(describe_all(&rails), 4);
	setenv("PIER_CHANNEL", "port=1", 1);
	assert_int_equal(describe_all(&rails), 3);
	setenv("PIER_CHANNEL", "gid=1,port=2", 1);
	assert_int_equal(describe_all(&rails), 1);
	assert_string_equal(rails.ports[0].device, "mlx5_1");
	assert_int_equal(rails.ports[0].port, 2);
	assert_int_equal(rails.ports[0].gids, PIER_RAIL_IPV4);
	expect_result(pier_rails_describe(NULL, "rxe0", NULL, 0), -EINVAL);
	test_assert_sentence("PIER_CHANNEL: port 2 is not in 1 to 1, the ports of rxe0");
	nic->down = true;
	expect_result(pier_rails_describe(NULL, "mlx5_1", NULL, 0), -ENETDOWN);
	test_assert_sentence("mlx5_1 has no active port that PIER_CHANNEL allows");
	assert_int_equal(describe_all(&rails), -ENODEV);
	test_assert_sentence("no RDMA device has an active port 2, which PIER_CHANNEL");
	setenv("PIER_CHANNEL", "prt=2", 1);
	assert_int_equal(describe_all(&rails), -EINVAL);
	test_assert_sentence("PIER_CHANNEL: \"prt=2\" is not KEY=NUMBER");
	unsetenv("PIER_CHANNEL");
	stop_machine();
}

static void opens_the_device_that_the_user_names(void **state)
{
	struct pier_device *device = NULL;
	struct pier_buffer *buffer;

	(void)state;
	start_machine("dgx-h100");
	setenv("PIER_DEVICE", "mlx5_4", 1);
	nic_named("mlx5_4")->down = true; /* a caller that names the device gets it */
	check_opens("0000:c3:00.0", "mlx5_4");
	setenv("PIER_DEVICE", "fault:reg@1=EIO:mlx5_3", 1);
	check_opens("0000:c3:00.0", "fault:mlx5_3");
	setenv("PIER_DEVICE", "", 1);
	check_opens("0000:c3:00.0", "mlx5_9");
	setenv("PIER_DEVICE", "mlx5_99", 1);
	expect_ok(pier_buffer_alloc("board:0", 1, &buffer));
	expect_result(pier_open_near_in(machine.tree.root, buffer, &device), -ENODEV);
	test_assert_sentence("no RDMA device \"mlx5_99\"; there are: mlx5_0");
	setenv("PIER_DEVICE", "mlx5_9", 1);
	nic_named("mlx5_9")->open_error = EACCES;
	expect_result(pier_open_near_in(machine.tree.root, buffer, &device), -EACCES);
	test_assert_sentence("opening mlx5_9: Permission denied");
	assert_null(device);
	expect_ok(pier_buffer_free(buffer));
	stop_machine();
}

static void opens_any_device_without_a_location(void **state)
{
	struct pier_device *device;
	struct pier_buffer *buffer;

	(void)state;
	start_machine("dgx-h100");
	expect_ok(pier_device_open_near(NULL, &device));
	assert_string_equal(pier_device_name(device), "mlx5_0");
	expect_ok(pier_device_close(device));
	expect_ok(pier_buffer_alloc("host", 1, &buffer));
	expect_ok(pier_device_open_near(buffer, &device));
	assert_string_equal(pier_device_name(device), "mlx5_0");
	expect_ok(pier_device_close(device));
	expect_ok(pier_buffer_free(buffer));
	assert_int_equal(machine.warnings, 0);
	/* The reason states that the backend cannot locate the memory. */
	check_opens("error", "mlx5_0");
	assert_int_equal(machine.warnings, 1);
	assert_non_null(strstr(machine.warning, "asking board where its memory is"));
	stop_machine();
}

static void check_place(const char *name, const char *pci, int numa_node)
{
	struct pier_location location = { "?", 7 };
	struct pier_device *device;

	expect_ok(pier_device_open(name, &device));
	expect_ok(pier_locate_device(machine.tree.root, device, &location));
	assert_string_equal(location.pci, pci);
	assert_int_equal(location.numa_node, numa_node);
	expect_ok(pier_device_close(device));
}

static void reports_device_locations(void **state)
{
	struct pier_location location = { "?", 7 };
	struct pier_device *device;

	(void)state;
	start_machine("dgx-h100");
	check_place("mlx5_3", "0000:40:00.0", 0);
	check_place("mlx5_8", "0000:aa:00.1", 1);
	check_place("fault:reg@1=EIO:mlx5_11", "0000:dc:00.0", 1);
	check_place(PIER_SOFT_DEVICE, "", -1);
	expect_ok(pier_device_open(PIER_SOFT_DEVICE, &device));
	expect_ok(pier_device_location(device, &location));
	assert_string_equal(location.pci, "");
	assert_int_equal(location.numa_node, -1);
	expect_ok(pier_device_close(device));
	stop_machine();
}

static void check_units(const char *places, size_t expected)
{
	struct pier_memory_unit *list = NULL;
	uint32_t count = 99;

	setenv("BOARD", places, 1);
	expect_ok(pier_list_units_in(machine.tree.root, &list, &count));
	assert_int_equal(count, expected);
	if (!expected)
		assert_null(list);
	free(list);
}

static void lists_units(void **state)
{
	struct pier_memory_unit *list;
	uint32_t count;

	(void)state;
	start_machine("dgx-a100");
	setenv("BOARD", "0000:07:00.0,0000:B7:00.0/5,/1,garbage", 1);
	expect_ok(pier_list_units_in(machine.tree.root, &list, &count));
	assert_int_equal(count, 4);
	assert_string_equal(list[0].spec, "board:0");
	assert_string_equal(list[0].name, "Board 0");
	assert_int_equal(strlen(list[0].detail), sizeof(list[0].detail) - 1);
	assert_string_equal(list[0].location.pci, "0000:07:00.0");
	assert_int_equal(list[0].location.numa_node, 0);
	assert_string_equal(list[1].spec, "board:1");
	assert_string_equal(list[1].location.pci, "0000:b7:00.0");
	assert_int_equal(list[1].location.numa_node, 5);
	assert_string_equal(list[2].location.pci, "");
	assert_int_equal(list[2].location.numa_node, 1);
	assert_string_equal(list[3].location.pci, "");
	assert_int_equal(list[3].location.numa_node, -1);
	free(list);
	stop_machine();
}

static void lists_units_that_backends_report(void **state)
{
	struct pier_memory_unit *list = NULL;
	uint32_t count = 99;

	(void)state;
	start_machine("desktop");
	check_units("", 0);
	check_units("/0,/0,error,/0", 2);
	assert_int_equal(machine.warnings, 1);
	assert_non_null(strstr(machine.warning, "asking board for its unit 2: Input/"));
	check_units("endless", 1024);
	/* The backend does not work here: it is not asked, although it could answer. */
	setenv("BOARD", "broken", 1);
	expect_ok(pier_memory_unit_list(&list, &count, sizeof(*list)));
	assert_int_equal(count, 0);
	assert_null(list);
	stop_machine();
}

static void reports_the_kind_of_memory(void **state)
{
	struct pier_buffer_info info = { .numa_node = 77 };
	struct pier_buffer *buffer, *part;
	uint64_t address;

	(void)state;
	setenv("BOARD", "/0,abcd:EF:00.1/3", 1);
	expect_ok(pier_buffer_alloc("board:1", 100, &buffer));
	expect_ok(pier_buffer_query(buffer, &info, sizeof(info)));
	assert_string_equal(info.backend, "board");
	assert_string_equal(info.unit, "1");
	assert_int_equal(strlen(info.kind), sizeof(info.kind) - 1);
	assert_string_equal(info.no_export, "it is a test");
	assert_string_equal(info.pci, "abcd:ef:00.1");
	assert_int_equal(info.numa_node, 3);
	assert_true(info.mappable);
	assert_false(info.wrapped);
	assert_int_equal(info.allocation, pier_buffer_address(buffer));
	assert_int_equal(info.allocation_length, 64 << 10);

	info.numa_node = 77;
	setenv("BOARD", "/0,error", 1);
	expect_result(pier_buffer_query(buffer, &info, sizeof(info)), -EIO);
	test_assert_sentence("asking board where its memory is: Input/output error");
	assert_int_equal(info.numa_node, 77);
	expect_ok(pier_buffer_free(buffer));

	expect_ok(pier_buffer_alloc("memfd", 100, &buffer));
	address = pier_buffer_address(buffer);
	expect_ok(pier_buffer_wrap((void *)(uintptr_t)(address + 8), 4, &part));
	expect_ok(pier_buffer_query(part, &info, sizeof(info)));
	assert_string_equal(info.backend, "memfd");
	assert_string_equal(info.unit, "");
	assert_string_equal(info.kind, "");
	assert_string_equal(info.no_export, "");
	assert_string_equal(info.pci, "");
	assert_int_equal(info.numa_node, -1);
	assert_true(info.wrapped);
	assert_int_equal(info.allocation, address);
	assert_true(info.allocation_length >= 4096);
	expect_ok(pier_buffer_free(part));
	expect_ok(pier_buffer_free(buffer));

	expect_ok(pier_buffer_alloc("host", 100, &buffer));
	expect_ok(pier_buffer_query(buffer, &info, sizeof(info)));
	assert_string_equal(info.no_export, "memory of host has no dma-buf: it is "
					    "registered as host memory");
	expect_ok(pier_buffer_free(buffer));
}

static char folder[] = "/tmp/pier-unit-XXXXXX";

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	test_link_plugin(folder, "board");
	return setenv("PIER_BACKEND_PATH", folder, 1);
}

static int remove_folder(void **state)
{
	char link[64];

	(void)state;
	snprintf(link, sizeof(link), "%s/board.so", folder);
	return unlink(link) || rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_nearest_devices_first),
		cmocka_unit_test(keeps_the_order_without_a_location),
		cmocka_unit_test(lists_fast_devices_before_slow_ones),
		cmocka_unit_test(spreads_processes_by_local_rank),
		cmocka_unit_test(file_overrides_the_tree),
		cmocka_unit_test(file_names_units_of_memory),
		cmocka_unit_test(lines_about_absent_devices_are_ignored),
		cmocka_unit_test(errors_of_the_file_name_the_line),
		cmocka_unit_test(opens_the_nearest_device),
		cmocka_unit_test(skips_devices_that_do_not_work),
		cmocka_unit_test(passes_over_devices_without_channels),
		cmocka_unit_test(describes_ports_to_the_peer),
		cmocka_unit_test(describes_whether_a_router_is_known),
		cmocka_unit_test(passes_over_a_device_with_all_ports),
		cmocka_unit_test(describes_the_speed_of_each_port),
		cmocka_unit_test(describes_what_the_environment_demands),
		cmocka_unit_test(opens_the_device_that_the_user_names),
		cmocka_unit_test(opens_any_device_without_a_location),
		cmocka_unit_test(reports_device_locations),
		cmocka_unit_test(lists_units),
		cmocka_unit_test(lists_units_that_backends_report),
		cmocka_unit_test(reports_the_kind_of_memory),
	};

	return cmocka_run_group_tests_name("near", tests, make_folder, remove_folder);
}
