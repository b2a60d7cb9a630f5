/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "facts.h"
#include "info/facts.h"
#include "report.h"
#include "units.h"

#define PRELOADED "libpier-dmabuf.so"

static const char *const options[] = { "CONFIG_DMABUF_MOVE_NOTIFY", "CONFIG_PCI_P2PDMA" };

/* Where distributions keep it. The first exists with CONFIG_IKCONFIG_PROC. */
static const struct {
	const char *before, *after; /* NULL: the release is not in the name */
} places[] = {
	{ "/proc/config.gz", NULL },
	{ "/boot/config-", "" },
	{ "/lib/modules/", "/config" },
	{ "/usr/lib/kernel/config-", "" },
};

/* It also reads plain text. */
struct zlib {
	void *object;
	struct gzFile_s *(*gzopen)(const char *name, const char *mode);
	char *(*gzgets)(struct gzFile_s *file, char *line, int size);
	int (*gzclose)(struct gzFile_s *file);
};

static bool open_zlib(struct zlib *zlib)
{
	zlib->object = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!zlib->object)
		return false;
	*(void **)&zlib->gzopen = dlsym(zlib->object, "gzopen");
	*(void **)&zlib->gzgets = dlsym(zlib->object, "gzgets");
	*(void **)&zlib->gzclose = dlsym(zlib->object, "gzclose");
	return zlib->gzopen && zlib->gzgets && zlib->gzclose;
}

static void keep_line(struct facts *facts, const char *line)
{
	char unset[64], value[2] = "";

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		size_t length = strlen(options[i]);

		snprintf(unset, sizeof(unset), "# %s is not set\n", options[i]);
		if (strcmp(line, unset) == 0)
			facts_set(facts, "n", "pier/config/%s", options[i]);
		if (strncmp(line, options[i], length) != 0 || line[length] != '=')
			continue;
		value[0] = line[length + 1];
		facts_set(facts, value, "pier/config/%s", options[i]);
	}
}

/* Returns whether the file could be read. */
static bool keep_file(struct facts *facts, const struct zlib *zlib, const char *name)
{
	struct gzFile_s *file = zlib->gzopen(name, "re");
	bool readable = false;
	char line[256];

	if (!file)
		return false;
	while (zlib->gzgets(file, line, sizeof(line))) {
		readable = true;
		keep_line(facts, line);
	}
	zlib->gzclose(file);
	if (readable)
		facts_set(facts, name, "pier/config");
	return readable;
}

void keep_kernel_config(struct facts *facts)
{
	const char *release = facts_get(facts, "/proc/sys/kernel/osrelease");
	struct zlib zlib = { 0 };
	bool kept = !open_zlib(&zlib);
	char name[FACT_PATH_MAX];

	for (size_t i = 0; !kept && i < sizeof(places) / sizeof(places[0]); i++) {
		const char *after = places[i].after;

		snprintf(name, sizeof(name), "%s%s%s", places[i].before,
			 after && release ? release : "", after ? after : "");
		kept = keep_file(facts, &zlib, name);
	}
	if (zlib.object)
		dlclose(zlib.object);
}

/* The checks of the kernel. */

enum {
	DMABUF_MR_MAJOR = 5, /* ibv_reg_dmabuf_mr() came with Linux 5.12 */
	DMABUF_MR_MINOR = 12,
};

/* Distributions bring the method to older kernels, so only its absence counts. */
static bool takes_dmabufs(struct report *report, const char *nic)
{
	const char *value = facts_get(report->facts, "pier/nic/%s/dmabuf", nic);

	return value && strcmp(value, "yes") == 0;
}

static void check_version(struct report *report)
{
	const char *release = facts_get(report->facts, "/proc/sys/kernel/osrelease");
	int major = 0, minor = 0;

	if (!release || sscanf(release, "%d.%d", &major, &minor) != 2)
		conclude(report, WARNING, "", "",
			 "/proc/sys/kernel/osrelease: %s, which is no version",
			 release ? release : "no such file");
	else if ((major < DMABUF_MR_MAJOR ||
		  (major == DMABUF_MR_MAJOR && minor < DMABUF_MR_MINOR)) &&
		 !any_name(report, "pier/nic", takes_dmabufs))
		conclude(report, WARNING, "", "install Linux 5.12 or newer",
			 "Linux %s: dma-bufs can be registered since 5.12, and no NIC "
			 "here takes them",
			 release);
	else
		conclude(report, OK, "", "", "Linux %s", release);
}

static void check_page_size(struct report *report)
{
	long long size = facts_number(report->facts, "pier/page_size");

	if (size < 0)
		conclude(report, NOT_APPLICABLE, "", "", "the page size is not known");
	else
		conclude(report, OK, "", "", "%lld bytes", size);
}

/* Whether libibverbs can open the character devices of the NICs. */
static void check_uverbs(struct report *report)
{
	struct names nodes = facts_names(report->facts, "/dev/infiniband");
	struct names nics = facts_names(report->facts, "/sys/class/infiniband");
	size_t count = 0, refused = 0;
	const char *reason = "";

	for (size_t i = 0; i < nodes.count; i++) {
		const char *error;

		if (strncmp(nodes.list[i], "uverbs", 6) != 0)
			continue;
		count++;
		error = facts_error(report->facts, "pier/access/dev/infiniband/%s",
				    nodes.list[i]);
		refused += error != NULL;
		reason = error ? error : reason;
	}
	if (nics.count == 0 && count == 0)
		conclude(report, NOT_APPLICABLE, "", "",
			 "there is no RDMA NIC, and no /dev/infiniband/uverbs*");
	else if (count == 0)
		conclude(
			report, ERROR, "",
			"modprobe ib_uverbs; in a container pass the devices: docker run "
			"--device=/dev/infiniband",
			"/dev/infiniband has no uverbs*, but the kernel has %zu NICs",
			nics.count);
	else if (refused)
		conclude(report, ERROR, "",
			 strcmp(reason, "Operation not permitted") == 0
				 ? "docker run --device=/dev/infiniband (Kubernetes: an "
				   "RDMA device plugin)"
				 : "chmod 0666 /dev/infiniband/uverbs* (rdma-core's udev "
				   "rules do this)",
			 "%zu of %zu devices /dev/infiniband/uverbs* cannot be opened: "
			 "%s",
			 refused, count, reason);
	else
		conclude(report, OK, "", "", "/dev/infiniband: %zu uverbs devices",
			 count);
	facts_free_names(&nodes);
	facts_free_names(&nics);
}

/* Judge an option of the kernel that only amdgpu needs. without: the consequence. */
static void check_option(struct report *report, const char *option, const char *without)
{
	const char *file = facts_get(report->facts, "pier/config");
	const char *value = facts_get(report->facts, "pier/config/%s", option);

	if (!file)
		conclude(report, NOT_APPLICABLE, "", "",
			 "no configuration of this kernel can be read: neither "
			 "/proc/config.gz nor /boot/config-*");
	else if (!value)
		conclude(report, NOT_APPLICABLE, "", "", "%s does not mention %s", file,
			 option);
	else if (strcmp(value, "n") != 0)
		conclude(report, OK, "", "", "%s: %s=%s", file, option, value);
	else if (facts_has(report->facts, "/sys/module/amdgpu"))
		conclude(report, WARNING, "", "use a kernel that is built with it",
			 "%s: %s is not set: %s", file, option, without);
	else
		conclude(report, NOT_APPLICABLE, "", "",
			 "%s: %s is not set, which matters to amdgpu only", file, option);
}

/*
 * Without either, amdgpu_dma_buf_attach() and amdgpu_dma_buf_pin() move the memory to the
 * host: backends/hip/load.c.
 */
static void check_move_notify(struct report *report)
{
	check_option(report, "CONFIG_DMABUF_MOVE_NOTIFY",
		     "amdgpu moves a dma-buf to host memory when a NIC pins it");
}

static void check_p2pdma(struct report *report)
{
	check_option(report, "CONFIG_PCI_P2PDMA",
		     "amdgpu moves a dma-buf to host memory for a NIC");
}

/* The sign of a container of Docker, Podman, systemd or Kubernetes. NULL: none. */
static const char *find_container(struct facts *facts)
{
	static const char *const signs[] = { "/.dockerenv", "/run/.containerenv",
					     "/run/systemd/container",
					     "pier/env/KUBERNETES_SERVICE_HOST" };

	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		if (facts_has(facts, "%s", signs[i]))
			return signs[i];
	return NULL;
}

static void check_namespaces(struct report *report)
{
	struct facts *facts = report->facts;
	const char *container = find_container(facts);
	const char *mode = facts_get(facts, "/sys/module/ib_core/parameters/netns_mode");
	const char *limit = facts_get(facts, "pier/limit/memlock");

	if (!is_first_user_namespace(facts) && limit && strcmp(limit, "unlimited") != 0)
		conclude(report, WARNING, "",
			 "ulimit -l unlimited, set outside of the namespace",
			 "/proc/self/uid_map: a user namespace, where CAP_IPC_LOCK does "
			 "not lift the limit of locked memory");
	else if (mode && strcmp(mode, "N") == 0 && container &&
		 !any_name(report, "/sys/class/infiniband", was_opened))
		conclude(report, WARNING, "", "rdma dev set DEVICE netns NAMESPACE",
			 "/sys/module/ib_core/parameters/netns_mode: N: each NIC is in "
			 "one network namespace, and this is a container (%s)",
			 container);
	else if (container)
		conclude(report, OK, "", "", "a container (%s)", container);
	else
		conclude(report, OK, "", "", "no sign of a container");
}

const struct check doctor_kernel_checks[] = {
	{ "kernel", "version", .once = check_version },
	{ "kernel", "page size", .once = check_page_size },
	{ "kernel", "uverbs", .once = check_uverbs },
	{ "kernel", "DMABUF_MOVE_NOTIFY", .once = check_move_notify },
	{ "kernel", "PCI_P2PDMA", .once = check_p2pdma },
	{ "kernel", "namespaces", .once = check_namespaces },
	{ 0 },
};

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
	/* Other libraries are nobody's business. */
	value = secure_getenv("LD_PRELOAD");
	if (value && strstr(value, PRELOADED))
		facts_set(facts, PRELOADED, "pier/env/LD_PRELOAD");
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

/* No finding elsewhere: most programs do without. */
static void check_preload(struct report *report)
{
	if (facts_has(report->facts, "pier/env/LD_PRELOAD"))
		conclude(report, OK, "", "",
			 "LD_PRELOAD has " PRELOADED
			 ": programs register memory of GPUs as dma-bufs");
}

const struct check doctor_limit_checks[] = {
	{ "limits", "open files", .once = check_nofile },
	{ "limits", "locked memory", .once = check_memlock },
	{ "limits", "preload", .once = check_preload },
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
