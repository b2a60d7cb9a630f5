/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* The checks of the NICs' ports. */

void for_each_port(struct report *report, bool opened, port_check *check)
{
	const char *above = opened ? "pier/nic" : "/sys/class/infiniband";
	struct names nics = opened ? facts_names(report->facts, "%s", above)
				   : list_nics(report);
	size_t count = 0;

	for (size_t i = 0; i < nics.count; i++) {
		struct names ports = facts_names(report->facts, "%s/%s/ports", above,
						 nics.list[i]);

		for (size_t j = 0; j < ports.count; j++) {
			struct port port = { nics.list[i], ports.list[j], "" };

			snprintf(port.subject, sizeof(port.subject), "%s/%s", port.nic,
				 port.number);
			check(report, &port);
			count++;
		}
		facts_free_names(&ports);
	}
	if (count == 0)
		conclude(report, NOT_APPLICABLE, "", "", "there is no port");
	facts_free_names(&nics);
}

static const char *port_fact(struct report *report, const struct port *port,
			     const char *name)
{
	return facts_get(report->facts, "/sys/class/infiniband/%s/ports/%s/%s", port->nic,
			 port->number, name);
}

static const char *opened_fact(struct report *report, const struct port *port,
			       const char *name)
{
	return facts_get(report->facts, "pier/nic/%s/ports/%s/%s", port->nic,
			 port->number, name);
}

static bool is_ethernet(struct report *report, const struct port *port)
{
	const char *layer = opened_fact(report, port, "link_layer");

	return layer && strcmp(layer, "Ethernet") == 0;
}

static void judge_state(struct report *report, const struct port *port)
{
	const char *state = port_fact(report, port, "state");
	const char *physical = port_fact(report, port, "phys_state");
	const char *rate = port_fact(report, port, "rate");
	const char *layer = port_fact(report, port, "link_layer");

	if (!state)
		conclude(report, NOT_APPLICABLE, port->subject, "",
			 "ports/%s/state does not exist", port->number);
	else if (strstr(state, "ACTIVE"))
		conclude(report, OK, port->subject, "", "%s, %s", state,
			 rate ? rate : "rate unknown");
	else if (layer && strcmp(layer, "InfiniBand") == 0 &&
		 (strstr(state, "INIT") || strstr(state, "ARMED")))
		conclude(report, ERROR, port->subject,
			 "start a subnet manager (opensm) on the fabric",
			 "%s: the cable is there, but no subnet manager has configured "
			 "the port",
			 state);
	else if (layer && strcmp(layer, "InfiniBand") == 0)
		conclude(report, WARNING, port->subject,
			 "check the cable and the switch (ibportstate)",
			 "%s, physically %s", state, physical ? physical : "unknown");
	else
		conclude(report, WARNING, port->subject,
			 "check the cable; ip link set dev INTERFACE up",
			 "%s, physically %s", state, physical ? physical : "unknown");
}

static const char *raise_mtu(struct report *report, const struct port *port)
{
	return is_ethernet(report, port)
		       ? "ip link set dev INTERFACE mtu 9000, here and on the switches"
		       : "raise the MTU of the partition in the subnet manager";
}

static void judge_mtu(struct report *report, const struct port *port)
{
	const char *active = opened_fact(report, port, "active_mtu");
	const char *max = opened_fact(report, port, "max_mtu");
	unsigned long mtu = active ? strtoul(active, NULL, 10) : 0;

	if (mtu == 0)
		conclude(report, NOT_APPLICABLE, port->subject, "", "no MTU is known");
	else if (mtu < 1024)
		conclude(report, ERROR, port->subject, raise_mtu(report, port),
			 "packets of %lu bytes: a path of less than 1024 wastes most of "
			 "the link",
			 mtu);
	else if (max && mtu < strtoul(max, NULL, 10))
		conclude(report, WARNING, port->subject, raise_mtu(report, port),
			 "packets of %lu bytes, of at most %s", mtu, max);
	else
		conclude(report, OK, port->subject, "", "packets of %lu bytes", mtu);
}

static bool is_link_local(const char *gid)
{
	return strstr(gid, " fe80:") || strstr(gid, " ::ffff:169.254.");
}

/* The port has no channel, and so no GID. */
static void judge_no_channel(struct report *report, const struct port *port)
{
	const char *error = facts_error(report->facts, "pier/nic/%s/ports/%s/channel",
					port->nic, port->number);

	if (error)
		conclude(report, ERROR, port->subject, "",
			 "a channel cannot be created: %s", error);
	else if (facts_error(report->facts, "pier/nic/%s/channels", port->nic))
		conclude(report, NOT_APPLICABLE, port->subject, "",
			 "the device has no channels: see RC");
	else
		conclude(report, NOT_APPLICABLE, port->subject, "",
			 "the port is not active, so it has no channel");
}

/* "INDEX TYPE ADDRESS" of the GID that a channel takes; an error: why it takes none. */
static void judge_gid(struct report *report, const struct port *port)
{
	const char *error = facts_error(report->facts, "pier/nic/%s/ports/%s/gid",
					port->nic, port->number);
	const char *gid = opened_fact(report, port, "gid");

	if (error)
		conclude(report, ERROR, port->subject,
			 "give the port's network interface an address",
			 "no GID can be chosen: %s", error);
	else if (!gid)
		judge_no_channel(report, port);
	else if (!is_ethernet(report, port))
		conclude(report, OK, port->subject, "", "GID %s; peers use its LID", gid);
	else if (strstr(gid, "RoCE v1"))
		conclude(report, WARNING, port->subject,
			 "give the port's network interface an IP address",
			 "GID %s: no GID of RoCE v2, so no router passes the packets",
			 gid);
	else if (is_link_local(gid))
		conclude(report, WARNING, port->subject,
			 "give the port's network interface a routable address",
			 "GID %s: the port has no better one, and link-local addresses "
			 "do not leave the subnet",
			 gid);
	else
		conclude(report, OK, port->subject, "",
			 "GID %s: RoCE v2 before v1, IPv4 before IPv6, link-local last; "
			 "PIER_CHANNEL=gid=N chooses another",
			 gid);
}

static void judge_traffic_class(struct report *report, const struct port *port)
{
	const char *class = opened_fact(report, port, "traffic_class");

	if (!is_ethernet(report, port))
		conclude(report, NOT_APPLICABLE, port->subject, "",
			 "InfiniBand has service levels instead");
	else if (!class)
		conclude(report, NOT_APPLICABLE, port->subject, "",
			 "the port has no channel: see GID");
	else if (strtoul(class, NULL, 10) == 0)
		conclude(report, WARNING, port->subject,
			 "PIER_CHANNEL=tc=106 where the switches are lossless for DSCP "
			 "26",
			 "traffic class 0: the packets share the queue of ordinary "
			 "traffic, which drops when it is full");
	else
		conclude(report, OK, port->subject, "", "traffic class %s (DSCP %lu)",
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
static void add_grown(struct report *report, const struct port *port, const char *kind,
		      size_t *count, char *text, size_t size)
{
	struct names names = facts_names(report->facts,
					 "/sys/class/infiniband/%s/ports/%s/%s",
					 port->nic, port->number, kind);

	for (size_t i = 0; i < names.count; i++) {
		const char *name = names.list[i];
		size_t used = strlen(text);
		long long before, after;

		if (!counts_errors(name))
			continue;
		before = facts_number(report->facts,
				      "/sys/class/infiniband/%s/ports/%s/%s/%s",
				      port->nic, port->number, kind, name);
		after = facts_number(report->facts, "pier/nic/%s/ports/%s/after/%s",
				     port->nic, port->number, name);
		++*count;
		if (before >= 0 && after > before)
			snprintf(text + used, size - used, "%s%s +%lld", used ? ", " : "",
				 name, after - before);
	}
	facts_free_names(&names);
}

static void judge_counters(struct report *report, const struct port *port)
{
	char grown[512] = "";
	size_t count = 0;

	add_grown(report, port, "counters", &count, grown, sizeof(grown));
	add_grown(report, port, "hw_counters", &count, grown, sizeof(grown));
	if (grown[0])
		conclude(report, WARNING, port->subject,
			 "check cable, switch port and flow control (PFC, ECN); see "
			 "rdma statistic show",
			 "errors were counted while pier doctor ran, also by other "
			 "programs: %s",
			 grown);
	else if (count == 0)
		conclude(report, NOT_APPLICABLE, port->subject, "",
			 "the driver has no counters of errors");
	else
		conclude(report, OK, port->subject, "",
			 "none of %zu counters of errors grew while pier doctor ran",
			 count);
}

const struct check doctor_port_checks[] = {
	{ "NIC", "port state", .each_port = judge_state },
	{ "NIC", "MTU", .each_opened_port = judge_mtu },
	{ "NIC", "GID", .each_opened_port = judge_gid },
	{ "NIC", "traffic class", .each_opened_port = judge_traffic_class },
	{ "NIC", "error counters", .each_port = judge_counters },
	{ 0 },
};
