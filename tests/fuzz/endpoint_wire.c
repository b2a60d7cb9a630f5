/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_endpoint_unpack(): pack() reproduces accepted inputs. */
#include <string.h>

#include <pier/endpoint.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pier_endpoint endpoint, again;
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	int length;

	memset(&endpoint, 0xa5, sizeof(endpoint));
	memcpy(&again, &endpoint, sizeof(again));
	if (pier_endpoint_unpack(data, size, &endpoint)) {
		/* Outputs are written only on success. */
		FUZZ_CHECK(!memcmp(&again, &endpoint, sizeof(again)));
		return 0;
	}
	FUZZ_CHECK(endpoint.address_length <= PIER_ENDPOINT_ADDRESS_MAX);
	length = pier_endpoint_pack(&endpoint, wire, sizeof(wire));
	FUZZ_CHECK(length > 0);
	FUZZ_CHECK((size_t)length == size && !memcmp(wire, data, size));
	return 0;
}
