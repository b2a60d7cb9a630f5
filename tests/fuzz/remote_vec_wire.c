/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_remote_vec_unpack(): pack() reproduces accepted inputs. */
#include <string.h>

#include <pier/remote_vec.h>

#include "fuzz.h"

static uint64_t sum_of(const struct pier_remote *parts, uint32_t count)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		FUZZ_CHECK(!__builtin_add_overflow(sum, parts[i].length, &sum));
	return sum;
}

static void check_taken(const struct pier_remote *parts, uint32_t count)
{
	static struct pier_remote rest[PIER_MR_PARTS_MAX];
	uint64_t length = sum_of(parts, count);
	uint32_t rest_count;

	FUZZ_CHECK(!pier_remote_vec_sub(parts, count, length / 3, length - length / 3,
					rest, count, &rest_count));
	FUZZ_CHECK(sum_of(rest, rest_count) == length - length / 3);
	FUZZ_CHECK(!pier_remote_vec_sub(parts, count, length, 0, rest, 0, &rest_count));
	FUZZ_CHECK(rest_count == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct pier_remote parts[PIER_MR_PARTS_MAX], fewer[PIER_MR_PARTS_MAX];
	static uint8_t wire[PIER_REMOTE_VEC_WIRE_MAX];
	uint32_t count, none;

	if (pier_remote_vec_unpack(data, size, parts, PIER_MR_PARTS_MAX, &count))
		return 0;
	FUZZ_CHECK(size == (size_t)PIER_REMOTE_VEC_WIRE_SIZE(count));
	FUZZ_CHECK(pier_remote_vec_pack(parts, count, wire, size) == (int)size);
	FUZZ_CHECK(!memcmp(wire, data, size));
	FUZZ_CHECK(!count ||
		   pier_remote_vec_unpack(data, size, fewer, count - 1, &none) < 0);
	check_taken(parts, count);
	return 0;
}
