/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "facts.h"

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
