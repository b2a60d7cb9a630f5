/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "speed.h"
#include "topology.h"
#include "topology_file.h"
#include "core/error.h"
#include "core/log.h"

enum {
	LINES_MAX = 4096,
	LINE_MAX_BYTES = 512,
	NAME_SIZE = 64,
	NODE_MAX = 65535,
	SPEED_MAX = 100 * 1000 * 1000,
	NOT_GIVEN = -2,
};

enum line_kind {
	NIC,
	PCI,
	DISTANCE,
};

struct pier_topology_line {
	enum line_kind kind;
	char name[NAME_SIZE];	/* a NIC; or an address, also of DISTANCE */
	char second[NAME_SIZE]; /* DISTANCE: the other end; NIC: its address, or "" */
	int node;		/* or NOT_GIVEN */
	uint32_t speed;		/* 0: not given */
	enum pier_distance distance;
};

/* The position of the parser, for error sentences. */
struct reading {
	const char *path;
	unsigned int number;
	char *rest; /* of the line */
};

static int fail_line(const struct reading *reading, const char *rule, const char *value)
{
	return pier_fail(EINVAL, "PIER_TOPO_FILE: %s, line %u: %s%s%s%s", reading->path,
			 reading->number, rule, value ? ": \"" : "", value ? value : "",
			 value ? "\"" : "");
}

/* The next word of the line, or NULL. */
static char *take_word(struct reading *reading)
{
	return strtok_r(NULL, " \t\n", &reading->rest);
}

/* Returns false, and changes nothing, if it is no PCI address. */
static bool take_address(const char *word, char ret_pci[NAME_SIZE])
{
	struct pier_location location;
	char padded[sizeof(location.pci)] = "";

	if (strlen(word) >= sizeof(padded))
		return false;
	memcpy(padded, word, strlen(word));
	pier_settle_location("", padded, 0, &location);
	if (!location.pci[0])
		return false;
	snprintf(ret_pci, NAME_SIZE, "%s", location.pci);
	return true;
}

static bool take_number(const char *text, unsigned long most, unsigned long *ret_number)
{
	char *end;

	errno = 0;
	*ret_number = strtoul(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && !*end && !errno && *ret_number <= most;
}

/* One of "pci=ADDRESS", "numa=N", "speed=MBIT". */
static int take_property(const struct reading *reading, const char *word,
			 struct pier_topology_line *line)
{
	unsigned long number;

	if (strncmp(word, "numa=", 5) == 0) {
		if (!take_number(word + 5, NODE_MAX, &number))
			return fail_line(reading, "a NUMA node is 0 to 65535", word);
		line->node = (int)number;
		return 0;
	}
	if (line->kind == NIC && strncmp(word, "pci=", 4) == 0)
		return take_address(word + 4, line->second)
			       ? 0
			       : fail_line(reading, "not a PCI address like 0000:17:00.0",
					   word + 4);
	if (line->kind == NIC && strncmp(word, "speed=", 6) == 0) {
		if (!take_number(word + 6, SPEED_MAX, &number) || number == 0)
			return fail_line(reading, "a speed is in Mbit/s, from 1", word);
		line->speed = (uint32_t)number;
		return 0;
	}
	return fail_line(reading,
			 line->kind == NIC ? "not pci=ADDRESS, numa=N or speed=MBIT"
					   : "not numa=N",
			 word);
}

static int take_properties(struct reading *reading, struct pier_topology_line *line)
{
	const char *word = take_word(reading);
	int error = word ? 0 : fail_line(reading, "nothing follows the name", line->name);

	for (; word && !error; word = take_word(reading))
		error = take_property(reading, word, line);
	return error;
}

/* The rest of the line is a name of pier_distance_name(), one of which has a space. */
static int take_distance(struct reading *reading, struct pier_topology_line *line)
{
	char *word = strtok_r(NULL, "\n", &reading->rest);

	if (!word)
		return fail_line(reading, "distance needs two places and a name", NULL);
	word += strspn(word, " \t");
	for (size_t end = strlen(word); end > 0 && strchr(" \t", word[end - 1]);)
		word[--end] = '\0';
	for (int i = PIER_DISTANCE_SAME; i < PIER_DISTANCE_UNKNOWN; i++) {
		line->distance = (enum pier_distance)i;
		if (strcmp(word, pier_distance_name(line->distance)) == 0)
			return 0;
	}
	return fail_line(reading,
			 "not same, switch, switches, host bridge, node or system", word);
}

/* A NIC's name, or an address in the form of sysfs. */
static int take_place(struct reading *reading, char ret_name[NAME_SIZE])
{
	const char *word = take_word(reading);

	if (!word)
		return fail_line(reading, "a NIC or a PCI address is missing", NULL);
	if (!take_address(word, ret_name) &&
	    snprintf(ret_name, NAME_SIZE, "%s", word) >= NAME_SIZE)
		return fail_line(reading, "a name has at most 63 bytes", word);
	return 0;
}

static int read_line(struct reading *reading, const char *first,
		     struct pier_topology_line *line)
{
	int error;

	if (strcmp(first, "nic") == 0)
		line->kind = NIC;
	else if (strcmp(first, "pci") == 0)
		line->kind = PCI;
	else if (strcmp(first, "distance") == 0)
		line->kind = DISTANCE;
	else
		return fail_line(reading, "a line begins with nic, pci or distance",
				 first);
	error = take_place(reading, line->name);
	if (!error && line->kind == PCI && !take_address(line->name, line->name))
		error = fail_line(reading, "not a PCI address like 0000:17:00.0",
				  line->name);
	if (!error && line->kind == DISTANCE)
		error = take_place(reading, line->second);
	if (error)
		return error;
	return line->kind == DISTANCE ? take_distance(reading, line)
				      : take_properties(reading, line);
}

static int read_lines(FILE *file, struct reading *reading, struct pier_topology *topology)
{
	char text[LINE_MAX_BYTES];
	int error = 0;

	while (!error && fgets(text, sizeof(text), file)) {
		const char *first;

		reading->number++;
		if (!strchr(text, '\n') && !feof(file))
			return fail_line(reading, "a line has at most 510 bytes", NULL);
		text[strcspn(text, "#")] = '\0';
		first = strtok_r(text, " \t\n", &reading->rest);
		if (!first)
			continue;
		if (topology->count == LINES_MAX)
			return fail_line(reading, "more than 4096 entries", NULL);
		topology->lines[topology->count] = (struct pier_topology_line){
			.node = NOT_GIVEN,
		};
		error = read_line(reading, first, &topology->lines[topology->count++]);
	}
	return error || !ferror(file)
		       ? error
		       : pier_fail_because(EIO, "reading PIER_TOPO_FILE %s",
					   reading->path);
}

/* Replace the NIC's name by its address. */
static void settle_place(const struct pier_topology *topology, char place[NAME_SIZE])
{
	struct pier_location nic;
	char name[NAME_SIZE];
	uint32_t speed;

	if (take_address(place, place))
		return;
	memcpy(name, place, sizeof(name));
	pier_topology_find_nic(topology, name, &nic, &speed);
	snprintf(place, NAME_SIZE, "%s", nic.pci);
	if (!nic.pci[0])
		pier_warning(
			"PIER_TOPO_FILE: there is no NIC %s with a PCI address here; "
			"\"nic %s pci=ADDRESS\" gives it one",
			name, name);
}

int pier_topology_open(const char *sysfs, struct pier_topology *ret_topology)
{
	struct reading reading = { .path = secure_getenv("PIER_TOPO_FILE") };
	FILE *file;
	int error;

	*ret_topology = (struct pier_topology){ .sysfs = sysfs };
	if (!reading.path || !reading.path[0])
		return 0;
	file = fopen(reading.path, "re");
	if (!file)
		return pier_fail(errno, "PIER_TOPO_FILE: opening %s: %s", reading.path,
				 strerror(errno));
	ret_topology->lines = calloc(LINES_MAX, sizeof(*ret_topology->lines));
	error = ret_topology->lines ? read_lines(file, &reading, ret_topology)
				    : pier_fail(ENOMEM, "no memory for PIER_TOPO_FILE");
	fclose(file);
	for (size_t i = 0; !error && i < ret_topology->count; i++) {
		struct pier_topology_line *line = &ret_topology->lines[i];

		if (line->kind != DISTANCE)
			continue;
		settle_place(ret_topology, line->name);
		settle_place(ret_topology, line->second);
	}
	if (error)
		pier_topology_close(ret_topology);
	return error;
}

void pier_topology_close(struct pier_topology *topology)
{
	free(topology->lines);
	topology->lines = NULL;
	topology->count = 0;
}

/* The last line about a NIC or an address that holds counts. */
static void correct_node(const struct pier_topology *topology, enum line_kind kind,
			 const char *name, int *node)
{
	for (size_t i = 0; i < topology->count; i++) {
		const struct pier_topology_line *line = &topology->lines[i];

		if (line->kind == kind && line->node != NOT_GIVEN &&
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

		if (line->kind != NIC || strcmp(line->name, name) != 0)
			continue;
		if (line->second[0])
			pier_settle_location(topology->sysfs, line->second, -1,
					     ret_location);
		if (line->speed)
			speed = line->speed;
	}
	correct_node(topology, PCI, ret_location->pci, &ret_location->numa_node);
	correct_node(topology, NIC, name, &ret_location->numa_node);
	*ret_speed = speed ? speed : pier_nic_speed(topology->sysfs, name, ret_location);
}

/* Whether a line is about these two, in either order. */
static bool is_about(const struct pier_topology_line *line, const char *a, const char *b)
{
	return (strcmp(line->name, a) == 0 && strcmp(line->second, b) == 0) ||
	       (strcmp(line->name, b) == 0 && strcmp(line->second, a) == 0);
}

enum pier_distance pier_topology_distance(const struct pier_topology *topology,
					  const struct pier_location *a,
					  const struct pier_location *b)
{
	struct pier_location first = *a, second = *b;

	for (size_t i = topology->count; i > 0; i--) {
		const struct pier_topology_line *line = &topology->lines[i - 1];

		if (line->kind == DISTANCE && a->pci[0] && b->pci[0] &&
		    is_about(line, a->pci, b->pci))
			return line->distance;
	}
	correct_node(topology, PCI, a->pci, &first.numa_node);
	correct_node(topology, PCI, b->pci, &second.numa_node);
	return pier_distance_in(topology->sysfs, &first, &second);
}

enum pier_distance pier_location_distance(const struct pier_location *a,
					  const struct pier_location *b)
{
	struct pier_topology topology;
	enum pier_distance distance;

	if (pier_topology_open(PIER_SYSFS, &topology))
		pier_warning("%s; it is ignored", pier_error_message());
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
