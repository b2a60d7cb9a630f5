/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "facts.h"
#include "info/facts.h"
#include "report.h"
#include "units.h"

static void keep_limit(struct facts *facts, const char *name, __rlimit_resource_t which)
{
	struct rlimit limit;

	if (getrlimit(which, &limit) < 0)
		return;
	if (limit.rlim_cur == RLIM_INFINITY)
		facts_set(facts, "unlimited", "pier/limit/%s", name);
	else
		facts_set_number(facts, (long long)limit.rlim_cur, "pier/limit/%s", name);
}

/* CapEff in /proc/self/status: capabilities(7). */
static void keep_capability(struct facts *facts)
{
	enum {
		CAP_IPC_LOCK = 14
	};
	unsigned long long effective;
	FILE *file = fopen("/proc/self/status", "re");
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "CapEff: %llx", &effective) == 1)
			facts_set_number(facts, effective >> CAP_IPC_LOCK & 1,
					 "pier/cap_ipc_lock");
	if (file)
		fclose(file);
}

/* Opening a device may have effects, so only the permission is asked for. */
static void keep_access(struct facts *facts, const char *node)
{
	if (access(node, R_OK | W_OK) == 0)
		facts_set(facts, "yes", "pier/access%s", node);
	else if (errno != ENOENT && errno != ENOTDIR)
		facts_set_error(facts, strerror(errno), "pier/access%s", node);
}

static void keep_accesses(struct facts *facts)
{
	static const char *const folders[] = { "/dev/infiniband", "/dev/dma_heap" };
	char node[FACT_PATH_MAX];

	keep_access(facts, "/dev/udmabuf");
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		struct names names = facts_names(facts, "%s", folders[i]);

		for (size_t j = 0; j < names.count; j++) {
			snprintf(node, sizeof(node), "%s/%s", folders[i], names.list[j]);
			keep_access(facts, node);
		}
		facts_free_names(&names);
	}
}

void keep_process(struct facts *facts)
{
	const char *name, *value;

	facts_set_number(facts, sysconf(_SC_PAGESIZE), "pier/page_size");
	facts_set_number(facts, geteuid(), "pier/uid");
	keep_capability(facts);
	value = secure_getenv("KUBERNETES_SERVICE_HOST");
	if (value)
		facts_set(facts, "set", "pier/env/KUBERNETES_SERVICE_HOST");
	keep_limit(facts, "nofile", RLIMIT_NOFILE);
	keep_limit(facts, "memlock", RLIMIT_MEMLOCK);
	for (size_t i = 0; (name = path_switch_name(i)); i++) {
		value = secure_getenv(name);
		if (value && value[0])
			facts_set(facts, value, "pier/env/%s", name);
	}
	keep_accesses(facts);
}

/* The checks of the limits of a process. */

enum {
	/*
	 * Descriptors of one rank: the standard ones, those of the device, of a GPU's
	 * driver and of files; and for each peer the events of a channel. Over TCP, soft0
	 * needs two sockets more.
	 */
	RANK_FDS = 64,
	PEER_FDS = 3,
	/*
	 * Locked memory of one rank without its data: the queues of the device; and for
	 * each peer a send queue, a receive queue and a completion queue.
	 */
	RANK_LOCKED = 1 << 20,
	PEER_LOCKED = 64 << 10,
	DATA_LOCKED = 1 << 30, /* with less, most programs fail to register their data */
	DEFAULT_RANKS = 8,
};

static unsigned long planned_ranks(const struct report *report)
{
	return report->ranks ? report->ranks : DEFAULT_RANKS;
}

/* False: no limit. */
static bool read_limit(struct report *report, const char *name,
		       unsigned long long *ret_limit)
{
	const char *text = facts_get(report->facts, "pier/limit/%s", name);

	if (!text || strcmp(text, "unlimited") == 0)
		return false;
	*ret_limit = strtoull(text, NULL, 10);
	return true;
}

static void check_nofile(struct report *report)
{
	unsigned long ranks = planned_ranks(report);
	unsigned long long need = RANK_FDS + (unsigned long long)PEER_FDS * ranks, limit;
	char remedy[64];

	snprintf(remedy, sizeof(remedy), "ulimit -n %llu", need);
	if (!read_limit(report, "nofile", &limit))
		conclude(report, OK, "", "", "ulimit -n: unlimited");
	else
		conclude(report, limit < need ? WARNING : OK, "",
			 limit < need ? remedy : "",
			 "ulimit -n: %llu; a rank that is connected to %lu others needs "
			 "about %llu",
			 limit, ranks, need);
}

/*
 * CAP_IPC_LOCK lifts the limit, but only if the process has it in the first user
 * namespace: ib_umem_get() of the kernel. Containers of Docker lack it by default.
 */
static void check_memlock(struct report *report)
{
	unsigned long ranks = planned_ranks(report);
	unsigned long long queues = RANK_LOCKED + (unsigned long long)PEER_LOCKED * ranks;
	unsigned long long limit;
	char has[32], left[32];

	if (!read_limit(report, "memlock", &limit)) {
		conclude(report, OK, "", "", "ulimit -l: unlimited");
		return;
	}
	format_bytes(limit, has, sizeof(has));
	format_bytes(limit > queues ? limit - queues : 0, left, sizeof(left));
	if (facts_number(report->facts, "pier/cap_ipc_lock") == 1 &&
	    is_first_user_namespace(report->facts))
		conclude(report, OK, "", "",
			 "ulimit -l: %s; this process is exempt (CAP_IPC_LOCK)", has);
	else
		conclude(report, limit < queues + DATA_LOCKED ? WARNING : OK, "",
			 limit < queues + DATA_LOCKED
				 ? "ulimit -l unlimited (/etc/security/limits.d; "
				   "LimitMEMLOCK= of systemd; docker run --ulimit "
				   "memlock=-1)"
				 : "",
			 "ulimit -l: %s; the queues of a rank that is connected to %lu "
			 "others leave %s for registered data",
			 has, ranks, left);
}

const struct check doctor_limit_checks[] = {
	{ "limits", "open files", .once = check_nofile },
	{ "limits", "locked memory", .once = check_memlock },
	{ 0 },
};

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
	{ "memory", "udmabuf", .once = check_udmabuf },
	{ "memory", "dma-heap", .once = check_dma_heap },
	{ "memory", "backends", .once = check_backends },
	{ 0 },
};
