/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/backend.h"
#include "host.h"
#include "core/checked.h"
#include "core/error.h"

struct pier_huge_pages pier_read_huge_pages(const char *path)
{
	struct pier_huge_pages pages = { 0 };
	unsigned long long value;
	char line[256];
	FILE *file = fopen(path, "re");

	if (!file)
		return pages;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "HugePages_Total: %llu", &value) == 1)
			pages.total = value;
		else if (sscanf(line, "HugePages_Free: %llu", &value) == 1)
			pages.free = value;
		else if (sscanf(line, "Hugepagesize: %llu kB", &value) == 1)
			pages.size = value << 10;
	}
	fclose(file);
	/* The code rounds to a power of two. */
	if (pages.size & (pages.size - 1))
		pages.size = 0;
	return pages;
}

static int probe_host(char *ret_detail, size_t size)
{
	struct pier_huge_pages huge = pier_read_huge_pages("/proc/meminfo");

	if (huge.size == 0)
		snprintf(ret_detail, size, "no huge pages");
	else
		snprintf(ret_detail, size,
			 "unit \"huge\": %llu of %llu huge pages of %llu KiB are free",
			 (unsigned long long)huge.free, (unsigned long long)huge.total,
			 (unsigned long long)huge.size >> 10);
	return 0;
}

static int map_pages(uint64_t length, uint64_t page, int flags,
		     struct pier_memory *ret_memory)
{
	uint64_t rounded;
	void *cpu = MAP_FAILED;

	if (pier_round_up_u64(length, page, &rounded) && rounded <= SIZE_MAX)
		cpu = mmap(NULL, rounded, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	else
		errno = ENOMEM;
	if (cpu == MAP_FAILED)
		return pier_fail(errno, "mapping %llu bytes: %m",
				 (unsigned long long)length);
	*ret_memory = (struct pier_memory){
		.size = sizeof(struct pier_memory),
		.address = (uint64_t)(uintptr_t)cpu,
		.length = rounded,
		.cpu = cpu,
	};
	return 0;
}

static int alloc_huge(uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_huge_pages huge = pier_read_huge_pages("/proc/meminfo");
	int result;

	if (huge.size == 0)
		return pier_fail(EOPNOTSUPP, "/proc/meminfo lists no huge pages: "
					     "kernel built without CONFIG_HUGETLBFS");
	result = map_pages(length, huge.size, MAP_HUGETLB, ret_memory);
	if (result != -ENOMEM)
		return result;
	return pier_fail(ENOMEM,
			 "%llu huge pages of %llu KiB are wanted, and of %llu reserved "
			 "ones %llu are free; as root, write a larger number to "
			 "/proc/sys/vm/nr_hugepages",
			 (unsigned long long)((length - 1) / huge.size + 1),
			 (unsigned long long)huge.size >> 10,
			 (unsigned long long)huge.total, (unsigned long long)huge.free);
}

static int alloc_host(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	if (!unit)
		return map_pages(length, (uint64_t)sysconf(_SC_PAGESIZE), 0, ret_memory);
	if (strcmp(unit, "huge") == 0)
		return alloc_huge(length, ret_memory);
	return pier_fail(EINVAL,
			 "host has the unit \"huge\" only, but \"%s\" was asked for",
			 unit);
}

static void free_host(struct pier_memory *memory)
{
	munmap(memory->cpu, memory->length);
}

/* Without find(): memory that no other backend owns is host memory. */
const struct pier_backend pier_host_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "host",
	.description = "anonymous host memory; unit \"huge\": huge pages",
	.probe = probe_host,
	.alloc = alloc_host,
	.free = free_host,
};
