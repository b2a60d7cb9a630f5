/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topology_line.h"
#include "device/topology.h"
#include "core/error.h"

enum {
	LINE_MAX_BYTES = 512,
	NODE_MAX = 65535,
	SPEED_MAX = 100 * 1000 * 1000,
};

int pier_fail_line(const struct pier_topology_reading *reading, const char *rule,
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

/* Returns false, and changes nothing, if it is no PCI address. */
bool pier_take_address(const char *word, char ret_pci[PIER_TOPOLOGY_NAME_SIZE])
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
			return pier_fail_line(reading, "a NUMA node is 0 to 65535", word);
		line->node = (int)number;
		return 0;
	}
	if (line->kind == PIER_TOPOLOGY_NIC && strncmp(word, "pci=", 4) == 0)
		return pier_take_address(word + 4, line->second)
			       ? 0
			       : pier_fail_line(reading,
						"not a PCI address like 0000:17:00.0",
						word + 4);
	if (line->kind == PIER_TOPOLOGY_NIC && strncmp(word, "speed=", 6) == 0) {
		if (!take_number(word + 6, SPEED_MAX, &number) || number == 0)
			return pier_fail_line(reading, "a speed is in Mbit/s, from 1",
					      word);
		line->speed = (uint32_t)number;
		return 0;
	}
	return pier_fail_line(reading,
			      line->kind == PIER_TOPOLOGY_NIC
				      ? "not pci=ADDRESS, numa=N or speed=MBIT"
				      : "not numa=N",
			      word);
}

static int take_properties(struct pier_topology_reading *reading,
			   struct pier_topology_line *line)
{
	const char *word = take_word(reading);
	int error = word ? 0
			 : pier_fail_line(reading, "nothing follows the name",
					  line->name);

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
		return pier_fail_line(reading, "distance needs two places and a name",
				      NULL);
	word += strspn(word, WHITE_SPACE);
	for (size_t end = strlen(word); end > 0 && strchr(WHITE_SPACE, word[end - 1]);)
		word[--end] = '\0';
	for (int i = PIER_DISTANCE_SAME; i < PIER_DISTANCE_UNKNOWN; i++) {
		line->distance = (enum pier_distance)i;
		if (strcmp(word, pier_distance_name(line->distance)) == 0)
			return 0;
	}
	return pier_fail_line(
		reading, "not same, switch, switches, c2c, host bridge, node or system",
		word);
}

/* A NIC's name, a unit of memory, or an address in the form of sysfs. */
static int take_place(struct pier_topology_reading *reading,
		      char ret_name[PIER_TOPOLOGY_NAME_SIZE])
{
	const char *word = take_word(reading);

	if (!word)
		return pier_fail_line(
			reading, "a NIC, a PCI address or a unit of memory is missing",
			NULL);
	if (!pier_take_address(word, ret_name) &&
	    snprintf(ret_name, PIER_TOPOLOGY_NAME_SIZE, "%s", word) >=
		    PIER_TOPOLOGY_NAME_SIZE)
		return pier_fail_line(reading, "a name has at most 63 bytes", word);
	return 0;
}

int pier_fail_place(const struct pier_topology_reading *reading, const char *word)
{
	return pier_fail_line(
		reading,
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
		return pier_fail_line(reading, "a line begins with nic, pci or distance",
				      first);
	error = take_place(reading, line->name);
	if (!error && line->kind == PIER_TOPOLOGY_PCI && !strchr(line->name, ':'))
		error = pier_fail_place(reading, line->name);
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
			return pier_fail_line(
				reading,
				"a line has at most 510 bytes, none of them zero", NULL);
		text[strcspn(text, "#")] = '\0';
		first = strtok_r(text, WHITE_SPACE, &reading->rest);
		if (!first)
			continue;
		if (*ret_count == PIER_TOPOLOGY_LINES_MAX)
			return pier_fail_line(reading, "more than 4096 entries", NULL);
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

int pier_topology_read_lines(struct pier_topology_reading *reading,
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
