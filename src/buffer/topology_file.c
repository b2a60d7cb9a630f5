/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "device/device.h"
#include "device/topology.h"
#include "locate.h"
#include "topology_file.h"

/* The position of the parser, for error sentences. */
struct pier_topology_reading {
	const char *path;
	unsigned int number; /* of the line */
	char *rest;	     /* of the line */
};

enum {
	LINE_MAX_BYTES = 512,
	NODE_MAX = 65535,
	SPEED_MAX = 100 * 1000 * 1000,
};

/* Fail with a rule that the current line breaks: -EINVAL. value: NULL, or shown. */
static int fail_line(const struct pier_topology_reading *reading, const char *rule,
		     const char *value)
{
	return pier_fail(EINVAL, "PIER_TOPO_FILE: %s, line %u: %s%s%s%s", reading->path,
			 reading->number, rule, value ? ": \"" : "", value ? value : "",
			 value ? "\"" : "");
}

/* Between words; also "\r", which editors of other systems write at the end of a line. */
#define WHITE_SPACE " \t\r\n"

/* The next word of the line, or NULL. */
static char *take_word(struct pier_topology_reading *reading)
{
	return strtok_r(NULL, WHITE_SPACE, &reading->rest);
}

/* Whether a word is a PCI address; ret_pci is then its form in sysfs. They may overlap.
 */
/* Returns false, and changes nothing, if it is no PCI address. */
static bool take_address(const char *word, char ret_pci[PIER_TOPOLOGY_NAME_SIZE])
{
	struct pier_location location;
	char padded[sizeof(location.pci)] = "";

	if (strlen(word) >= sizeof(padded))
		return false;
	memcpy(padded, word, strlen(word));
	pier_settle_location("", padded, 0, &location);
	if (!location.pci[0])
		return false;
	snprintf(ret_pci, PIER_TOPOLOGY_NAME_SIZE, "%s", location.pci);
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
static int take_property(const struct pier_topology_reading *reading, const char *word,
			 struct pier_topology_line *line)
{
	unsigned long number;

	if (strncmp(word, "numa=", 5) == 0) {
		if (!take_number(word + 5, NODE_MAX, &number))
			return fail_line(reading, "a NUMA node is 0 to 65535", word);
		line->node = (int)number;
		return 0;
	}
	if (line->kind == PIER_TOPOLOGY_NIC && strncmp(word, "pci=", 4) == 0)
		return take_address(word + 4, line->second)
			       ? 0
			       : fail_line(reading, "not a PCI address like 0000:17:00.0",
					   word + 4);
	if (line->kind == PIER_TOPOLOGY_NIC && strncmp(word, "speed=", 6) == 0) {
		if (!take_number(word + 6, SPEED_MAX, &number) || number == 0)
			return fail_line(reading, "a speed is in Mbit/s, from 1", word);
		line->speed = (uint32_t)number;
		return 0;
	}
	return fail_line(reading,
			 line->kind == PIER_TOPOLOGY_NIC
				 ? "not pci=ADDRESS, numa=N or speed=MBIT"
				 : "not numa=N",
			 word);
}

static int take_properties(struct pier_topology_reading *reading,
			   struct pier_topology_line *line)
{
	const char *word = take_word(reading);
	int error = word ? 0 : fail_line(reading, "nothing follows the name", line->name);

	for (; word && !error; word = take_word(reading))
		error = take_property(reading, word, line);
	return error;
}

/* The rest of the line is a name of pier_distance_name(), one of which has a space. */
static int take_distance(struct pier_topology_reading *reading,
			 struct pier_topology_line *line)
{
	char *word = strtok_r(NULL, "\n", &reading->rest);

	if (!word)
		return fail_line(reading, "distance needs two places and a name", NULL);
	word += strspn(word, WHITE_SPACE);
	for (size_t end = strlen(word); end > 0 && strchr(WHITE_SPACE, word[end - 1]);)
		word[--end] = '\0';
	for (int i = PIER_DISTANCE_SAME; i < PIER_DISTANCE_UNKNOWN; i++) {
		line->distance = (enum pier_distance)i;
		if (strcmp(word, pier_distance_name(line->distance)) == 0)
			return 0;
	}
	return fail_line(reading,
			 "not same, switch, switches, c2c, host bridge, node or system",
			 word);
}

/* A NIC's name, a unit of memory, or an address in the form of sysfs. */
static int take_place(struct pier_topology_reading *reading,
		      char ret_name[PIER_TOPOLOGY_NAME_SIZE])
{
	const char *word = take_word(reading);

	if (!word)
		return fail_line(reading,
				 "a NIC, a PCI address or a unit of memory is missing",
				 NULL);
	if (!take_address(word, ret_name) &&
	    snprintf(ret_name, PIER_TOPOLOGY_NAME_SIZE, "%s", word) >=
		    PIER_TOPOLOGY_NAME_SIZE)
		return fail_line(reading, "a name has at most 63 bytes", word);
	return 0;
}

static int fail_place(const struct pier_topology_reading *reading, const char *word)
{
	return fail_line(reading,
			 "not a PCI address like 0000:17:00.0 or a unit of memory like "
			 "cuda:0",
			 word);
}

static int read_line(struct pier_topology_reading *reading, const char *first,
		     struct pier_topology_line *line)
{
	int error;

	if (strcmp(first, "nic") == 0)
		line->kind = PIER_TOPOLOGY_NIC;
	else if (strcmp(first, "pci") == 0)
		line->kind = PIER_TOPOLOGY_PCI;
	else if (strcmp(first, "distance") == 0)
		line->kind = PIER_TOPOLOGY_DISTANCE;
	else
		return fail_line(reading, "a line begins with nic, pci or distance",
				 first);
	error = take_place(reading, line->name);
	if (!error && line->kind == PIER_TOPOLOGY_PCI && !strchr(line->name, ':'))
		error = fail_place(reading, line->name);
	if (!error && line->kind == PIER_TOPOLOGY_DISTANCE)
		error = take_place(reading, line->second);
	if (error)
		return error;
	return line->kind == PIER_TOPOLOGY_DISTANCE ? take_distance(reading, line)
						    : take_properties(reading, line);
}

static int read_file(FILE *file, struct pier_topology_reading *reading,
		     struct pier_topology_line *lines, size_t *ret_count)
{
	char text[LINE_MAX_BYTES];
	int error = 0;

	for (*ret_count = 0; !error && fgets(text, sizeof(text), file);) {
		const char *first;

		reading->number++;
		if (!strchr(text, '\n') && !feof(file))
			return fail_line(
				reading,
				"a line has at most 510 bytes, none of them zero", NULL);
		text[strcspn(text, "#")] = '\0';
		first = strtok_r(text, WHITE_SPACE, &reading->rest);
		if (!first)
			continue;
		if (*ret_count == PIER_TOPOLOGY_LINES_MAX)
			return fail_line(reading, "more than 4096 entries", NULL);
		lines[*ret_count] = (struct pier_topology_line){
			.number = reading->number,
			.node = PIER_TOPOLOGY_NOT_GIVEN,
		};
		error = read_line(reading, first, &lines[(*ret_count)++]);
	}
	return error || !ferror(file) ? error
				      : pier_fail(errno, "PIER_TOPO_FILE: reading %s: %s",
						  reading->path, strerror(errno));
}

/*
 * Read all lines of the file at reading->path.
 *
 * lines  room for PIER_TOPOLOGY_LINES_MAX
 *
 * Errors: -EINVAL a line is wrong; those of open(2) and read(2).
 */
static int topology_read_lines(struct pier_topology_reading *reading,
			       struct pier_topology_line *lines, size_t *ret_count)
{
	FILE *file = fopen(reading->path, "re");
	int error;

	if (!file)
		return pier_fail(errno, "PIER_TOPO_FILE: opening %s: %s", reading->path,
				 strerror(errno));
	error = read_file(file, reading, lines, ret_count);
	fclose(file);
	return error;
}

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
		return fail_place(reading, place);
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
	if (line->kind == PIER_TOPOLOGY_IGNORED || take_address(place, place))
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
			error = fail_line(reading, "already stated", first);
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
	error = topology_read_lines(&reading, ret_topology->lines, &ret_topology->count);
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
	PIER_REFUSE_NULL(device, ret_location);
	return pier_locate_device(PIER_SYSFS, device, ret_location);
}
