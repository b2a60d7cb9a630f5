/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Measures memcpy(3) on one thread, the limit that other figures are compared with:
 *
 *	pier-memcpy SIZE COUNT    prints bytes per second
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "pier-memcpy"
#include "bench.h"

int main(int argc, char **argv)
{
	size_t size = argc == 3 ? strtoull(argv[1], NULL, 0) : 0;
	uint64_t count = size ? strtoull(argv[2], NULL, 0) : 0;
	char *source = malloc(size), *target = malloc(size);
	double start;

	if (!count || !source || !target) {
		fprintf(stderr, "usage: pier-memcpy SIZE COUNT\n");
		return 2;
	}
	memset(source, 1, size);
	memset(target, 2, size);
	start = now();
	for (uint64_t i = 0; i < count; i++) {
		memcpy(target, source, size);
		/* Keep the compiler from dropping copies that are never read. */
		__asm__ volatile("" : : "r"(target) : "memory");
	}
	printf("%.0f\n", (double)size * (double)count / (now() - start));
	free(source);
	free(target);
	return 0;
}
