/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "core/environment.h"
#include "core/fd.h"
#include "kernel.h"

/*
 * Without the first, pci_p2pdma_distance_many() fails, so amdgpu_dma_buf_attach() gives
 * up on peer-to-peer; without the second, amdgpu_dma_buf_pin() does not pin to the
 * device's memory. Either way the dma-buf is moved to host memory. UCX
 * (uct_rocm_base_is_dmabuf_supported()) and RCCL (rocmwrap.cc) want both set. Here a line
 * must say that one is not: newer kernels do without the second option ("dma-buf: Always
 * build with DMABUF_MOVE_NOTIFY", 2026).
 */
static const char *const options[] = { "CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY" };

/*
 * Where the configuration of the running kernel is: around its release. RCCL
 * (kernel_config.cc) and UCX (uct_rocm_base_load_kernel_config_file()) look there, too;
 * sources in /usr/src may have been configured anew since. A container has the first at
 * most, if the kernel has CONFIG_IKCONFIG_PROC. Both fall back to dma_buf_move_notify in
 * /proc/kallsyms, which proves nothing: dma-buf.c has it with and without the option.
 */
static const struct {
	const char *before, *after; /* NULL: the release is not in the name */
} places[] = {
	{ "/proc/config.gz", NULL },
	{ "/boot/config-", "" },
	{ "/lib/modules/", "/config" },
	{ "/usr/lib/kernel/config-", "" },
	{ "/usr/lib/ostree-boot/config-", "" },
	{ "/lib/modules/", "/build/.config" },
};

/* It also reads plain text. HSA always brings it: HSA needs libelf, which needs zlib. */
struct zlib {
	struct gzFile_s *(*gzdopen)(int fd, const char *mode);
	char *(*gzgets)(struct gzFile_s *file, char *line, int size);
	int (*gzclose)(struct gzFile_s *file);
};

static bool resolve_zlib(void *object, struct zlib *ret_zlib)
{
	void *symbols[] = { dlsym(object, "gzdopen"), dlsym(object, "gzgets"),
			    dlsym(object, "gzclose") };

	/* POSIX makes object and function pointers alike. */
	_Static_assert(sizeof(symbols) == sizeof(*ret_zlib), "three pointers");
	memcpy(ret_zlib, symbols, sizeof(symbols));
	return ret_zlib->gzdopen && ret_zlib->gzgets && ret_zlib->gzclose;
}

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

/*
 * Returns whether the file can be read.
 *
 * ret_option  the option that it denies, or unchanged
 */
static bool read_config(const struct zlib *zlib, const char *path,
			const char **ret_option)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct gzFile_s *file;
	bool readable = false;
	char line[256];

	if (fd < 0)
		return false;
	file = zlib->gzdopen(fd, "r");
	if (!file) {
		pier_close_fd(fd);
		return false;
	}
	while (!*ret_option && zlib->gzgets(file, line, sizeof(line))) {
		readable = true;
		*ret_option = find_unset(line);
	}
	zlib->gzclose(file);
	return readable;
}

/* Reads the first configuration that can be read, whose name is in `path` then. */
static bool find_config(const struct zlib *zlib, char *path, size_t size,
			const char **ret_option)
{
	struct utsname system;
	bool readable = false;

	if (uname(&system) != 0)
		return false;
	for (size_t i = 0; !readable && i < sizeof(places) / sizeof(places[0]); i++) {
		const char *after = places[i].after;

		snprintf(path, size, "%s%s%s", places[i].before,
			 after ? system.release : "", after ? after : "");
		readable = read_config(zlib, path, ret_option);
	}
	return readable;
}

bool pier_hip_explain_kernel(char *ret_reason, size_t size)
{
	const char *option = NULL;
	struct zlib zlib;
	bool readable;
	char path[128];
	void *object;

	ret_reason[0] = '\0';
	/* "on": tried whatever the configuration says. */
	if (pier_switched_on("PIER_DMABUF"))
		return true;
	object = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!object)
		return false;
	readable = resolve_zlib(object, &zlib) &&
		   find_config(&zlib, path, sizeof(path), &option);
	dlclose(object);
	if (option)
		snprintf(ret_reason, size,
			 "by %s the kernel has no %s, so amdgpu would give a NIC host "
			 "memory in its place; use another kernel, peer memory or a "
			 "bounce buffer, or try it (PIER_DMABUF=on)",
			 path, option);
	return readable;
}
