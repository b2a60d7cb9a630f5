/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_remote_unpack(): pack() reproduces accepted inputs. */
#include <string.h>

#include <pier/remote.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pier_remote remote, rest;
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];

	if (pier_remote_unpack(data, size, &remote))
		return 0;
	FUZZ_CHECK(size == sizeof(wire));
	FUZZ_CHECK(remote.addr + remote.length >= remote.addr);
	pier_remote_pack(&remote, wire);
	FUZZ_CHECK(!memcmp(wire, data, sizeof(wire)));
	FUZZ_CHECK(!pier_remote_sub(&remote, remote.length, 0, &rest) && !rest.length);
	return 0;
}
