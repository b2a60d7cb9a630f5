/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum {
	CAPABILITIES = 0x34,
	CAPABILITY_PCIE = 0x10,
	DEVICE_CONTROL = 8,
	EXTENDED = 0x100,
	EXTENDED_ACS = 0x0d,
	ACS_CONTROL = 6,
	STEPS_MAX = 96,		   /* a list may be a circle */
	RELAXED_ORDERING = 1 << 4, /* in Device Control */
};

/* A little-endian number, or -1. */
static long read_value(const char *config, size_t offset, size_t bytes)
{
	long value = 0;

	if (strlen(config) < 2 * (offset + bytes))
		return -1;
	for (size_t i = bytes; i-- > 0;) {
		char digits[3] = { config[2 * (offset + i)],
				   config[2 * (offset + i) + 1] };

		value = value << 8 | strtol(digits, NULL, 16);
	}
	return value;
}

/* Device Control of the PCI Express capability; -1: not in what could be read. */
static long pci_device_control(const char *config)
{
	long at = read_value(config, CAPABILITIES, 1);

	for (int i = 0; i < STEPS_MAX && at >= 0x40; i++) {
		if (read_value(config, (size_t)at, 1) == CAPABILITY_PCIE)
			return read_value(config, (size_t)at + DEVICE_CONTROL, 2);
		at = read_value(config, (size_t)at + 1, 1);
	}
	return -1;
}

/* A header has the id, 16 bits, the version, 4 bits, and the next offset, 12 bits. */
long pci_acs_control(const char *config)
{
	long at = EXTENDED;

	for (int i = 0; i < STEPS_MAX && at >= EXTENDED; i++) {
		long id = read_value(config, (size_t)at, 2);

		if (id < 0)
			return -1;
		if (id == EXTENDED_ACS)
			return read_value(config, (size_t)at + ACS_CONTROL, 2);
		at = read_value(config, (size_t)at + 2, 2) >> 4;
	}
	return -2;
}

/* The checks of the NICs. */

/* A device that was named, and that is not in sysfs. */
static void judge_named(struct report *report)
{
	struct names opened = facts_names(report->facts, "pier/nic");

	for (size_t i = 0; i < opened.count; i++) {
		const char *nic = opened.list[i];
		const char *error = facts_error(report->facts, "pier/nic/%s", nic);

		if (facts_has(report->facts, "/sys/class/infiniband/%s", nic))
			continue;
		if (error)
			conclude(report, ERROR, nic, "pier info lists the devices",
				 "cannot be opened: %s", error);
		else
			conclude(report, OK, nic, "", "it was opened");
	}
	facts_free_names(&opened);
}

/* Whether libibverbs lists what the kernel has. */
static void check_listed(struct report *report)
{
	const char *reason = facts_error(report->facts, "pier/no_nic");
	const char *only = facts_get(report->facts, "pier/only");
	struct names nics = list_nics(report);

	if (nics.count == 0 && !only)
		conclude(report, WARNING, "", "pier cp --device soft0 FILE COPY",
			 "there is no RDMA NIC; soft0, the software NIC, works: %s",
			 reason ? reason : "/sys/class/infiniband is empty");
	if (only)
		judge_named(report);
	for (size_t i = 0; i < nics.count; i++) {
		const char *nic = nics.list[i];
		const char *error = facts_error(report->facts, "pier/nic/%s", nic);

		if (error)
			conclude(report, ERROR, nic, "ls -l /dev/infiniband",
				 "cannot be opened: %s", error);
		else if (was_opened(report, nic))
			conclude(report, OK, nic, "", "libibverbs opens it");
		else
			conclude(report, ERROR, nic,
				 "apt install ibverbs-providers, or dnf install "
				 "libibverbs; also inside the container",
				 "/sys/class/infiniband/%s exists, but libibverbs does "
				 "not list it: its provider is missing, or its uverbs "
				 "device is not visible%s%s",
				 nic, reason ? ": " : "", reason ? reason : "");
	}
	facts_free_names(&nics);
}

/* Why no channel could be created on a port; NULL: none failed. */
static const char *find_channel_error(struct report *report, const char *nic)
{
	struct names ports = facts_names(report->facts, "pier/nic/%s/ports", nic);
	const char *error = NULL;

	for (size_t i = 0; !error && i < ports.count; i++)
		error = facts_error(report->facts, "pier/nic/%s/ports/%s/channel", nic,
				    ports.list[i]);
	facts_free_names(&ports);
	return error;
}

static void judge_channels(struct report *report, const char *nic)
{
	const char *refusal = facts_error(report->facts, "pier/nic/%s/channels", nic);
	const char *error = find_channel_error(report, nic);

	if (refusal)
		conclude(report, WARNING, nic, "use another NIC for channels (--device)",
			 "no reliable connections (RC): %s", refusal);
	else if (error)
		/* The process or the moment may be at fault: a limit, or lack of memory.
		 */
		conclude(report, NOT_APPLICABLE, nic, "",
			 "nothing is known, because creating a channel failed: %s",
			 error);
	else
		conclude(report, OK, nic, "", "a queue pair of type RC can be created");
}

static void judge_dmabuf(struct report *report, const char *nic)
{
	const char *value = facts_get(report->facts, "pier/nic/%s/dmabuf", nic);

	if (value && strcmp(value, "yes") == 0)
		conclude(report, OK, nic, "",
			 "registering fd -1 as a dma-buf fails with EBADF: the method is "
			 "there");
	else
		conclude(report, WARNING, nic,
			 "use a kernel and a driver with the method: mlx5, irdma, "
			 "bnxt_re, efa, mana or ionic",
			 "dma-bufs cannot be registered: the kernel or the NIC's driver "
			 "lacks the uverbs method REG_DMABUF_MR");
}

static void judge_firmware(struct report *report, const char *nic)
{
	const char *version = facts_get(report->facts, "pier/nic/%s/firmware", nic);

	if (!version || !version[0])
		version = facts_get(report->facts, "/sys/class/infiniband/%s/fw_ver",
				    nic);
	if (version && version[0])
		conclude(report, OK, nic, "", "firmware %s", version);
	else
		conclude(report, NOT_APPLICABLE, nic, "",
			 "the driver reports no firmware version");
}

/* "16.0 GT/s PCIe" */
static double link_speed(struct report *report, const char *folder, const char *which)
{
	const char *text = facts_get(report->facts, "%s/%s_link_speed", folder, which);

	return text ? strtod(text, NULL) : 0;
}

static long long link_width(struct report *report, const char *folder, const char *which)
{
	return facts_number(report->facts, "%s/%s_link_width", folder, which);
}

/*
 * Gbit/s of a PCIe link, after its line code: 8b/10b up to 5 GT/s, 128b/130b above (PCI
 * Express Base Specification 4.0, section 4.2).
 */
static double link_gbits(double speed, long long width)
{
	return speed * (double)width * (speed > 5 ? 128.0 / 130 : 0.8);
}

/* The sum over the active ports, in Gbit/s: "400 Gb/sec (4X NDR)". */
static double port_gbits(struct report *report, const char *nic)
{
	struct names ports = facts_names(report->facts, "/sys/class/infiniband/%s/ports",
					 nic);
	double sum = 0;

	for (size_t i = 0; i < ports.count; i++) {
		const char *state = facts_get(report->facts,
					      "/sys/class/infiniband/%s/ports/%s/state",
					      nic, ports.list[i]);
		const char *rate = facts_get(report->facts,
					     "/sys/class/infiniband/%s/ports/%s/rate",
					     nic, ports.list[i]);

		if (state && strstr(state, "ACTIVE") && rate)
			sum += strtod(rate, NULL);
	}
	facts_free_names(&ports);
	return sum;
}

/* The fastest link that the NIC and its slot, the bridge above it, both support. */
static void read_best(struct report *report, const char *folder, double *ret_speed,
		      long long *ret_width)
{
	char bridge[FACT_PATH_MAX];
	double speed;
	long long width;

	*ret_speed = link_speed(report, folder, "max");
	*ret_width = link_width(report, folder, "max");
	snprintf(bridge, sizeof(bridge), "%.*s", (int)(strrchr(folder, '/') - folder),
		 folder);
	speed = link_speed(report, bridge, "max");
	width = link_width(report, bridge, "max");
	if (speed > 0 && speed < *ret_speed)
		*ret_speed = speed;
	if (width > 0 && width < *ret_width)
		*ret_width = width;
}

static void judge_link(struct report *report, const char *nic, const char *folder)
{
	double now = link_speed(report, folder, "current"), best;
	long long width = link_width(report, folder, "current"), widest;
	double rate = port_gbits(report, nic), gbits = link_gbits(now, width);

	read_best(report, folder, &best, &widest);
	if (now <= 0 || width <= 0)
		conclude(report, NOT_APPLICABLE, nic, "",
			 "%s/current_link_speed is not known: a virtual machine often "
			 "hides it",
			 folder);
	else if (now < best || width < widest)
		conclude(report, WARNING, nic,
			 "reseat the card, and check the BIOS and its riser",
			 "%g GT/s x%lld (%.0f Gb/s), but NIC and slot support %g GT/s "
			 "x%lld (%s)",
			 now, width, gbits, best, widest, folder);
	else if (rate > gbits)
		conclude(report, WARNING, nic, "move the card to a faster or wider slot",
			 "%g GT/s x%lld carry %.0f Gb/s, less than the ports' %.0f", now,
			 width, gbits, rate);
	else
		conclude(report, OK, nic, "",
			 "%g GT/s x%lld: %.0f Gb/s; active ports %.0f Gb/s", now, width,
			 gbits, rate);
}

static void judge_ordering(struct report *report, const char *nic, const char *folder)
{
	const char *variable = facts_get(report->facts, "pier/env/PIER_RELAXED_ORDERING");
	const char *config;
	long control;

	if (facts_link(report->facts, "%s/physfn", folder) ||
	    link_speed(report, folder, "max") <= 0) {
		conclude(report, NOT_APPLICABLE, nic, "",
			 "a virtual function orders as its physical function does");
		return;
	}
	config = facts_get(report->facts, "%s/config", folder);
	control = config ? pci_device_control(config) : -1;
	if (variable && strcmp(variable, "off") == 0)
		conclude(report, WARNING, nic, "unset PIER_RELAXED_ORDERING",
			 "PIER_RELAXED_ORDERING=off: pier asks for none");
	else if (control < 0)
		conclude(report, NOT_APPLICABLE, nic,
			 is_root(report) ? "" : "sudo pier doctor",
			 "%s/config: the PCI Express capability cannot be read", folder);
	else if (control & RELAXED_ORDERING)
		conclude(report, OK, nic, "",
			 "Device Control %#lx: the NIC may order its writes freely",
			 control);
	else
		conclude(report, WARNING, nic,
			 "allow relaxed ordering in the BIOS; the kernel takes it away "
			 "from devices behind some root ports",
			 "Device Control %#lx: relaxed ordering is off", control);
}

/* The PCI function that drivers/infiniband/hw/mlx5 in the kernel calls Data Direct. */
static void check_data_direct(struct report *report)
{
	struct names devices = facts_names(report->facts, "/sys/bus/pci/devices");
	char folder[FACT_PATH_MAX];
	size_t found = 0;

	for (size_t i = 0; i < devices.count; i++) {
		const char *address = devices.list[i];

		if (!find_pci(report, address, folder) ||
		    facts_number(report->facts, "%s/vendor", folder) != 0x15b3 ||
		    facts_number(report->facts, "%s/device", folder) != 0x2100)
			continue;
		found++;
		if (facts_link(report->facts, "%s/driver", folder))
			conclude(report, OK, address, "",
				 "a Data Direct function (15b3:2100) with its driver");
		else
			conclude(report, WARNING, address,
				 "load a mlx5_ib with Data Direct (Linux 6.12)",
				 "a Data Direct function (15b3:2100) without a driver");
	}
	if (found == 0)
		conclude(report, NOT_APPLICABLE, "", "",
			 "no NIC has a Data Direct function (15b3:2100)");
	facts_free_names(&devices);
}

/* The checks of the NICs' ports. */

static const char *port_fact(struct report *report, const char *nic, const char *port,
			     const char *name)
{
	return facts_get(report->facts, "/sys/class/infiniband/%s/ports/%s/%s", nic, port,
			 name);
}

static const char *opened_fact(struct report *report, const char *nic, const char *port,
			       const char *name)
{
	return facts_get(report->facts, "pier/nic/%s/ports/%s/%s", nic, port, name);
}

static bool is_ethernet(struct report *report, const char *nic, const char *port)
{
	const char *layer = opened_fact(report, nic, port, "link_layer");

	return layer && strcmp(layer, "Ethernet") == 0;
}

static void judge_state(struct report *report, const char *nic, const char *port)
{
	const char *state = port_fact(report, nic, port, "state");
	const char *physical = port_fact(report, nic, port, "phys_state");
	const char *rate = port_fact(report, nic, port, "rate");
	const char *layer = port_fact(report, nic, port, "link_layer");

	if (!state)
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "ports/%s/state does not exist", port);
	else if (strstr(state, "ACTIVE"))
		conclude(report, OK, report->subject, "", "%s, %s", state,
			 rate ? rate : "rate unknown");
	else if (layer && strcmp(layer, "InfiniBand") == 0 &&
		 (strstr(state, "INIT") || strstr(state, "ARMED")))
		conclude(report, ERROR, report->subject,
			 "start a subnet manager (opensm) on the fabric",
			 "%s: the cable is there, but no subnet manager has configured "
			 "the port",
			 state);
	else if (layer && strcmp(layer, "InfiniBand") == 0)
		conclude(report, WARNING, report->subject,
			 "check the cable and the switch (ibportstate)",
			 "%s, physically %s", state, physical ? physical : "unknown");
	else
		conclude(report, WARNING, report->subject,
			 "check the cable; ip link set dev INTERFACE up",
			 "%s, physically %s", state, physical ? physical : "unknown");
}

static const char *raise_mtu(struct report *report, const char *nic, const char *port)
{
	return is_ethernet(report, nic, port)
		       ? "ip link set dev INTERFACE mtu 9000, here and on the switches"
		       : "raise the MTU of the partition in the subnet manager";
}

static void judge_mtu(struct report *report, const char *nic, const char *port)
{
	const char *active = opened_fact(report, nic, port, "active_mtu");
	const char *max = opened_fact(report, nic, port, "max_mtu");
	unsigned long mtu = active ? strtoul(active, NULL, 10) : 0;

	if (mtu == 0)
		conclude(report, NOT_APPLICABLE, report->subject, "", "no MTU is known");
	else if (mtu < 1024)
		conclude(report, ERROR, report->subject, raise_mtu(report, nic, port),
			 "packets of %lu bytes: a path of less than 1024 wastes most of "
			 "the link",
			 mtu);
	else if (max && mtu < strtoul(max, NULL, 10))
		conclude(report, WARNING, report->subject, raise_mtu(report, nic, port),
			 "packets of %lu bytes, of at most %s", mtu, max);
	else
		conclude(report, OK, report->subject, "", "packets of %lu bytes", mtu);
}

static bool is_link_local(const char *gid)
{
	return strstr(gid, " fe80:") || strstr(gid, " ::ffff:169.254.");
}

/* The port has no channel, and so no GID. */
static void judge_no_channel(struct report *report, const char *nic, const char *port)
{
	const char *error = facts_error(report->facts, "pier/nic/%s/ports/%s/channel",
					nic, port);

	if (error)
		conclude(report, ERROR, report->subject, "",
			 "a channel cannot be created: %s", error);
	else if (facts_error(report->facts, "pier/nic/%s/channels", nic))
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "the device has no channels: see RC");
	else
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "the port is not active, so it has no channel");
}

/* "INDEX TYPE ADDRESS" of the GID that a channel takes; an error: why it takes none. */
static void judge_gid(struct report *report, const char *nic, const char *port)
{
	const char *error = facts_error(report->facts, "pier/nic/%s/ports/%s/gid", nic,
					port);
	const char *gid = opened_fact(report, nic, port, "gid");

	if (error)
		conclude(report, ERROR, report->subject,
			 "give the port's network interface an address",
			 "no GID can be chosen: %s", error);
	else if (!gid)
		judge_no_channel(report, nic, port);
	else if (!is_ethernet(report, nic, port))
		conclude(report, OK, report->subject, "", "GID %s; peers use its LID",
			 gid);
	else if (strstr(gid, "RoCE v1"))
		conclude(report, WARNING, report->subject,
			 "give the port's network interface an IP address",
			 "GID %s: no GID of RoCE v2, so no router passes the packets",
			 gid);
	else if (is_link_local(gid))
		conclude(report, WARNING, report->subject,
			 "give the port's network interface a routable address",
			 "GID %s: the port has no better one, and link-local addresses "
			 "do not leave the subnet",
			 gid);
	else
		conclude(report, OK, report->subject, "",
			 "GID %s: RoCE v2 before v1, IPv4 before IPv6, link-local last; "
			 "PIER_CHANNEL=gid=N chooses another",
			 gid);
}

static void judge_traffic_class(struct report *report, const char *nic, const char *port)
{
	const char *class = opened_fact(report, nic, port, "traffic_class");

	if (!is_ethernet(report, nic, port))
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "InfiniBand has service levels instead");
	else if (!class)
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "the port has no channel: see GID");
	else if (strtoul(class, NULL, 10) == 0)
		conclude(report, WARNING, report->subject,
			 "PIER_CHANNEL=tc=106 where the switches are lossless for DSCP "
			 "26",
			 "traffic class 0: the packets share the queue of ordinary "
			 "traffic, which drops when it is full");
	else
		conclude(report, OK, report->subject, "", "traffic class %s (DSCP %lu)",
			 class, strtoul(class, NULL, 10) >> 2);
}

/*
 * Counters of errors, by name: Documentation/ABI/stable/sysfs-class-infiniband of the
 * kernel, and the drivers' tables (mlx5: counters.c, bnxt_re: hw_counters.c, efa:
 * efa_verbs.c, irdma: verbs.c, which writes InDiscards).
 */
bool counts_errors(const char *name)
{
	static const char *const parts[] = {
		"error", "discard", "out_of_sequence", "timeout",	"retr",	   "naks",
		"_err",	 "drop",    "link_downed",     "out_of_buffer", "missing",
	};

	/* These grow when programs end normally. */
	if (strstr(name, "flush") || strstr(name, "relay"))
		return false;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (strcasestr(name, parts[i]))
			return true;
	return false;
}

/* Adds "NAME +N" of each counter that has grown since before the transfers. */
static void add_grown(struct report *report, const char *nic, const char *port,
		      const char *kind, size_t *count, char *text, size_t size)
{
	struct names names = facts_names(
		report->facts, "/sys/class/infiniband/%s/ports/%s/%s", nic, port, kind);

	for (size_t i = 0; i < names.count; i++) {
		const char *name = names.list[i];
		size_t used = strlen(text);
		long long before, after;

		if (!counts_errors(name))
			continue;
		before = facts_number(report->facts,
				      "/sys/class/infiniband/%s/ports/%s/%s/%s", nic,
				      port, kind, name);
		after = facts_number(report->facts, "pier/nic/%s/ports/%s/after/%s", nic,
				     port, name);
		++*count;
		if (before >= 0 && after > before)
			snprintf(text + used, size - used, "%s%s +%lld", used ? ", " : "",
				 name, after - before);
	}
	facts_free_names(&names);
}

static void judge_counters(struct report *report, const char *nic, const char *port)
{
	char grown[512] = "";
	size_t count = 0;

	add_grown(report, nic, port, "counters", &count, grown, sizeof(grown));
	add_grown(report, nic, port, "hw_counters", &count, grown, sizeof(grown));
	if (grown[0])
		conclude(report, WARNING, report->subject,
			 "check cable, switch port and flow control (PFC, ECN); see "
			 "rdma statistic show",
			 "errors were counted while pier doctor ran, also by other "
			 "programs: %s",
			 grown);
	else if (count == 0)
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "the driver has no counters of errors");
	else
		conclude(report, OK, report->subject, "",
			 "none of %zu counters of errors grew while pier doctor ran",
			 count);
}

const struct check doctor_nic_checks[] = {
	{ "NIC", "found", .once = check_listed },
	{ "NIC", "RC", .each_opened_nic = judge_channels },
	{ "NIC", "dma-buf method", .each_opened_nic = judge_dmabuf },
	{ "NIC", "firmware", .each_opened_nic = judge_firmware },
	{ "NIC", "slot", .each_pci_nic = judge_link },
	{ "NIC", "relaxed ordering", .each_pci_nic = judge_ordering },
	{ "NIC", "Data Direct", .once = check_data_direct },
	{ "NIC", "port state", .each_port = judge_state },
	{ "NIC", "MTU", .each_opened_port = judge_mtu },
	{ "NIC", "GID", .each_opened_port = judge_gid },
	{ "NIC", "traffic class", .each_opened_port = judge_traffic_class },
	{ "NIC", "error counters", .each_port = judge_counters },
	{ 0 },
};
