/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "environment.h"
#include "info/facts.h"
#include "side.h"

/* The first line of a file, without its end; "" if there is none. */
static void read_line(const char *path, char *ret_line, size_t size)
{
	FILE *file = fopen(path, "re");

	ret_line[0] = '\0';
	if (!file)
		return;
	if (fgets(ret_line, (int)size, file))
		ret_line[strcspn(ret_line, "\n")] = '\0';
	fclose(file);
}

static bool has_name(const char *names, const char *name)
{
	size_t length = strlen(name);

	for (; *names; names += names[0] == ',') {
		size_t one = strcspn(names, ",");

		if (one == length && strncmp(names, name, one) == 0)
			return true;
		names += one;
	}
	return false;
}

/* Append a name to those before it, unless it is one of them. */
static void add_name(char *names, size_t size, const char *name)
{
	size_t used = strlen(names);

	if (name[0] && !has_name(names, name))
		snprintf(names + used, size - used, "%s%s", used ? "," : "", name);
}

/* The name of the kernel's driver; "" for soft0 and for rxe, which has no device. */
static void read_driver(const char *device, char *ret_driver, size_t size)
{
	char path[128], target[PATH_MAX];
	ssize_t length;

	ret_driver[0] = '\0';
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/device/driver", device);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0)
		return;
	target[length] = '\0';
	snprintf(ret_driver, size, "%s", basename(target));
}

static void read_link(const struct perf_rail *rail, uint32_t port, char *ret_link,
		      size_t size)
{
	struct pier_port_attr attr;
	char path[128], rate[48];

	ret_link[0] = '\0';
	if (pier_query_port(rail->device, port, &attr) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.63s/ports/%u/rate",
		 pier_device_name(rail->device), port);
	read_line(path, rate, sizeof(rate));
	snprintf(ret_link, size, "%s%s%s, MTU %u", link_layer_name(attr.link_layer),
		 rate[0] ? ", " : "", rate, attr.active_mtu);
}

static void read_device(const struct side *side, const struct perf_rail *rail,
			struct perf_report *report)
{
	const char *name = pier_device_name(rail->device);
	struct pier_device_attr attr;
	char text[PERF_TEXT_MAX];

	add_name(report->device, sizeof(report->device), name);
	read_driver(name, text, sizeof(text));
	add_name(report->driver, sizeof(report->driver), text);
	if (pier_query_device(rail->device, &attr) == 0)
		add_name(report->firmware, sizeof(report->firmware), attr.firmware);
	if (rail == &side->rails[0]) {
		struct pier_channel_attr channel;

		pier_channel_attr_init(&channel);
		if (pier_channel_query(side->lanes[0].channel, &channel) == 0)
			read_link(rail, channel.port, report->link, sizeof(report->link));
	}
}

/* The drivers of GPUs give their version here. */
static void read_memory_driver(const char *backend, char *ret_driver, size_t size)
{
	const char *module = strcmp(backend, "cuda") == 0  ? "nvidia"
			     : strcmp(backend, "hip") == 0 ? "amdgpu"
							   : NULL;
	char path[64], version[48];

	ret_driver[0] = '\0';
	if (!module)
		return;
	snprintf(path, sizeof(path), "/sys/module/%s/version", module);
	read_line(path, version, sizeof(version));
	snprintf(ret_driver, size, "%s%s%s", module, version[0] ? " " : "", version);
}

static void read_processor(char *ret_name, size_t size)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[256];

	ret_name[0] = '\0';
	while (file && fgets(line, sizeof(line), file)) {
		const char *value = strchr(line, ':');

		if (strncmp(line, "model name", strlen("model name")) != 0 || !value)
			continue;
		line[strcspn(line, "\n")] = '\0';
		snprintf(ret_name, size, "%.100s", value + 1 + strspn(value + 1, " "));
		break;
	}
	if (file)
		fclose(file);
}

void read_environment(struct side *side)
{
	struct perf_report *report = &side->report;
	struct pier_buffer_info memory;
	struct utsname system;

	for (uint32_t i = 0; i < side->rail_count; i++)
		read_device(side, &side->rails[i], report);
	if (pier_buffer_query(side->buffer, &memory) == 0) {
		snprintf(report->memory_kind, sizeof(report->memory_kind), "%s",
			 memory.kind);
		read_memory_driver(memory.backend, report->memory_driver,
				   sizeof(report->memory_driver));
	}
	if (uname(&system) == 0) {
		snprintf(report->host, sizeof(report->host), "%s", system.nodename);
		snprintf(report->kernel, sizeof(report->kernel), "%.20s %.65s %.40s",
			 system.sysname, system.release, system.machine);
	}
	read_processor(report->processor, sizeof(report->processor));
	snprintf(report->version, sizeof(report->version), "%s", pier_version());
}
