/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>

#include "report.h"

/* The checks of the paths between GPUs and NICs. */

enum {
	/* ACS sends requests between devices below to the host bridge. */
	ACS_REDIRECTS = 1 << 2 | 1 << 3,
};

/* The rank of a name of pier_distance_name(), the nearest first. */
static int rank_distance(const char *name)
{
	static const char *const names[] = { "same",	    "switch", "switches", "c2c",
					     "host bridge", "node",   "system" };

	for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++)
		if (strcmp(names[i], name) == 0)
			return i;
	return 7;
}

/* One finding for each GPU: its nearest NICs. */
static void judge_distance(struct report *report, const char *gpu)
{
	struct names nics = facts_names(report->facts, "pier/distance/%s", gpu);
	const char *best = "unknown";
	char list[512] = "";

	for (size_t i = 0; i < nics.count; i++) {
		const char *distance = facts_get(report->facts, "pier/distance/%s/%s",
						 gpu, nics.list[i]);
		size_t used;

		if (!distance || rank_distance(distance) > rank_distance(best))
			continue;
		if (rank_distance(distance) < rank_distance(best))
			list[0] = '\0';
		best = distance;
		used = strlen(list);
		snprintf(list + used, sizeof(list) - used, "%s%s", used ? ", " : "",
			 nics.list[i]);
	}
	if (nics.count == 0)
		conclude(report, NOT_APPLICABLE, gpu, "", "there is no NIC");
	else if (rank_distance(best) <= 3)
		conclude(report, OK, gpu, "", "nearest: %s (%s)", list, best);
	else if (rank_distance(best) < 7)
		conclude(report, WARNING, gpu,
			 "move the NIC below the GPU's PCIe switch, or use NIC and GPU "
			 "of one NUMA node",
			 "nearest: %s (%s): the bytes pass the processor", list, best);
	else
		conclude(report, WARNING, gpu, "describe the machine in PIER_TOPO_FILE",
			 "no distance is known: the virtual machine hides the PCIe tree");
	facts_free_names(&nics);
}

/* The bridges from the root to the device, which a folder of sysfs has in its path. */
static void show_bridges(struct report *report, const char *subject, const char *folder)
{
	const char *root = strstr(folder, "/pci");
	char bridges[FACT_PATH_MAX], *slash;

	snprintf(bridges, sizeof(bridges), "%s", root ? root + 1 : folder);
	while ((slash = strchr(bridges, '/')))
		*slash = ' ';
	conclude(report, OK, subject, "", "%s", bridges);
}

static void show_gpu(struct report *report, const char *gpu)
{
	char folder[FACT_PATH_MAX];

	if (find_gpu_pci(report, gpu, folder))
		show_bridges(report, gpu, folder);
	else
		conclude(report, NOT_APPLICABLE, gpu, "", "it is on no PCI bus");
}

static void judge_numa(struct report *report, const char *nic, const char *folder)
{
	const char *online = facts_get(report->facts, "/sys/devices/system/node/online");
	long long node = facts_number(report->facts, "%s/numa_node", folder);

	if (node >= 0)
		conclude(report, OK, nic, "", "NUMA node %lld (nodes: %s)", node,
			 online ? online : "unknown");
	else if (online && strcmp(online, "0") != 0)
		conclude(report, WARNING, nic,
			 "PIER_TOPO_FILE with 'nic NAME numa=N'; in a virtual machine "
			 "expose the node of the device",
			 "%s/numa_node: -1, on a machine of nodes %s", folder, online);
	else
		conclude(report, OK, nic, "", "one NUMA node");
}

/*
 * A port of a switch on one path, below those that the other path shares, whose ACS
 * redirects requests to the host bridge. NULL: none is known to.
 */
static const char *find_redirecting(struct report *report, const char *path,
				    const char *other, bool *ret_unknown)
{
	static char bridge[FACT_PATH_MAX];
	size_t shared = 0, length = strlen(path);

	for (size_t i = 0; i < length && path[i] == other[i]; i++)
		if (path[i] == '/')
			shared = i;
	for (size_t end = shared + 1; end < length; end++) {
		const char *config;
		long control;

		if (path[end] != '/')
			continue;
		snprintf(bridge, sizeof(bridge), "%.*s", (int)end, path);
		if (facts_number(report->facts, "%s/class", bridge) >> 8 != 0x0604)
			continue;
		config = facts_get(report->facts, "%s/config", bridge);
		control = config ? pci_acs_control(config) : -1;
		*ret_unknown |= control == -1;
		if (control > 0 && (control & ACS_REDIRECTS))
			return bridge;
	}
	return NULL;
}

static void judge_acs(struct report *report, const char *gpu, const char *nic)
{
	const char *distance = facts_get(report->facts, "pier/distance/%s/%s", gpu, nic);
	char of_gpu[FACT_PATH_MAX], of_nic[FACT_PATH_MAX];
	const char *bridge;
	bool unknown = false;

	if (!find_gpu_pci(report, gpu, of_gpu) || !find_nic_pci(report, nic, of_nic)) {
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "not both are on a PCI bus");
		return;
	}
	if (!distance || rank_distance(distance) > 2) {
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "no PCIe switch joins them (%s)",
			 distance ? distance : "unknown");
		return;
	}
	bridge = find_redirecting(report, of_gpu, of_nic, &unknown);
	if (!bridge)
		bridge = find_redirecting(report, of_nic, of_gpu, &unknown);
	if (bridge)
		conclude(report, WARNING, report->subject,
			 "setpci -s BRIDGE ECAP_ACS+0x6.w=0000, or in the BIOS; not on a "
			 "host that passes devices to virtual machines",
			 "bridge %s: ACS redirects peer-to-peer traffic to the host "
			 "bridge",
			 strrchr(bridge, '/') + 1);
	else if (unknown)
		conclude(report, NOT_APPLICABLE, report->subject,
			 is_root(report) ? "" : "sudo pier doctor",
			 "ACS Control of the bridges cannot be read");
	else
		conclude(report, OK, report->subject, "",
			 "no bridge between them redirects (ACS)");
}

static void judge_iommu(struct report *report, const char *nic, const char *folder)
{
	const char *type = facts_get(report->facts, "%s/iommu_group/type", folder);
	const char *error = facts_error(report->facts, "%s/iommu_group/type", folder);

	if (error)
		conclude(report, NOT_APPLICABLE, nic, "", "iommu_group/type: %s", error);
	else if (!type)
		conclude(report, OK, nic, "", "this kernel uses no IOMMU for it");
	else if (strcmp(type, "identity") == 0)
		conclude(report, OK, nic, "", "iommu_group/type: identity (passthrough)");
	else
		conclude(report, WARNING, nic, "boot with iommu.passthrough=1",
			 "iommu_group/type: %s: the IOMMU translates, and traffic "
			 "between devices may pass the host bridge",
			 type);
}

/* The path by which a NIC reaches the memory. */
static void judge_reach(struct report *report, const char *spec, const char *nic)
{
	const char *error = facts_error(report->facts, "pier/reach/%s/%s", spec, nic);
	const char *path = facts_get(report->facts, "pier/reach/%s/%s", spec, nic);
	const char *reason = facts_get(report->facts, "pier/reach/%s/%s/reason", spec,
				       nic);
	const char *mapping = facts_get(report->facts, "pier/reach/%s/%s/mapping", spec,
					nic);
	const char *canary = facts_get(report->facts, "pier/reach/%s/%s/canary", spec,
				       nic);

	if (error)
		conclude(report, WARNING, report->subject, "", "not registered: %s",
			 error);
	else if (path && strcmp(path, "peermem") == 0 && canary &&
		 strcmp(canary, "passed") == 0)
		conclude(report, OK, report->subject, "", "peermem");
	else if (reason && reason[0])
		conclude(report, WARNING, report->subject, "", "%s, because: %s",
			 path ? path : "unknown", reason);
	else
		conclude(report, OK, report->subject, "", "%s%s%s",
			 path ? path : "unknown", mapping ? ", mapping " : "",
			 mapping ? mapping : "");
}

static void judge_canary(struct report *report, const char *spec, const char *nic)
{
	const char *canary = facts_get(report->facts, "pier/reach/%s/%s/canary", spec,
				       nic);

	if (facts_error(report->facts, "pier/reach/%s/%s", spec, nic))
		conclude(report, NOT_APPLICABLE, report->subject, "", "not registered");
	else if (!canary || !canary[0])
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "this path needs none");
	else if (strcmp(canary, "passed") == 0)
		conclude(report, OK, report->subject, "", "bytes arrived: passed");
	else if (strncmp(canary, "not run", 7) == 0)
		conclude(report, NOT_APPLICABLE, report->subject, "", "%s", canary);
	else if (strncmp(canary, "off", 3) == 0)
		conclude(report, WARNING, report->subject, "unset PIER_CANARY", "%s",
			 canary);
	else
		conclude(report, ERROR, report->subject,
			 "use another NIC or GPU for this path", "%s", canary);
}

const struct check doctor_path_checks[] = {
	{ "path", "PCIe tree", .each_gpu = show_gpu, .each_pci_nic = show_bridges },
	{ "path", "distance", .each_gpu = judge_distance },
	{ "path", "NUMA", .each_pci_nic = judge_numa },
	{ "path", "ACS", .each_distance = judge_acs },
	{ "path", "IOMMU", .each_pci_nic = judge_iommu },
	{ "path", "registration", .each_reach = judge_reach },
	{ "path", "canary", .each_reach = judge_canary },
	{ 0 },
};

/* The result of a transfer, or the reason why it failed. */
static void judge_transfer(struct report *report, const char *spec, const char *nic)
{
	const char *error = facts_error(report->facts, "pier/transfer/%s/%s", spec, nic);
	const char *result = facts_get(report->facts, "pier/transfer/%s/%s", spec, nic);

	if (error)
		conclude(report, ERROR, report->subject, "PIER_LOG=debug pier doctor",
			 "%s", error);
	else if (result)
		conclude(report, OK, report->subject, "", "%s", result);
	else
		conclude(report, NOT_APPLICABLE, report->subject, "",
			 "not tried: no memory, no active port, no RC, or the NIC did "
			 "not answer before");
}

const struct check doctor_transfer_checks[] = {
	{ "transfer", "write and read", .each_reach = judge_transfer },
	{ 0 },
};
