/* SPDX-License-Identifier: BSD-3-Clause */
/* The description of an end's ports: packing reproduces accepted inputs. */
#include <pier/rails.h>

#include "fuzz.h"
#include "transfer/rails.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pier_rail_pair pairs[PIER_RAILS_MAX];
	struct pier_rails rails;
	uint8_t wire[PIER_RAILS_SIZE_MAX];
	int count;

	if (pier_rails_unpack(data, size, &rails))
		return 0;
	FUZZ_CHECK(pier_rails_pack(&rails, wire, sizeof(wire)) == (int)size);
	FUZZ_CHECK(!memcmp(wire, data, size));
	/* Against itself: each end chooses at most one pair for each port. */
	count = pier_rails_choose(data, size, data, size, pairs, PIER_RAILS_MAX,
				  sizeof(pairs[0]));
	FUZZ_CHECK(count <= (int)rails.count);
	for (int i = 0; i < count; i++) {
		FUZZ_CHECK(strlen(pairs[i].device) < sizeof(pairs[i].device));
		FUZZ_CHECK(pairs[i].port >= 1 && pairs[i].port <= 255);
	}
	return 0;
}
