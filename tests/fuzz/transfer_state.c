/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The state of a transfer: packing reproduces accepted inputs, whose ranges are in order.
 */
#include <string.h>

#include "fuzz.h"
#include "transfer/remaining.h"
#include "core/wire.h"

static void check_ranges(const struct pier_remaining *remaining, uint64_t length)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < remaining->count; i++) {
		const struct pier_range *range = &remaining->ranges[i];

		FUZZ_CHECK(range->length > 0 && range->length <= length);
		FUZZ_CHECK(range->offset <= length - range->length);
		FUZZ_CHECK(i == 0 || range->offset > range[-1].offset + range[-1].length);
		sum += range->length;
	}
	FUZZ_CHECK(pier_remaining_length(remaining) == sum && sum <= length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* The transfer's length from the state. An input that is too short has none. */
	uint64_t length = size >= 24 ? pier_get_le64(data + 16) : 100;
	struct pier_remaining remaining;
	uint8_t *wire;

	if (pier_remaining_unpack(&remaining, length, 1, data, size))
		return 0;
	check_ranges(&remaining, length);
	FUZZ_CHECK(remaining.room > remaining.count);
	wire = malloc(size);
	FUZZ_CHECK(wire);
	FUZZ_CHECK(pier_remaining_pack(&remaining, length, wire, size) == (int)size);
	FUZZ_CHECK(!memcmp(wire, data, size));
	free(wire);
	/* All missing ranges can be taken. */
	while (!pier_remaining_empty(&remaining))
		pier_remaining_take(&remaining, pier_remaining_first(&remaining).length);
	pier_remaining_free(&remaining);
	return 0;
}
