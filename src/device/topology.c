/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/caller.h"
#include "core/error.h"
#include "core/text.h"
#include "topology.h"

/* A resolved path below the root of sysfs, and the position of the reader. */
struct path {
	char text[PATH_MAX];
	const char *rest;
};

bool pier_read_sysfs(char *ret_line, size_t size, const char *format, ...)
{
	char path[PATH_MAX];
	ssize_t length;
	va_list args;
	int fd, printed;

	va_start(args, format);
	printed = vsnprintf(path, sizeof(path), format, args);
	va_end(args);
	if (printed < 0 || (size_t)printed >= sizeof(path))
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	length = read(fd, ret_line, size);
	close(fd);
	if (length < 2 || ret_line[length - 1] != '\n')
		return false;
	ret_line[length - 1] = '\0';
	return true;
}

enum {
	/* The kernel has at most 2^10 nodes: MAX_NUMNODES in linux/numa.h. */
	NODES = 1 << 16,
	PCI_SIZE = sizeof(((struct pier_location *)0)->pci),
};

/* "0000:17:00.0": pci_setup_device() in drivers/pci/probe.c. */
struct address {
	uint32_t domain;
	uint32_t bus;
	uint32_t device;
	uint32_t function;
};

/* One name of a path. */
struct step {
	const char *name;
	size_t length;
};

static bool take_hex(struct step *rest, size_t least, size_t most, uint32_t *ret_value)
{
	uint32_t value = 0;
	size_t count = 0;

	for (; count < rest->length && count < most; count++) {
		int digit = pier_hex_value(rest->name[count]);

		if (digit < 0)
			break;
		value = value << 4 | (uint32_t)digit;
	}
	rest->name += count;
	rest->length -= count;
	*ret_value = value;
	return count >= least;
}

static bool take_sign(struct step *rest, char sign)
{
	if (rest->length == 0 || rest->name[0] != sign)
		return false;
	rest->name++;
	rest->length--;
	return true;
}

/* Intel's VMD has domains with more than four digits, from 10000 on. */
static bool read_address(struct step text, struct address *ret_address)
{
	struct address read;

	if (!take_hex(&text, 4, 8, &read.domain) || !take_sign(&text, ':') ||
	    !take_hex(&text, 2, 2, &read.bus) || !take_sign(&text, ':') ||
	    !take_hex(&text, 2, 2, &read.device) || !take_sign(&text, '.') ||
	    !take_hex(&text, 1, 1, &read.function) || text.length != 0 ||
	    read.device > 31 || read.function > 7)
		return false;
	*ret_address = read;
	return true;
}

/* The root bus of a host bridge, "pci0000:15": pci_register_host_bridge(). */
static bool is_host_bridge(struct step text)
{
	uint32_t domain, bus;

	if (text.length < 3 || memcmp(text.name, "pci", 3) != 0)
		return false;
	text.name += 3;
	text.length -= 3;
	return take_hex(&text, 4, 8, &domain) && take_sign(&text, ':') &&
	       take_hex(&text, 2, 2, &bus) && text.length == 0;
}

static bool read_pci(const char *pci, struct address *ret_address)
{
	struct step text = { pci, strnlen(pci, PCI_SIZE) };

	return read_address(text, ret_address);
}

/* Returns false if it does not fit: only domains of 32 bits do not. */
static bool write_pci(const struct address *address, char ret_pci[16])
{
	char text[32];

	if (snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", address->domain,
		     address->bus, address->device, address->function) >= PCI_SIZE)
		return false;
	memcpy(ret_pci, text, strlen(text) + 1);
	return true;
}

/* Resolve a link. False: its target is missing, is a loop, or is outside of sysfs. */
static bool resolve_link(const char *sysfs, const char *link, struct path *ret_path)
{
	char root[PATH_MAX];
	size_t length;

	if (!realpath(sysfs, root) || !realpath(link, ret_path->text))
		return false;
	length = strlen(root);
	if (strncmp(ret_path->text, root, length) != 0 || ret_path->text[length] != '/')
		return false;
	ret_path->rest = ret_path->text + length;
	return true;
}

static bool resolve_address(const char *sysfs, const struct address *address,
			    const char *below, struct path *ret_path)
{
	char link[PATH_MAX], pci[16];

	return write_pci(address, pci) &&
	       snprintf(link, sizeof(link), "%s/bus/pci/devices/%s%s", sysfs, pci,
			below) < PATH_MAX &&
	       resolve_link(sysfs, link, ret_path);
}

static bool next_step(struct path *path, struct step *ret_step)
{
	path->rest += strspn(path->rest, "/");
	ret_step->name = path->rest;
	ret_step->length = strcspn(path->rest, "/");
	path->rest += ret_step->length;
	return ret_step->length > 0;
}

/* The last PCI device of a path. */
static bool last_device(struct path path, struct address *ret_address)
{
	bool found = false;
	struct step step;

	while (next_step(&path, &step))
		found |= read_address(step, ret_address);
	return found;
}

/* How many PCI devices a path has from here on. */
static unsigned int count_devices(struct path *path)
{
	struct address address;
	unsigned int count = 0;
	struct step step;

	while (next_step(path, &step))
		count += read_address(step, &address);
	return count;
}

/* The last element that two paths have in common. */
enum junction {
	NOTHING,
	HOST_BRIDGE,
	BRIDGE,
};

/* Moves both paths past their common part. */
static enum junction find_junction(struct path *a, struct path *b)
{
	enum junction junction = NOTHING;
	const char *rest_a = a->rest, *rest_b = b->rest;
	struct step step_a, step_b;
	struct address address;

	while (next_step(a, &step_a) && next_step(b, &step_b) &&
	       step_a.length == step_b.length &&
	       memcmp(step_a.name, step_b.name, step_a.length) == 0) {
		if (is_host_bridge(step_a))
			junction = HOST_BRIDGE;
		else if (read_address(step_a, &address))
			junction = BRIDGE;
		rest_a = a->rest;
		rest_b = b->rest;
	}
	a->rest = rest_a;
	b->rest = rest_b;
	return junction;
}

static unsigned int bridges_above(struct path *path)
{
	unsigned int devices = count_devices(path);

	return devices ? devices - 1 : 0;
}

/*
 * By the tree alone. From below a switch's upstream port to two devices there is a
 * downstream port on either way: two bridges at most are one switch.
 */
static enum pier_distance tree_distance(struct path *a, struct path *b)
{
	switch (find_junction(a, b)) {
	case BRIDGE:
		return bridges_above(a) + bridges_above(b) <= 2 ? PIER_DISTANCE_SWITCH
								: PIER_DISTANCE_SWITCHES;
	case HOST_BRIDGE:
		return PIER_DISTANCE_HOST_BRIDGE;
	default:
		return PIER_DISTANCE_UNKNOWN;
	}
}

/*
 * A virtual function has bus and device numbers of its own: it is its physical
 * function's device (pci_iov_add_virtfn()).
 */
static struct address physical_function(const char *sysfs, const struct address *address)
{
	struct address physical;
	struct path path;

	if (resolve_address(sysfs, address, "/physfn", &path) &&
	    last_device(path, &physical))
		return physical;
	return *address;
}

static bool same_device(const char *sysfs, const struct address *a,
			const struct address *b)
{
	struct address first = physical_function(sysfs, a);
	struct address second = physical_function(sysfs, b);

	return first.domain == second.domain && first.bus == second.bus &&
	       first.device == second.device;
}

static enum pier_distance pci_distance(const char *sysfs, const struct pier_location *a,
				       const struct pier_location *b)
{
	struct address address_a, address_b;
	struct path path_a, path_b;

	if (!read_pci(a->pci, &address_a) || !read_pci(b->pci, &address_b))
		return PIER_DISTANCE_UNKNOWN;
	if (same_device(sysfs, &address_a, &address_b))
		return PIER_DISTANCE_SAME;
	if (!resolve_address(sysfs, &address_a, "", &path_a) ||
	    !resolve_address(sysfs, &address_b, "", &path_b))
		return PIER_DISTANCE_UNKNOWN;
	return tree_distance(&path_a, &path_b);
}

static int numa_node(const char *sysfs, const struct address *address)
{
	char pci[16], text[16], *end;
	long node;

	if (!write_pci(address, pci) ||
	    !pier_read_sysfs(text, sizeof(text), "%s/bus/pci/devices/%s/numa_node", sysfs,
			     pci) ||
	    text[0] < '0' || text[0] > '9')
		return -1;
	node = strtol(text, &end, 10);
	return node < NODES && !*end ? (int)node : -1;
}

enum pier_distance pier_distance_in(const char *sysfs, const struct pier_location *a,
				    const struct pier_location *b)
{
	enum pier_distance distance = pci_distance(sysfs, a, b);

	if (distance != PIER_DISTANCE_UNKNOWN)
		return distance;
	if (a->numa_node < 0 || b->numa_node < 0)
		return PIER_DISTANCE_UNKNOWN;
	return a->numa_node == b->numa_node ? PIER_DISTANCE_NODE : PIER_DISTANCE_SYSTEM;
}

const char *pier_distance_name(enum pier_distance distance)
{
	static const char *const names[] = {
		[PIER_DISTANCE_SAME] = "same",
		[PIER_DISTANCE_SWITCH] = "switch",
		[PIER_DISTANCE_SWITCHES] = "switches",
		[PIER_DISTANCE_C2C] = "c2c",
		[PIER_DISTANCE_HOST_BRIDGE] = "host bridge",
		[PIER_DISTANCE_NODE] = "node",
		[PIER_DISTANCE_SYSTEM] = "system",
	};

	if ((unsigned int)distance >= sizeof(names) / sizeof(names[0]))
		return "unknown";
	return names[distance];
}

void pier_settle_location(const char *sysfs, const char *pci, int node,
			  struct pier_location *ret_location)
{
	struct pier_location location = { .numa_node = node < 0 ? -1 : node };
	struct address address;

	if (read_pci(pci, &address) && write_pci(&address, location.pci) && node < 0)
		location.numa_node = numa_node(sysfs, &address);
	*ret_location = location;
}

/*
 * A NIC's parent is its PCI device or is below that: the parent of a subfunction is on
 * the auxiliary bus (mlx5_core.sf.4). NICs in software have no parent.
 */
void pier_locate_nic(const char *sysfs, const char *name,
		     struct pier_location *ret_location)
{
	struct address address;
	char link[PATH_MAX];
	struct path path;

	*ret_location = (struct pier_location){ .numa_node = -1 };
	if (name[0] == '.' || strchr(name, '/') ||
	    snprintf(link, sizeof(link), "%s/class/infiniband/%s/device", sysfs, name) >=
		    PATH_MAX ||
	    !resolve_link(sysfs, link, &path) || !last_device(path, &address) ||
	    !write_pci(&address, ret_location->pci))
		return;
	ret_location->numa_node = numa_node(sysfs, &address);
}

enum {
	PORTS_MAX = 255, /* a port number has 8 bits in verbs */
};

/*
 * A number with at most one decimal place and then `unit`, times 10; or 0. It has less
 * than 7 digits.
 */
static uint32_t read_tenths(const char *text, const char *unit)
{
	unsigned int whole, tenth = 0;
	int length = 0;

	if (sscanf(text, "%6u%n", &whole, &length) != 1)
		return 0;
	text += length;
	if (text[0] == '.' && text[1] >= '0' && text[1] <= '9') {
		tenth = (unsigned int)(text[1] - '0');
		text += 2;
	}
	return strncmp(text, unit, strlen(unit)) == 0 ? 10 * whole + tenth : 0;
}

/*
 * "4: ACTIVE" and "100 Gb/sec (4X EDR)": state_show() and rate_show() in
 * drivers/infiniband/core/sysfs.c. Returns false if there is no such port.
 */
static bool read_port(const char *sysfs, const char *name, unsigned int port,
		      uint32_t *ret_speed)
{
	char state[32], rate[64];

	*ret_speed = 0;
	if (!pier_read_sysfs(state, sizeof(state),
			     "%s/class/infiniband/%s/ports/%u/state", sysfs, name, port))
		return false;
	if (strncmp(state, "4:", 2) == 0 &&
	    pier_read_sysfs(rate, sizeof(rate), "%s/class/infiniband/%s/ports/%u/rate",
			    sysfs, name, port))
		*ret_speed = 100 * read_tenths(rate, " Gb/sec");
	return true;
}

/*
 * "16.0 GT/s PCIe" and "16": current_link_speed_show() and current_link_width_show() in
 * drivers/pci/pci-sysfs.c; older kernels print "16 GT/s". The first two generations send
 * 10 bits for 8, the later ones 130 for 128 (PCI Express Base Specification, 4.2).
 */
static uint32_t link_speed(const char *sysfs, const char *pci, const char *below)
{
	char speed[32], width[16];
	uint32_t tenths, lanes;

	if (!pier_read_sysfs(speed, sizeof(speed),
			     "%s/bus/pci/devices/%s%s/current_link_speed", sysfs, pci,
			     below) ||
	    !pier_read_sysfs(width, sizeof(width),
			     "%s/bus/pci/devices/%s%s/current_link_width", sysfs, pci,
			     below))
		return 0;
	tenths = read_tenths(speed, " GT/s");
	lanes = read_tenths(width, "") / 10;
	if (tenths > 1280 || lanes > 32)
		return 0;
	return tenths < 80 ? 100 * tenths * lanes / 10 * 8
			   : (uint32_t)(100ull * tenths * lanes * 128 / 130);
}

uint32_t pier_nic_speed(const char *sysfs, const char *name,
			const struct pier_location *location)
{
	uint32_t fastest = 0, link = 0, speed;

	for (unsigned int port = 1;
	     port <= PORTS_MAX && read_port(sysfs, name, port, &speed); port++)
		fastest = speed > fastest ? speed : fastest;
	/* A virtual function reports no link of its own (PCI_EXP_LNKSTA reads as 0). */
	if (location->pci[0])
		link = link_speed(sysfs, location->pci, "/physfn");
	if (location->pci[0] && !link)
		link = link_speed(sysfs, location->pci, "");
	return link && (link < fastest || !fastest) ? link : fastest;
}

uint32_t pier_slow_port_speed(const char *sysfs, const char *name, uint32_t port,
			      uint32_t count)
{
	uint32_t own, other, fastest = 0;

	for (uint32_t i = 1; i <= count; i++) {
		read_port(sysfs, name, i, &other);
		fastest = other > fastest ? other : fastest;
	}
	read_port(sysfs, name, port, &own);
	return own < fastest ? own : 0;
}

enum {
	/* NR_CPUS of x86 is at most 8192, and that of other processors is not larger. */
	CPUS = 8192,
	/* Each 32 CPUs are 8 digits and a comma. */
	CPUMAP_SIZE = CPUS / 32 * 9 + 1,
};

/* As many CPUs as a kernel may have; cpu_set_t alone has 1024. */
struct cpus {
	cpu_set_t sets[CPUS / CPU_SETSIZE];
};

/*
 * "00000000,0000ffff": cpumap_print_bitmask_to_buf() in Linux. The last digit is of the
 * CPUs 0 to 3. A list ("0-15") may be longer than the page that one read returns.
 */
static bool parse_cpumap(const char *map, struct cpus *ret_cpus)
{
	int cpu = 0;

	*ret_cpus = (struct cpus){ 0 };
	for (size_t i = strlen(map); i-- > 0;) {
		int digit = pier_hex_value(map[i]);

		if (map[i] == ',')
			continue;
		if (digit < 0 || cpu >= CPUS)
			return false;
		for (int bit = 0; bit < 4; bit++, cpu++)
			if (digit & 1 << bit)
				CPU_SET_S(cpu, sizeof(*ret_cpus), ret_cpus->sets);
	}
	return true;
}

static bool find_cpus(const char *sysfs, int node, struct cpus *ret_cpus)
{
	char map[CPUMAP_SIZE];

	/* cpumap_read() in drivers/base/node.c leaves out CPUs that are offline. */
	return node >= 0 &&
	       pier_read_sysfs(map, sizeof(map), "%s/devices/system/node/node%d/cpumap",
			       sysfs, node) &&
	       parse_cpumap(map, ret_cpus) &&
	       CPU_COUNT_S(sizeof(*ret_cpus), ret_cpus->sets) > 0;
}

int pier_bind_near_in(const char *sysfs, const struct pier_location *location)
{
	int node = location->numa_node;
	struct cpus allowed = { 0 }, near;

	if (!find_cpus(sysfs, node, &near))
		return pier_fail(ENODATA, "binding to NUMA node %d: %s", node,
				 node < 0 ? "the node of the device is unknown"
					  : "sysfs reports no CPUs of it");
	if (sched_getaffinity(0, sizeof(allowed), allowed.sets) < 0)
		return pier_fail(errno, "binding to NUMA node %d: sched_getaffinity: %s",
				 node, strerror(errno));
	CPU_AND_S(sizeof(near), near.sets, near.sets, allowed.sets);
	if (CPU_COUNT_S(sizeof(near), near.sets) == 0)
		return pier_fail(EPERM,
				 "binding to NUMA node %d: the thread may use none of "
				 "its CPUs (taskset -p shows its mask)",
				 node);
	if (sched_setaffinity(0, sizeof(near), near.sets) < 0)
		return pier_fail(errno, "binding to NUMA node %d: sched_setaffinity: %s",
				 node, strerror(errno));
	return 0;
}

int pier_thread_bind_near(const struct pier_location *location)
{
	PIER_REFUSE_NULL(location);
	return pier_bind_near_in(PIER_SYSFS, location);
}
