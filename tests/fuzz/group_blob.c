/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_group_unpack_blob(): pier_group_pack_blob() reproduces accepted inputs. */
#include <string.h>

#include "fuzz.h"
#include "group/group.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pier_group_blob blob;
	uint8_t wire[PIER_GROUP_BLOB_SIZE];

	if (size != sizeof(wire) || pier_group_unpack_blob(data, &blob))
		return 0;
	FUZZ_CHECK(blob.from < blob.size && blob.to < blob.size && blob.from != blob.to);
	FUZZ_CHECK(!pier_group_pack_blob(&blob, wire));
	FUZZ_CHECK(!memcmp(wire, data, sizeof(wire)));
	return 0;
}
