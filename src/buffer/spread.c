/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spread.h"
#include "device/sysfs.h"
#include "device/topology.h"

static bool read_class(const char *sysfs, const char *pci, char ret_class[16])
{
	return pier_read_sysfs(ret_class, 16, "%s/bus/pci/devices/%s/class", sysfs, pci);
}

/* By address: in 4 digits, or in more, which Intel's VMD has. */
static bool is_before(const char *a, const char *b)
{
	size_t digits_a = strcspn(a, ":"), digits_b = strcspn(b, ":");

	return digits_a != digits_b ? digits_a < digits_b : strcmp(a, b) < 0;
}

/* Whether a device precedes the memory's, and is its equal. */
static bool precedes_memory(const struct pier_topology *topology, const char *pci,
			    const struct pier_location *memory, const char *class,
			    const struct pier_location *nic)
{
	struct pier_location other;
	char its_class[16];

	if (!is_before(pci, memory->pci) ||
	    !read_class(topology->sysfs, pci, its_class) || strcmp(its_class, class) != 0)
		return false;
	pier_settle_location(topology->sysfs, pci, -1, &other);
	return pier_topology_distance(topology, &other, nic) ==
	       pier_topology_distance(topology, memory, nic);
}

static unsigned int find_position(const struct pier_topology *topology,
				  const struct pier_location *memory,
				  const struct pier_location *nic)
{
	char path[PATH_MAX], class[16];
	unsigned int position = 0;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof(path), "%s/bus/pci/devices", topology->sysfs);
	if (!read_class(topology->sysfs, memory->pci, class))
		return 0;
	folder = opendir(path);
	while (folder && (entry = readdir(folder))) {
		char pci[16] = "";

		if (strlen(entry->d_name) >= sizeof(pci))
			continue;
		memcpy(pci, entry->d_name, strlen(entry->d_name));
		position += precedes_memory(topology, pci, memory, class, nic);
	}
	if (folder)
		closedir(folder);
	return position;
}

/*
 * Open MPI, MPICH and Intel MPI, srun(1), torchrun. A value that is no number is not
 * ours to report.
 */
static unsigned int find_local_rank(void)
{
	static const char *const names[] = {
		"OMPI_COMM_WORLD_LOCAL_RANK",
		"MPI_LOCALRANKID",
		"SLURM_LOCALID",
		"LOCAL_RANK",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = secure_getenv(names[i]);

		if (value && value[0] >= '0' && value[0] <= '9')
			return (unsigned int)strtoul(value, NULL, 10);
	}
	return 0;
}

unsigned int pier_spread_number(const struct pier_topology *topology,
				const struct pier_location *memory,
				const struct pier_location *nic)
{
	return memory->pci[0] ? find_position(topology, memory, nic) : find_local_rank();
}
