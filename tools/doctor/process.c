/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "facts.h"
#include "info/facts.h"
#include "process.h"

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
