/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The fixed forms that the software NIC reads from a peer: a frame's header, a caller's
 * hello, a datagram's envelope, the address in an endpoint. Packing reproduces accepted
 * inputs.
 */
#include <string.h>

#include "fuzz.h"
#include "provider/provider.h"
#include "provider/soft/connect/address.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/queues/datagram.h"
#include "provider/soft/link/link.h"

static void try_header(const uint8_t *data)
{
	uint8_t again[SOFT_HEADER_SIZE];
	struct soft_header header;

	if (!pier_soft_unpack_header(data, &header))
		return;
	FUZZ_CHECK(pier_soft_payload_length(&header) <= SOFT_MAX_MESSAGE);
	pier_soft_pack_header(&header, again);
	FUZZ_CHECK(!memcmp(data, again, sizeof(again)));
}

static void try_hello(const uint8_t *data)
{
	uint8_t again[SOFT_HELLO_SIZE];
	struct soft_hello hello;

	if (!pier_soft_unpack_hello(data, &hello))
		return;
	pier_soft_pack_hello(&hello, again);
	FUZZ_CHECK(!memcmp(data, again, sizeof(again)));
}

static void try_envelope(const uint8_t *data)
{
	uint8_t again[SOFT_ENVELOPE_SIZE];
	struct soft_envelope envelope;

	if (!pier_soft_unpack_envelope(data, &envelope))
		return;
	pier_soft_pack_envelope(&envelope, again);
	FUZZ_CHECK(!memcmp(data, again, sizeof(again)));
}

static void try_address(const uint8_t *data, size_t size)
{
	uint8_t again[PIER_PROVIDER_ADDRESS_MAX];
	struct soft_address address;

	if (pier_soft_unpack_address(data, size, &address))
		return;
	FUZZ_CHECK(address.count <= SOFT_MAX_ADDRESSES);
	FUZZ_CHECK(pier_soft_pack_address(&address, again, sizeof(again)) == (int)size);
	FUZZ_CHECK(!memcmp(data, again, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == SOFT_HEADER_SIZE)
		try_header(data);
	if (size == SOFT_HELLO_SIZE)
		try_hello(data);
	if (size == SOFT_ENVELOPE_SIZE)
		try_envelope(data);
	try_address(data, size);
	return 0;
}
