/* SPDX-License-Identifier: BSD-3-Clause */
/* Locations and distances in device trees modelled on the sysfs of real machines. */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"
#include "tests/support/recorded.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <pthread.h>
#include <sys/stat.h>

#include "device/topology.h"

static const char *const trees[] = {
	"azure-nd",    "desktop",   "dgx-a100", "dgx-h100",   "ec2-p4d",
	"hgx-virtual", "kvm-guest", "vmd",	"two-socket", "flat-vm",
};

enum {
	TREES = sizeof(trees) / sizeof(trees[0]),
};

static struct pier_location settle(const struct recorded *tree, const char *pci)
{
	struct pier_location location;
	char padded[16] = "";

	memcpy(padded, pci, strnlen(pci, sizeof(padded)));
	pier_settle_location(tree->root, padded, -1, &location);
	return location;
}

static const struct {
	const char *tree;
	const char *a, *b;
	enum pier_distance distance;
} pairs[] = {
	/* The first GPU and the NICs from near to far. */
	{ "dgx-a100", "0000:07:00.0", "0000:0c:00.0", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:07:00.0", "0000:12:00.0", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:0f:00.0", "0000:0c:00.0", PIER_DISTANCE_SWITCHES },
	{ "dgx-a100", "0000:07:00.0", "0000:4b:00.0", PIER_DISTANCE_NODE },
	{ "dgx-a100", "0000:07:00.0", "0000:61:00.1", PIER_DISTANCE_NODE },
	{ "dgx-a100", "0000:07:00.0", "0000:cc:00.0", PIER_DISTANCE_SYSTEM },
	{ "dgx-a100", "0000:61:00.0", "0000:61:00.1", PIER_DISTANCE_SAME },
	/* Bridges have locations too. */
	{ "dgx-a100", "0000:0a:00.0", "0000:0c:00.0", PIER_DISTANCE_SWITCH },
	{ "dgx-a100", "0000:0c:00.0", "0000:0b:00.0", PIER_DISTANCE_SWITCH },

	{ "dgx-h100", "0000:1b:00.0", "0000:18:00.0", PIER_DISTANCE_SWITCHES },
	{ "dgx-h100", "0000:1b:00.0", "0000:40:00.0", PIER_DISTANCE_NODE },
	{ "dgx-h100", "0000:1b:00.0", "0000:29:00.0", PIER_DISTANCE_NODE },
	{ "dgx-h100", "0000:1b:00.0", "0000:9a:00.0", PIER_DISTANCE_SYSTEM },

	{ "hgx-virtual", "0000:d9:00.0", "0000:da:00.0", PIER_DISTANCE_SWITCH },
	{ "hgx-virtual", "0000:d9:00.0", "0000:da:00.1", PIER_DISTANCE_SWITCH },
	{ "hgx-virtual", "0000:d9:00.0", "0000:da:01.2", PIER_DISTANCE_SWITCH },
	{ "hgx-virtual", "0000:d9:00.0", "0000:b9:00.0", PIER_DISTANCE_NODE },
	{ "hgx-virtual", "0000:da:00.0", "0000:da:01.2", PIER_DISTANCE_SAME },
	{ "hgx-virtual", "0000:da:00.1", "0000:da:01.2", PIER_DISTANCE_SAME },

	{ "ec2-p4d", "0000:10:1c.0", "0000:10:1b.0", PIER_DISTANCE_HOST_BRIDGE },
	{ "ec2-p4d", "0000:10:1c.0", "0000:20:1b.0", PIER_DISTANCE_NODE },
	{ "ec2-p4d", "0000:10:1c.0", "0000:a0:1b.0", PIER_DISTANCE_SYSTEM },

	{ "kvm-guest", "0000:00:05.0", "0000:00:08.0", PIER_DISTANCE_HOST_BRIDGE },

	/* The buses of Hyper-V share part of their paths, but no bridge. */
	{ "azure-nd", "0001:00:00.0", "0103:00:00.0", PIER_DISTANCE_NODE },
	{ "azure-nd", "0001:00:00.0", "0101:00:00.0", PIER_DISTANCE_SYSTEM },

	{ "desktop", "0000:0a:00.0", "0000:06:00.0", PIER_DISTANCE_HOST_BRIDGE },
	{ "desktop", "0000:0a:00.0", "0000:0a:00.1", PIER_DISTANCE_SAME },
	{ "desktop", "0000:07:00.0", "0000:06:00.1", PIER_DISTANCE_SWITCH },

	/* The VMD endpoint is not a bridge. */
	{ "vmd", "10000:02:00.0", "10000:03:00.0", PIER_DISTANCE_HOST_BRIDGE },
	{ "vmd", "10000:02:00.0", "0000:65:00.0", PIER_DISTANCE_HOST_BRIDGE },
};

/* Creating a tree takes longer than all the checks on it. */
static void reopen(struct recorded *tree, const char **open, const char *wanted)
{
	if (strcmp(*open, wanted) == 0)
		return;
	if ((*open)[0])
		recorded_close(tree);
	*open = wanted;
	*tree = recorded_open(wanted);
}

static void reports_distances(void **state)
{
	struct recorded tree = { .root = "" };
	const char *open = "";

	(void)state;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		struct pier_location a, b;
		enum pier_distance distance;

		reopen(&tree, &open, pairs[i].tree);
		a = settle(&tree, pairs[i].a);
		b = settle(&tree, pairs[i].b);
		assert_string_equal(a.pci, pairs[i].a);
		distance = pier_distance_in(tree.root, &a, &b);
		if (distance != pairs[i].distance)
			fail_msg("%s: from %s to %s: %s", pairs[i].tree, pairs[i].a,
				 pairs[i].b, pier_distance_name(distance));
	}
	recorded_close(&tree);
}

/* The same distance both ways, and no device is nearer than the device itself. */
static void check_symmetry(const struct recorded *tree)
{
	for (size_t i = 0; i < tree->device_count; i++) {
		struct pier_location a = settle(tree, tree->devices[i]);

		assert_int_equal(pier_distance_in(tree->root, &a, &a),
				 PIER_DISTANCE_SAME);
		for (size_t j = 0; j < i; j++) {
			struct pier_location b = settle(tree, tree->devices[j]);

			assert_int_equal(pier_distance_in(tree->root, &a, &b),
					 pier_distance_in(tree->root, &b, &a));
		}
	}
}

static void distances_are_symmetric(void **state)
{
	(void)state;
	for (size_t i = 0; i < TREES; i++) {
		struct recorded tree = recorded_open(trees[i]);

		assert_true(tree.device_count > 1);
		check_symmetry(&tree);
		recorded_close(&tree);
	}
}

static const struct {
	const char *tree, *nic, *pci;
	int numa_node;
} nics[] = {
	{ "dgx-a100", "mlx5_0", "0000:0c:00.0", 0 },
	{ "dgx-a100", "mlx5_11", "0000:e1:00.1", 1 },
	{ "hgx-virtual", "mlx5_7", "0000:da:01.2", 1 },
	{ "hgx-virtual", "mlx5_8", "0000:da:00.0", 1 }, /* a subfunction */
	{ "kvm-guest", "mlx5_0", "0000:00:07.0", -1 },
	{ "kvm-guest", "rxe0", "", -1 },
	{ "kvm-guest", "soft0", "", -1 },
	{ "kvm-guest", "", "", -1 },
	{ "kvm-guest", ".", "", -1 },
	{ "kvm-guest", "..", "", -1 },
	{ "kvm-guest", "../../bus/pci/devices/0000:00:05.0", "", -1 },
	{ "azure-nd", "mlx5_ib2", "0103:00:00.0", 0 },
	{ "vmd", "irdma1", "10000:03:00.0", 0 },
};

static void finds_the_nics(void **state)
{
	struct recorded tree = { .root = "" };
	const char *open = "";

	(void)state;
	for (size_t i = 0; i < sizeof(nics) / sizeof(nics[0]); i++) {
		struct pier_location location;

		reopen(&tree, &open, nics[i].tree);
		pier_locate_nic(tree.root, nics[i].nic, &location);
		assert_string_equal(location.pci, nics[i].pci);
		assert_int_equal(location.numa_node, nics[i].numa_node);
	}
	recorded_close(&tree);
}

static void parses_addresses_of_backends(void **state)
{
	static const struct {
		const char *told, *pci;
	} cases[] = {
		{ "0000:90:1C.0", "0000:90:1c.0" },
		{ "00000000:90:1C.0", "0000:90:1c.0" }, /* NVML's form; not terminated */
		{ "10000:02:00.0", "10000:02:00.0" },
		{ "fffff:ff:1f.7", "fffff:ff:1f.7" },
		{ "", "" },
		{ "90:1c.0", "" },
		{ "0000:90:1c", "" },
		{ "0000:90:1c.8", "" },
		{ "0000:90:20.0", "" },
		{ "0000:90:1c.00", "" },
		{ "0000:90:1c.0 ", "" },
		{ " 0000:90:1c.0", "" },
		{ "0000:9:1c.0", "" },
		{ "0000:090:1c.0", "" },
		{ "0x00:90:1c.0", "" },
		{ "-000:90:1c.0", "" },
		{ "../../../../etc", "" },
		{ "10000000:90:1c.0", "" }, /* does not fit in struct pier_location */
	};
	struct recorded tree = recorded_open("ec2-p4d");

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct pier_location location = settle(&tree, cases[i].told);

		assert_string_equal(location.pci, cases[i].pci);
		assert_int_equal(location.numa_node,
				 strcmp(cases[i].pci, "0000:90:1c.0") == 0 ? 1 : -1);
	}
	recorded_close(&tree);
}

/* Facts from the backend are not looked up in sysfs. */
static void uses_the_node_of_the_backend(void **state)
{
	struct recorded tree = recorded_open("ec2-p4d");
	struct pier_location location;

	(void)state;
	pier_settle_location(tree.root, "0000:90:1c.0", 0, &location);
	assert_int_equal(location.numa_node, 0);
	pier_settle_location(tree.root, "", 3, &location);
	assert_string_equal(location.pci, "");
	assert_int_equal(location.numa_node, 3);
	pier_settle_location(tree.root, "", -7, &location);
	assert_int_equal(location.numa_node, -1);
	recorded_close(&tree);
}

/* Host memory has a node but no address. */
static void compares_nodes_without_addresses(void **state)
{
	struct pier_location none = { "", -1 }, first = { "", 0 }, second = { "", 1 };
	struct pier_location gone = { "0000:77:00.0", 1 };

	(void)state;
	assert_int_equal(pier_location_distance(&first, &first), PIER_DISTANCE_NODE);
	assert_int_equal(pier_location_distance(&first, &second), PIER_DISTANCE_SYSTEM);
	assert_int_equal(pier_location_distance(&none, &second), PIER_DISTANCE_UNKNOWN);
	assert_int_equal(pier_location_distance(&none, &none), PIER_DISTANCE_UNKNOWN);
	assert_int_equal(pier_location_distance(NULL, &none), PIER_DISTANCE_UNKNOWN);
	/* An address that this sysfs does not have. */
	assert_int_equal(pier_distance_in("/nowhere", &gone, &second),
			 PIER_DISTANCE_NODE);
	assert_int_equal(pier_distance_in("/nowhere", &gone, &gone), PIER_DISTANCE_SAME);
}

static void check_node(const char *content, int expected)
{
	struct recorded tree = recorded_start();
	char line[256];

	snprintf(line, sizeof(line), "bus/pci/devices/0000:01:00.0/numa_node = %s",
		 content);
	recorded_add(&tree, line);
	assert_int_equal(settle(&tree, "0000:01:00.0").numa_node, expected);
	recorded_close(&tree);
}

static void rejects_garbage_as_a_node(void **state)
{
	(void)state;
	check_node("0", 0);
	check_node("1023", 1023);
	check_node("-1", -1);
	check_node("", -1);
	check_node("one", -1);
	check_node("1 2", -1);
	check_node("0x1", -1);
	check_node(" 1", -1);
	check_node("+1", -1);
	check_node("65536", -1);
	check_node("4294967296", -1);
	check_node("99999999999999999999999999999999999", -1);
}

/* An obstacle to the file, or something else in its place. */
static void works_without_a_node_file(void **state)
{
	struct recorded tree = recorded_start();
	char path[PATH_MAX];

	(void)state;
	recorded_add(&tree, "bus/pci/devices/0000:01:00.0/numa_node/file = 1");
	recorded_add(&tree, "bus/pci/devices/0000:02:00.0/class = 0x020000");
	recorded_add(&tree, "bus/pci/devices/0000:03:00.0 = a file");
	recorded_add(&tree, "bus/pci/devices/0000:04:00.0/numa_node -> numa_node");
	recorded_add(&tree, "bus/pci/devices/0000:05:00.0/class = 0x020000");
	snprintf(path, sizeof(path), "%s/bus/pci/devices/0000:05:00.0/numa_node",
		 tree.root);
	/* Opening it must not wait for a writer. */
	assert_int_equal(mkfifo(path, 0644), 0);
	assert_int_equal(settle(&tree, "0000:01:00.0").numa_node, -1);
	assert_int_equal(settle(&tree, "0000:02:00.0").numa_node, -1);
	assert_int_equal(settle(&tree, "0000:03:00.0").numa_node, -1);
	assert_int_equal(settle(&tree, "0000:04:00.0").numa_node, -1);
	assert_int_equal(settle(&tree, "0000:05:00.0").numa_node, -1);
	recorded_close(&tree);
}

static void check_far(const struct recorded *tree, const char *a, const char *b)
{
	struct pier_location first = { .numa_node = -1 }, second = first;

	memcpy(first.pci, a, strlen(a) + 1);
	memcpy(second.pci, b, strlen(b) + 1);
	assert_int_equal(pier_distance_in(tree->root, &first, &second),
			 PIER_DISTANCE_UNKNOWN);
	assert_int_equal(pier_distance_in(tree->root, &second, &first),
			 PIER_DISTANCE_UNKNOWN);
}

static void survives_loops_of_links(void **state)
{
	struct recorded tree = recorded_start();
	struct pier_location location;

	(void)state;
	recorded_add(&tree, "devices/pci0000:00/0000:00:01.0/class = 0x060400");
	recorded_add(&tree, "bus/pci/devices/0000:00:01.0 -> "
			    "../../../devices/pci0000:00/0000:00:01.0");
	recorded_add(&tree, "bus/pci/devices/0000:01:00.0 -> 0000:02:00.0");
	recorded_add(&tree, "bus/pci/devices/0000:02:00.0 -> 0000:01:00.0");
	recorded_add(&tree, "bus/pci/devices/0000:03:00.0 -> 0000:03:00.0");
	recorded_add(&tree, "bus/pci/devices/0000:04:00.0 -> ../../../devices/gone");
	/* Outside the tree, where any file may be. */
	recorded_add(&tree, "bus/pci/devices/0000:05:00.0 -> /tmp");
	recorded_add(&tree, "bus/pci/devices/0000:06:00.0 -> ../../..");
	recorded_add(&tree, "class/infiniband/loop0 -> loop1");
	recorded_add(&tree, "class/infiniband/loop1 -> loop0");
	recorded_add(&tree, "class/infiniband/self0/device -> device");
	recorded_add(&tree, "class/infiniband/out0/device -> /dev/0000:00:01.0");
	for (size_t i = 1; i < tree.device_count; i++)
		check_far(&tree, tree.devices[0], tree.devices[i]);
	check_far(&tree, tree.devices[1], tree.devices[2]);
	for (size_t i = 0; i < 4; i++) {
		static const char *const names[] = { "loop0", "loop1", "self0", "out0" };

		pier_locate_nic(tree.root, names[i], &location);
		assert_string_equal(location.pci, "");
		assert_int_equal(location.numa_node, -1);
	}
	recorded_close(&tree);
}

/* A tree whose name begins with the root's name is not below it. */
static void stays_below_the_root(void **state)
{
	struct recorded tree = recorded_start();
	char root[64];

	(void)state;
	snprintf(root, sizeof(root), "%s/sys", tree.root);
	recorded_add(&tree, "sys-not/pci0000:00/0000:00:01.0/class = 0x020000");
	recorded_add(&tree, "sys-not/pci0000:00/0000:00:02.0/class = 0x020000");
	recorded_add(&tree, "sys/bus/pci/devices/0000:00:01.0 -> "
			    "../../../../sys-not/pci0000:00/0000:00:01.0");
	recorded_add(&tree, "sys/bus/pci/devices/0000:00:02.0 -> "
			    "../../../../sys-not/pci0000:00/0000:00:02.0");
	assert_int_equal(pier_distance_in(root,
					  &(struct pier_location){ "0000:00:01.0", -1 },
					  &(struct pier_location){ "0000:00:02.0", -1 }),
			 PIER_DISTANCE_UNKNOWN);
	recorded_close(&tree);
}

/* Links, folders and files with the relevant names, anywhere. */
static void add_random(struct recorded *tree, struct test_random *random, unsigned int i)
{
	static const char *const targets[] = {
		"..",
		".",
		"physfn",
		"../0000:02:00.0",
		"0000:05:00.0/physfn",
		"../../../devices/pci0000:00/0000:01:00.0",
		"/",
		"../../../bus/pci/devices",
	};
	static const char *const middles[] = {
		"",
		"pci0000:00/",
		"0000:01:00.0/",
		"pci0000:00/pci10000:00/",
		"0000:01:00.0/0000:01:00.0/",
		"x/",
	};
	char line[512];
	const char *target = targets[test_random_below(random, 8)];

	switch (test_random_below(random, 3)) {
	case 0:
		snprintf(line, sizeof(line), "bus/pci/devices/0000:%02x:00.0 -> %s", i,
			 target);
		break;
	case 1:
		snprintf(line, sizeof(line),
			 "bus/pci/devices/0000:%02x:00.0/physfn -> %s", i, target);
		break;
	default:
		snprintf(line, sizeof(line),
			 "bus/pci/devices/0000:%02x:00.0 -> "
			 "../../../devices/%s%s0000:%02x:00.0",
			 i, middles[test_random_below(random, 6)],
			 middles[test_random_below(random, 6)], i);
		recorded_add(tree, line);
		snprintf(line, sizeof(line), "devices/%s0000:%02x:00.0/numa_node = 0",
			 middles[test_random_below(random, 6)], i);
	}
	recorded_add(tree, line);
}

static void survives_random_trees(void **state)
{
	struct test_random random = test_random_start();
	struct test_census before = test_take_census();

	(void)state;
	for (int round = 0; round < 10; round++) {
		struct recorded tree = recorded_start();

		for (unsigned int i = 0; i < 12; i++)
			add_random(&tree, &random, i);
		check_symmetry(&tree);
		recorded_close(&tree);
	}
	test_assert_census(&before);
}

static void names_distances(void **state)
{
	static const char *const names[] = { "same",   "switch",      "switches",
					     "c2c",    "host bridge", "node",
					     "system", "unknown" };

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_string_equal(pier_distance_name((enum pier_distance)i), names[i]);
	assert_string_equal(pier_distance_name((enum pier_distance)8), "unknown");
	assert_string_equal(pier_distance_name((enum pier_distance) - 1), "unknown");
}

/* The first CPU that this thread may use. */
static int first_allowed(void)
{
	cpu_set_t allowed[8];
	int cpu = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(allowed), allowed), 0);
	while (!CPU_ISSET_S(cpu, sizeof(allowed), allowed))
		cpu++;
	return cpu;
}

static int count_allowed(void)
{
	cpu_set_t allowed[8];

	assert_int_equal(sched_getaffinity(0, sizeof(allowed), allowed), 0);
	return CPU_COUNT_S(sizeof(allowed), allowed);
}

/* A cpumap of 8192 CPUs with this one, and with all above 8000, which no one may use. */
static void add_node(struct recorded *tree, int node, int cpu)
{
	char line[4096];
	int length = snprintf(line, sizeof(line),
			      "devices/system/node/node%d/cpumap = ", node);

	for (int word = 255; word >= 0; word--)
		length += snprintf(line + length, sizeof(line) - (size_t)length, "%08x%s",
				   (word >= 250 ? ~0u : 0) |
					   (cpu / 32 == word ? 1u << cpu % 32 : 0),
				   word ? "," : "");
	recorded_add(tree, line);
}

static void bind_ends_with(const struct recorded *tree, int node, int expected)
{
	struct pier_location location = { "", node };

	expect_result(pier_bind_near_in(tree->root, &location), expected);
}

static void *bind_in_thread(void *argument)
{
	const struct recorded *tree = argument;
	int cpu = first_allowed(), before = count_allowed();

	/* Nothing of this changes the mask. */
	bind_ends_with(tree, -1, -ENODATA);
	test_assert_sentence(
		"binding to NUMA node -1: the node of the device is unknown");
	bind_ends_with(tree, 9, -ENODATA);
	test_assert_sentence("binding to NUMA node 9: sysfs reports no CPUs of it");
	bind_ends_with(tree, 2, -ENODATA);
	bind_ends_with(tree, 3, -ENODATA);
	bind_ends_with(tree, 4, -ENODATA);
	bind_ends_with(tree, 1, -EPERM);
	test_assert_sentence("binding to NUMA node 1: the thread may use none of its "
			     "CPUs");
	assert_int_equal(count_allowed(), before);

	bind_ends_with(tree, 0, 0);
	assert_int_equal(count_allowed(), 1);
	assert_int_equal(first_allowed(), cpu);
	bind_ends_with(tree, 1, -EPERM);
	bind_ends_with(tree, 0, 0);
	return NULL;
}

/* Node 0 has one CPU of this thread, node 1 none; the others are malformed or empty. */
static void binds_a_thread_to_a_node(void **state)
{
	struct recorded tree = recorded_start();
	int before = count_allowed();
	pthread_t thread;

	(void)state;
	add_node(&tree, 0, first_allowed());
	add_node(&tree, 1, 8191);
	recorded_add(&tree, "devices/system/node/node2/cpumap = 0000000g");
	recorded_add(&tree, "devices/system/node/node3/cpumap = 00000000,00000000");
	recorded_add(&tree, "devices/system/node/node4/cpumap = 0-15");
	assert_int_equal(pthread_create(&thread, NULL, bind_in_thread, &tree), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(count_allowed(), before);
	recorded_close(&tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reports_distances),
		cmocka_unit_test(distances_are_symmetric),
		cmocka_unit_test(finds_the_nics),
		cmocka_unit_test(parses_addresses_of_backends),
		cmocka_unit_test(uses_the_node_of_the_backend),
		cmocka_unit_test(compares_nodes_without_addresses),
		cmocka_unit_test(rejects_garbage_as_a_node),
		cmocka_unit_test(works_without_a_node_file),
		cmocka_unit_test(survives_loops_of_links),
		cmocka_unit_test(stays_below_the_root),
		cmocka_unit_test(survives_random_trees),
		cmocka_unit_test(names_distances),
		cmocka_unit_test(binds_a_thread_to_a_node),
	};

	return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
