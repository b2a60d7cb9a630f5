/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "facts.h"
#include "report.h"

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
static bool has_dmabuf_nic(struct report *report)
{
	struct names nics = facts_names(report->facts, "pier/nic");
	bool found = false;

	for (size_t i = 0; i < nics.count; i++) {
		const char *value = facts_get(report->facts, "pier/nic/%s/dmabuf",
					      nics.list[i]);

		found |= value && strcmp(value, "yes") == 0;
	}
	facts_free_names(&nics);
	return found;
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
		 !has_dmabuf_nic(report))
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

static bool opened_nic(struct report *report)
{
	struct names nics = facts_names(report->facts, "/sys/class/infiniband");
	bool opened = false;

	for (size_t i = 0; i < nics.count; i++)
		opened |= was_opened(report, nics.list[i]);
	facts_free_names(&nics);
	return opened;
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
	else if (mode && strcmp(mode, "N") == 0 && container && !opened_nic(report))
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
