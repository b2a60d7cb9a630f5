/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The GIDs of a port, from fake tables, trees like sysfs and addresses of interfaces. The
 * program replaces getifaddrs(3).
 */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"
#include "tests/support/recorded.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <stdio.h>

#include "device/device.h"
#include "device/gid_table.h"

enum {
	IB = IBV_GID_TYPE_IB,
	V1 = IBV_GID_TYPE_ROCE_V1,
	V2 = IBV_GID_TYPE_ROCE_V2,
	ENTRIES = 300,
	ADDRESSES = 16,
	OLD_KERNEL = -1,
};

struct interface_address {
	struct ifaddrs list;
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_ll mac;
	} address;
	char name[16];
};

static struct {
	struct recorded tree;
	struct ibv_gid_entry entries[ENTRIES]; /* of both ports */
	uint32_t count;
	int errors[ENTRIES];	 /* of query_gid(), by the index in the table */
	int one_by_one, at_once; /* calls */
	int table_result;	 /* OLD_KERNEL: query_gid_table() fails */
	struct interface_address addresses[ADDRESSES];
	int address_count;
	bool no_addresses; /* getifaddrs(3) fails */
	struct ibv_async_event event;
	bool has_event;
	struct ibv_device verbs;
	struct ibv_context context;
	struct pier_device device;
} host;

int getifaddrs(struct ifaddrs **ret_list)
{
	errno = EPERM;
	*ret_list = NULL;
	if (host.no_addresses)
		return -1;
	for (int i = 0; i < host.address_count; i++)
		host.addresses[i].list.ifa_next = i + 1 < host.address_count
							  ? &host.addresses[i + 1].list
							  : NULL;
	if (host.address_count)
		*ret_list = &host.addresses[0].list;
	return 0;
}

void freeifaddrs(struct ifaddrs *list)
{
	(void)list;
}

/* As ib_uverbs_query_gid_entry(): ENODATA for an empty entry. */
static int query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
		     struct ibv_gid_entry *ret_entry)
{
	(void)context;
	host.one_by_one++;
	if (host.errors[index])
		return host.errors[index];
	for (uint32_t i = 0; i < host.count; i++) {
		if (host.entries[i].port_num == port &&
		    host.entries[i].gid_index == index) {
			*ret_entry = host.entries[i];
			return 0;
		}
	}
	return ENODATA;
}

/* As rdma_query_gid_table(), which refuses a table that is too short. */
static ssize_t query_gid_table(struct ibv_context *context,
			       struct ibv_gid_entry *ret_entries, size_t size)
{
	(void)context;
	host.at_once++;
	if (host.table_result == OLD_KERNEL)
		return -EOPNOTSUPP;
	if (host.count > size)
		return -EINVAL;
	memcpy(ret_entries, host.entries, host.count * sizeof(host.entries[0]));
	return host.count;
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
	(void)context;
	/* A thread that finds the event gone waits until it counts. */
	assert_int_equal(pthread_mutex_trylock(&host.device.events_lock), EBUSY);
	errno = EAGAIN;
	if (!host.has_event)
		return -1;
	*ret_event = host.event;
	host.has_event = false;
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

static const struct pier_provider provider = {
	.name = "fake",
	.query_gid = query_gid,
	.query_gid_table = query_gid_table,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
};

static void start_host(void)
{
	memset(&host, 0, sizeof(host));
	host.tree = recorded_start();
	memcpy(host.verbs.name, "nic0", sizeof("nic0"));
	host.context.device = &host.verbs;
	host.device.provider = &provider;
	host.device.context = &host.context;
	host.device.limits.phys_port_cnt = 2;
	pthread_mutex_init(&host.device.events_lock, NULL);
	pthread_mutex_init(&host.device.gids_lock, NULL);
}

static void stop_host(void)
{
	for (int i = 0; i < PIER_GID_PORTS; i++)
		pier_drop_gids(host.device.gids[i].gids);
	recorded_close(&host.tree);
}

/* An interface of this network namespace. */
static void add_interface(const char *name, int index)
{
	char line[128];

	snprintf(line, sizeof(line), "class/net/%s/ifindex = %d", name, index);
	recorded_add(&host.tree, line);
}

static void add_address(const char *name, const char *text)
{
	struct interface_address *one = &host.addresses[host.address_count++];

	snprintf(one->name, sizeof(one->name), "%s", name);
	one->list.ifa_name = one->name;
	one->list.ifa_addr = &one->address.any;
	if (inet_pton(AF_INET, text, &one->address.v4.sin_addr) == 1)
		one->address.any.sa_family = AF_INET;
	else if (inet_pton(AF_INET6, text, &one->address.v6.sin6_addr) == 1)
		one->address.any.sa_family = AF_INET6;
	else
		fail_msg("no address: %s", text);
}

/* getifaddrs(3) returns one for each interface, also for those without an IP address. */
static void add_mac(const char *name, const uint8_t mac[ETH_ALEN])
{
	struct interface_address *one = &host.addresses[host.address_count];

	add_address(name, "0.0.0.0");
	one->address.mac = (struct sockaddr_ll){ .sll_family = AF_PACKET,
						 .sll_halen = ETH_ALEN };
	memcpy(one->address.mac.sll_addr, mac, ETH_ALEN);
}

/* A GID, of an interface in any network namespace. */
static void add_gid(uint32_t port, const char *text, uint32_t type, const char *interface,
		    uint32_t ifindex)
{
	struct ibv_gid_entry *entry = &host.entries[host.count];
	char line[128];

	assert_int_equal(inet_pton(AF_INET6, text, entry->gid.raw), 1);
	entry->port_num = port;
	entry->gid_type = type;
	entry->ndev_ifindex = ifindex;
	for (uint32_t i = 0; i < host.count; i++)
		entry->gid_index += host.entries[i].port_num == port;
	host.count++;
	snprintf(line, sizeof(line),
		 "class/infiniband/nic0/ports/%u/gid_attrs/ndevs/%u = %s", port,
		 entry->gid_index, interface);
	recorded_add(&host.tree, line);
}

/* The kernel has each GID twice: roce_gid_mgmt.c adds it for each type. */
static void add_both(uint32_t port, const char *text, const char *interface,
		     uint32_t ifindex)
{
	add_gid(port, text, V1, interface, ifindex);
	add_gid(port, text, V2, interface, ifindex);
}

static struct pier_gid_list read_port(uint8_t port)
{
	struct pier_gid_list list;

	expect_ok(pier_read_gids(host.tree.root, &host.device, port, 256, &list));
	return list;
}

static void expect_gid(const struct ibv_gid_entry *entry, const char *text)
{
	char found[INET6_ADDRSTRLEN];

	inet_ntop(AF_INET6, entry->gid.raw, found, sizeof(found));
	assert_string_equal(found, text);
	assert_int_equal(entry->gid_type, V2);
}

struct address {
	const char *text; /* NULL: the last entry */
	uint32_t type;
};

static const struct {
	struct address table[5];
	int chosen;
} cases[] = {
	{ { { NULL, 0 } }, -1 },
	{ { { "::", V2 } }, -1 },
	{ { { "fe80::1", V1 } }, 0 },
	{ { { "fe80::1", V1 }, { "fe80::1", V2 } }, 1 },
	{ { { "fe80::1", V1 }, { "fe80::1", V2 }, { "::ffff:10.0.0.1", V1 } }, 1 },
	{ { { "fe80::1", V2 }, { "2001:db8::1", V2 } }, 1 },
	{ { { "fe80::1", V2 }, { "fd00::1", V2 } }, 1 },
	{ { { "2001:db8::1", V2 }, { "::ffff:10.0.0.1", V2 } }, 1 },
	{ { { "::ffff:10.0.0.1", V2 }, { "2001:db8::1", V2 } }, 0 },
	{ { { "::ffff:10.0.0.1", V1 }, { "::ffff:10.0.0.1", V2 } }, 1 },
	{ { { "::ffff:10.0.0.1", V2 }, { "::ffff:10.0.0.2", V2 } }, 0 },
	{ { { "::ffff:169.254.3.4", V2 }, { "2001:db8::1", V2 } }, 1 },
	{ { { "::ffff:169.254.3.4", V2 }, { "fe80::1", V1 } }, 0 },
	{ { { "fe80::1", IB }, { "fe80::1", V1 } }, 1 },
	{ { { "fe80::1", IB } }, 0 },
	{ { { "::", V1 }, { "febf::1", V2 }, { "::", V2 }, { "fec0::1", V2 } }, 3 },
};

static void chooses_the_gid_by_type_and_scope(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ibv_gid_entry entries[5] = { 0 };
		struct pier_gid_list list;
		uint32_t count = 0;
		int chosen;

		for (; count < 5 && cases[i].table[count].text; count++) {
			assert_int_equal(inet_pton(AF_INET6, cases[i].table[count].text,
						   entries[count].gid.raw),
					 1);
			entries[count].gid_type = cases[i].table[count].type;
			entries[count].gid_index = count;
		}
		pier_rank_gids(entries, count, &list);
		chosen = list.count ? (int)list.entries[0].gid_index : -1;
		if (chosen != cases[i].chosen)
			fail_msg("case %zu: chose %d, not %d", i, chosen,
				 cases[i].chosen);
	}
}

static void separates_two_ports(void **state)
{
	(void)state;
	start_host();
	add_interface("eth0", 2);
	add_interface("eth1", 3);
	add_address("eth0", "10.0.0.1");
	add_address("eth1", "10.0.1.1");
	add_both(1, "::ffff:10.0.0.1", "eth0", 2);
	add_both(2, "::ffff:10.0.1.1", "eth1", 3);
	for (host.table_result = 0; host.table_result >= OLD_KERNEL;
	     host.table_result--) {
		expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.1");
		expect_gid(&read_port(2).entries[0], "::ffff:10.0.1.1");
	}
	stop_host();
}

/* The GIDs of a bond belong to it, and those of a VLAN to the VLAN's interface. */
static void takes_gids_of_bonds_and_vlans(void **state)
{
	(void)state;
	start_host();
	add_interface("bond0", 7);
	add_interface("bond0.100", 8);
	add_address("bond0", "fe80::1");
	add_address("bond0.100", "10.100.0.1");
	add_both(1, "fe80::1", "bond0", 7);
	add_both(1, "::ffff:10.100.0.1", "bond0.100", 8);
	expect_gid(&read_port(1).entries[0], "::ffff:10.100.0.1");
	assert_int_equal(read_port(1).count, 4);
	stop_host();
}

static void takes_ipv6_alone(void **state)
{
	(void)state;
	start_host();
	add_interface("eth0", 2);
	add_address("eth0", "2001:db8::1");
	add_both(1, "fe80::1", "eth0", 2);
	add_both(1, "2001:db8::1", "eth0", 2);
	expect_gid(&read_port(1).entries[0], "2001:db8::1");
	stop_host();
}

/* A default GID exists without an address: make_default_gid() in cache.c. */
static void takes_link_local_alone(void **state)
{
	(void)state;
	start_host();
	add_interface("eth0", 2);
	add_both(1, "fe80::1", "eth0", 2);
	expect_gid(&read_port(1).entries[0], "fe80::1");
	stop_host();
}

/* Containers: the host's GID comes first, and another container has the same eth0. */
static void prefers_gids_of_its_network_namespace(void **state)
{
	(void)state;
	start_host();
	add_interface("eth0", 2);
	add_address("eth0", "10.0.0.3");
	add_address("lo", "10.0.0.1");
	add_both(1, "::ffff:10.0.0.1", "ens1", 5);
	add_both(1, "::ffff:10.0.0.2", "eth0", 2);
	add_both(1, "::ffff:10.0.0.4", "eth0", 9);
	add_both(1, "fe80::9", "eth0", 9);
	add_both(1, "::ffff:10.0.0.3", "eth0", 2);
	expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.3");
	assert_int_equal(read_port(1).count, 2);
	/* The addresses are unknown: the name and the index remain. */
	host.no_addresses = true;
	expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.2");
	assert_int_equal(read_port(1).count, 4);
	stop_host();
}

/*
 * The GID of each MAC address, and of a stable private IP address (RFC 7217); the last
 * has a device number in place of ff:fe (addrconf_ifid_eui48()).
 */
static void tells_link_local_gids_of_other_containers_apart(void **state)
{
	static const uint8_t mac[ETH_ALEN] = { 0x02, 0x42, 0xac, 0x11, 0x00, 0x03 };
	struct pier_gid_list list;

	(void)state;
	start_host();
	add_interface("eth0", 2);
	add_mac("eth0", mac);
	add_address("eth0", "fe80::1234:5678:9abc:def0");
	add_gid(1, "fe80::42:acff:fe11:2", V2, "eth0", 2);
	add_gid(1, "fe80::42:acff:fe11:3", V2, "eth0", 2);
	add_gid(1, "fe80::142:acff:fe11:3", V2, "eth0", 2);
	add_gid(1, "fe80::1234:5678:9abc:def0", V2, "eth0", 2);
	add_gid(1, "fe80::242:ac00:111:3", V2, "eth0", 2);
	add_gid(1, "2001:db8::42:acff:fe11:3", V2, "eth0", 2);
	list = read_port(1);
	assert_int_equal(list.count, 3);
	expect_gid(&list.entries[0], "fe80::42:acff:fe11:3");
	expect_gid(&list.entries[1], "fe80::1234:5678:9abc:def0");
	expect_gid(&list.entries[2], "fe80::242:ac00:111:3");
	stop_host();
}

static void uses_foreign_gids_if_there_are_no_others(void **state)
{
	(void)state;
	start_host();
	add_interface("eth0", 2);
	add_address("eth0", "172.17.0.2");
	add_both(1, "::ffff:10.0.0.1", "ens1", 5);
	expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.1");
	/* Names from sysfs are no paths. */
	add_both(1, "::ffff:10.0.0.2", "../net/eth0", 2);
	expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.1");
	stop_host();
}

static void reads_256_entries(void **state)
{
	char text[64];

	(void)state;
	start_host();
	add_interface("eth0", 2);
	host.no_addresses = true;
	for (int i = 0; i < 255; i++) {
		snprintf(text, sizeof(text), "fe80::%x", i + 1);
		add_gid(1, text, V1, "eth0", 2);
	}
	add_gid(1, "::ffff:10.0.0.1", V2, "eth0", 2);
	expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.1");
	assert_int_equal(read_port(1).entries[0].gid_index, 255);
	assert_int_equal(read_port(1).count, PIER_GID_OFFERS);
	assert_int_equal(host.one_by_one, 0);
	/* A route cannot name entry 256. */
	add_gid(1, "::ffff:10.0.0.1", V2, "eth0", 2);
	host.entries[255].gid_type = V1;
	assert_int_equal(read_port(1).entries[0].gid_type, V1);
	stop_host();
}

/*
 * ENODEV: query_sysfs_gid_ndev_ifindex() of libibverbs, for an interface of another
 * namespace.
 */
static void skips_entries_that_cannot_be_read(void **state)
{
	struct pier_gid_list list;

	(void)state;
	start_host();
	host.table_result = OLD_KERNEL;
	add_both(1, "::ffff:10.0.0.1", "eth0", 2);
	add_both(1, "::ffff:10.0.0.2", "eth0", 2);
	host.errors[0] = ENODEV;
	host.errors[1] = EIO;
	expect_gid(&read_port(1).entries[0], "::ffff:10.0.0.2");
	host.errors[2] = host.errors[3] = EPERM;
	expect_result(pier_read_gids(host.tree.root, &host.device, 1, 256, &list),
		      -ENODEV);
	test_assert_sentence("read GID 0 of port 1: No such device");
	host.errors[3] = 0;
	memset(host.entries[3].gid.raw, 0, 16);
	expect_result(pier_read_gids(host.tree.root, &host.device, 1, 256, &list),
		      -EADDRNOTAVAIL);
	test_assert_sentence("port 1 has no GID to send from (1 in its table; another "
			     "one: No such device): give its");
	expect_result(pier_read_gids(host.tree.root, &host.device, 1, 0, &list),
		      -EADDRNOTAVAIL);
	stop_host();
}

static void report(enum ibv_event_type type)
{
	host.event = (struct ibv_async_event){ .event_type = type,
					       .element.port_num = 1 };
	host.has_event = true;
}

/* Equal lists are one, whether the table was read again or not. */
static void list_port(struct pier_shared_gids **first)
{
	struct pier_shared_gids *gids;

	expect_ok(pier_list_gids(&host.device, 1, 256, &gids));
	if (*first) {
		assert_ptr_equal(gids, *first);
		pier_drop_gids(gids);
	}
	*first = gids;
}

static void reads_the_table_once_until_it_changes(void **state)
{
	struct pier_shared_gids *first = NULL, *gids;

	(void)state;
	start_host();
	add_both(1, "::ffff:10.0.0.1", "eth0", 2);
	for (int i = 0; i < 3; i++)
		list_port(&first);
	assert_int_equal(host.at_once, 3); /* its events are not pier's */
	host.device.takes_events = true;
	for (int i = 0; i < 3; i++)
		list_port(&first);
	assert_int_equal(host.at_once, 4);
	inet_pton(AF_INET6, "::ffff:10.0.0.7", host.entries[1].gid.raw);
	report(IBV_EVENT_GID_CHANGE);
	expect_ok(pier_list_gids(&host.device, 1, 256, &gids));
	expect_gid(&gids->list.entries[0], "::ffff:10.0.0.7");
	/* Channels that offer the old ones still do. */
	assert_ptr_not_equal(gids, first);
	expect_gid(&first->list.entries[0], "::ffff:10.0.0.1");
	pier_drop_gids(first);
	/* A port without GIDs is read each time. */
	for (int i = 0; i < 2; i++)
		expect_result(pier_list_gids(&host.device, 2, 256, &first),
			      -EADDRNOTAVAIL);
	assert_int_equal(host.at_once, 7);
	report(IBV_EVENT_COMM_EST);
	list_port(&gids);
	pier_drop_gids(gids);
	assert_int_equal(host.at_once, 7);
	stop_host();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chooses_the_gid_by_type_and_scope),
		cmocka_unit_test(separates_two_ports),
		cmocka_unit_test(takes_gids_of_bonds_and_vlans),
		cmocka_unit_test(takes_ipv6_alone),
		cmocka_unit_test(takes_link_local_alone),
		cmocka_unit_test(prefers_gids_of_its_network_namespace),
		cmocka_unit_test(tells_link_local_gids_of_other_containers_apart),
		cmocka_unit_test(uses_foreign_gids_if_there_are_no_others),
		cmocka_unit_test(reads_256_entries),
		cmocka_unit_test(skips_entries_that_cannot_be_read),
		cmocka_unit_test(reads_the_table_once_until_it_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
