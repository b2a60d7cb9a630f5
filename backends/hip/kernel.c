/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "core/environment.h"
#include "kernel.h"

/*
 * Without the first, pci_p2pdma_distance_many() fails, so amdgpu_dma_buf_attach() gives
 * up on peer-to-peer; without the second, amdgpu_dma_buf_pin() does not pin to the
 * device's memory. Either way the dma-buf is moved to host memory. UCX
 * (uct_rocm_base_is_dmabuf_supported()) and RCCL (rocmwrap.cc) want both set. Here a line
 * must say that one is not: Linux is about to drop the second option and do without it.
 */
static const char *const options[] = { "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY" };

static const char *find_unset(const char *line)
{
	char unset[64];

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		snprintf(unset, sizeof(unset), "# %s is not set\n", options[i]);
		if (strcmp(line, unset) == 0)
			return options[i];
	}
	return NULL;
}

/* The option that a configuration denies, or NULL. */
static const char *read_config(const char *path)
{
	FILE *file = fopen(path, "re");
	const char *option = NULL;
	char line[256];

	if (!file)
		return NULL;
	while (!option && fgets(line, sizeof(line), file))
		option = find_unset(line);
	fclose(file);
	return option;
}

void pier_hip_explain_kernel(char *ret_reason, size_t size)
{
	const char *option, *path;
	char boot[128], modules[128];
	struct utsname system;

	ret_reason[0] = '\0';
	/* "on": tried whatever the configuration says. */
	if (pier_switched_on("PIER_DMABUF") || uname(&system) != 0)
		return;
	snprintf(boot, sizeof(boot), "/boot/config-%s", system.release);
	snprintf(modules, sizeof(modules), "/lib/modules/%s/config", system.release);
	path = boot;
	option = read_config(path);
	if (!option) {
		path = modules;
		option = read_config(path);
	}
	if (option)
		snprintf(
			ret_reason, size,
			"by %s this kernel has no %s, so amdgpu would give a NIC host "
			"memory in its place; use a kernel that has it, peer memory or a "
			"bounce buffer, or try it (PIER_DMABUF=on)",
			path, option);
}
