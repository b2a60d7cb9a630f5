/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "report.h"

/* The checks of memory that is not a GPU's. */

static void check_node(struct report *report, const char *node, const char *option,
		       const char *limits)
{
	const char *error = facts_error(report->facts, "pier/access%s", node);

	if (error)
		conclude(report, NOT_APPLICABLE, "",
			 strcmp(error, "Operation not permitted") == 0
				 ? "docker run --device=NODE"
				 : "join the group that owns it, or add a udev rule",
			 "%s cannot be opened: %s", node, error);
	else if (!facts_has(report->facts, "pier/access%s", node))
		conclude(report, NOT_APPLICABLE, "", "",
			 "%s does not exist: the kernel lacks %s, or it was not passed "
			 "into the container",
			 node, option);
	else
		conclude(report, OK, "", "", "%s%s", node, limits);
}

static void check_udmabuf(struct report *report)
{
	static const char parameters[] = "/sys/module/udmabuf/parameters";
	const char *list = facts_get(report->facts, "%s/list_limit", parameters);
	const char *size = facts_get(report->facts, "%s/size_limit_mb", parameters);
	char limits[96] = "";

	if (list && size)
		snprintf(limits, sizeof(limits),
			 ": at most %s MiB and %s ranges for each dma-buf", size, list);
	check_node(report, "/dev/udmabuf", "CONFIG_UDMABUF", limits);
}

static void check_dma_heap(struct report *report)
{
	struct names heaps = facts_names(report->facts, "/dev/dma_heap");
	char node[FACT_NAME_MAX + 16];

	if (heaps.count == 0)
		check_node(report, "/dev/dma_heap", "CONFIG_DMABUF_HEAPS", "");
	for (size_t i = 0; i < heaps.count; i++) {
		snprintf(node, sizeof(node), "/dev/dma_heap/%s", heaps.list[i]);
		check_node(report, node, "CONFIG_DMABUF_HEAPS", "");
	}
	facts_free_names(&heaps);
}

/* The reasons of backends contain the remedy. */
static void check_backends(struct report *report)
{
	struct names names = facts_names(report->facts, "pier/backend");

	for (size_t i = 0; i < names.count; i++) {
		const char *name = names.list[i];
		const char *error = facts_error(report->facts, "pier/backend/%s", name);
		const char *detail = facts_get(report->facts, "pier/backend/%s", name);

		if (error)
			conclude(report, NOT_APPLICABLE, name, "", "not available: %s",
				 error);
		else
			conclude(report, OK, name, "", "available%s%s",
				 detail && detail[0] ? ": " : "", detail ? detail : "");
	}
	facts_free_names(&names);
}

const struct check doctor_memory_checks[] = {
	{ "memory", "udmabuf", check_udmabuf },
	{ "memory", "dma-heap", check_dma_heap },
	{ "memory", "backends", check_backends },
	{ 0 },
};
