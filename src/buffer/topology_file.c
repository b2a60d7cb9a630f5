/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "locate.h"
#include "topology_file.h"
#include "topology_line.h"
#include "device/device.h"
#include "device/speed.h"
#include "device/topology.h"
#include "core/error.h"
#include "core/log.h"

/* One file may serve machines with other NICs, and containers that see a part of them. */
static void ignore_line(const struct pier_topology_reading *reading,
			struct pier_topology_line *line, const char *reason,
			const char *name)
{
	pier_warning("PIER_TOPO_FILE: %s, line %u is ignored: %s%s", reading->path,
		     reading->number, reason, name);
	line->kind = PIER_TOPOLOGY_IGNORED;
}

/* Replace the name of a unit by its address. */
static int settle_unit(const struct pier_topology_reading *reading,
		       const struct pier_topology *topology,
		       struct pier_topology_line *line,
		       char place[PIER_TOPOLOGY_NAME_SIZE])
{
	struct pier_location unit = { .pci = "" };
	int error = pier_locate_unit(topology->sysfs, place, &unit);

	if (error == -EINVAL || error == -ENOENT)
		return pier_fail_place(reading, place);
	if (error == -ENODEV)
		ignore_line(reading, line, pier_error_message(), "");
	else if (!error && !unit.pci[0])
		ignore_line(reading, line, "no PCI address is known of ", place);
	memcpy(place, unit.pci, sizeof(unit.pci));
	return error == -ENODEV ? 0 : error;
}

/* Replace the NIC's name by its address. */
static void settle_nic(const struct pier_topology_reading *reading,
		       const struct pier_topology *topology,
		       struct pier_topology_line *line,
		       char place[PIER_TOPOLOGY_NAME_SIZE])
{
	struct pier_location nic;
	uint32_t speed;

	pier_topology_find_nic(topology, place, &nic, &speed);
	if (!nic.pci[0])
		ignore_line(reading, line,
			    "\"nic NAME pci=ADDRESS\" places a NIC without a PCI "
			    "address; there is no NIC ",
			    place);
	memcpy(place, nic.pci, sizeof(nic.pci));
}

static int settle_place(const struct pier_topology_reading *reading,
			const struct pier_topology *topology,
			struct pier_topology_line *line,
			char place[PIER_TOPOLOGY_NAME_SIZE])
{
	if (line->kind == PIER_TOPOLOGY_IGNORED || pier_take_address(place, place))
		return 0;
	if (strchr(place, ':'))
		return settle_unit(reading, topology, line, place);
	settle_nic(reading, topology, line, place);
	return 0;
}

static int settle_line(const struct pier_topology_reading *reading,
		       const struct pier_topology *topology,
		       struct pier_topology_line *line)
{
	char path[PATH_MAX];
	int error;

	if (line->kind == PIER_TOPOLOGY_NIC) {
		snprintf(path, sizeof(path), "%s/class/infiniband/%s", topology->sysfs,
			 line->name);
		if (access(path, F_OK))
			ignore_line(reading, line, "there is no NIC ", line->name);
		return 0;
	}
	error = settle_place(reading, topology, line, line->name);
	if (!error && line->kind == PIER_TOPOLOGY_DISTANCE)
		error = settle_place(reading, topology, line, line->second);
	return error;
}

/* Whether a line is about these two, in either order. */
static bool is_about(const struct pier_topology_line *line, const char *a, const char *b)
{
	return (strcmp(line->name, a) == 0 && strcmp(line->second, b) == 0) ||
	       (strcmp(line->name, b) == 0 && strcmp(line->second, a) == 0);
}

static bool is_repeated(const struct pier_topology_line *a,
			const struct pier_topology_line *b)
{
	if (a->kind != b->kind || a->kind == PIER_TOPOLOGY_IGNORED)
		return false;
	return a->kind == PIER_TOPOLOGY_DISTANCE ? is_about(a, b->name, b->second)
						 : strcmp(a->name, b->name) == 0;
}

static int settle_lines(struct pier_topology_reading *reading,
			const struct pier_topology *topology)
{
	int error = 0;

	for (size_t i = 0; !error && i < topology->count; i++) {
		struct pier_topology_line *line = &topology->lines[i];
		char first[32];

		reading->number = line->number;
		error = settle_line(reading, topology, line);
		for (size_t j = 0; !error && j < i; j++) {
			if (!is_repeated(line, &topology->lines[j]))
				continue;
			snprintf(first, sizeof(first), "line %u",
				 topology->lines[j].number);
			error = pier_fail_line(reading, "already stated", first);
		}
	}
	return error;
}

int pier_topology_open(const char *sysfs, struct pier_topology *ret_topology)
{
	struct pier_topology_reading reading = { .path = secure_getenv(
							 "PIER_TOPO_FILE") };
	int error;

	*ret_topology = (struct pier_topology){ .sysfs = sysfs };
	if (!reading.path || !reading.path[0])
		return 0;
	ret_topology->lines = calloc(PIER_TOPOLOGY_LINES_MAX,
				     sizeof(*ret_topology->lines));
	if (!ret_topology->lines)
		return pier_fail(ENOMEM, "no memory for PIER_TOPO_FILE");
	error = pier_topology_read_lines(&reading, ret_topology->lines,
					 &ret_topology->count);
	if (!error)
		error = settle_lines(&reading, ret_topology);
	if (error)
		pier_topology_close(ret_topology);
	return error;
}

void pier_topology_open_leniently(const char *sysfs, struct pier_topology *ret_topology)
{
	if (pier_topology_open(sysfs, ret_topology))
		pier_warning("%s; it is ignored", pier_error_message());
}

void pier_topology_close(struct pier_topology *topology)
{
	free(topology->lines);
	topology->lines = NULL;
	topology->count = 0;
}

static void correct_node(const struct pier_topology *topology,
			 enum pier_topology_kind kind, const char *name, int *node)
{
	for (size_t i = 0; i < topology->count; i++) {
		const struct pier_topology_line *line = &topology->lines[i];

		if (line->kind == kind && line->node != PIER_TOPOLOGY_NOT_GIVEN &&
		    strcmp(line->name, name) == 0)
			*node = line->node;
	}
}

void pier_topology_find_nic(const struct pier_topology *topology, const char *name,
			    struct pier_location *ret_location, uint32_t *ret_speed)
{
	uint32_t speed = 0;

	pier_locate_nic(topology->sysfs, name, ret_location);
	for (size_t i = 0; i < topology->count; i++) {
		const struct pier_topology_line *line = &topology->lines[i];

		if (line->kind != PIER_TOPOLOGY_NIC || strcmp(line->name, name) != 0)
			continue;
		if (line->second[0])
			pier_settle_location(topology->sysfs, line->second, -1,
					     ret_location);
		if (line->speed)
			speed = line->speed;
	}
	correct_node(topology, PIER_TOPOLOGY_PCI, ret_location->pci,
		     &ret_location->numa_node);
	correct_node(topology, PIER_TOPOLOGY_NIC, name, &ret_location->numa_node);
	*ret_speed = speed ? speed : pier_nic_speed(topology->sysfs, name, ret_location);
}

enum pier_distance pier_topology_distance(const struct pier_topology *topology,
					  const struct pier_location *a,
					  const struct pier_location *b)
{
	struct pier_location first = *a, second = *b;

	for (size_t i = topology->count; i > 0; i--) {
		const struct pier_topology_line *line = &topology->lines[i - 1];

		if (line->kind == PIER_TOPOLOGY_DISTANCE && a->pci[0] && b->pci[0] &&
		    is_about(line, a->pci, b->pci))
			return line->distance;
	}
	correct_node(topology, PIER_TOPOLOGY_PCI, a->pci, &first.numa_node);
	correct_node(topology, PIER_TOPOLOGY_PCI, b->pci, &second.numa_node);
	return pier_distance_in(topology->sysfs, &first, &second);
}

enum pier_distance pier_location_distance(const struct pier_location *a,
					  const struct pier_location *b)
{
	struct pier_topology topology;
	enum pier_distance distance;

	if (!a || !b)
		return PIER_DISTANCE_UNKNOWN;
	pier_topology_open_leniently(PIER_SYSFS, &topology);
	distance = pier_topology_distance(&topology, a, b);
	pier_topology_close(&topology);
	return distance;
}

int pier_locate_device(const char *sysfs, const struct pier_device *device,
		       struct pier_location *ret_location)
{
	struct pier_topology topology;
	uint32_t speed;
	int error = pier_check_process(&device->object);

	if (!error)
		error = pier_topology_open(sysfs, &topology);
	if (error)
		return error;
	/* Not pier_device_name(), which may have the prefix of a plan of faults. */
	pier_topology_find_nic(&topology, device->context->device->name, ret_location,
			       &speed);
	pier_topology_close(&topology);
	return 0;
}

int pier_device_location(const struct pier_device *device,
			 struct pier_location *ret_location)
{
	return pier_locate_device(PIER_SYSFS, device, ret_location);
}
