/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_remote_vec_from_text(): accepted inputs convert to text and back unchanged. */
#include <string.h>
#include <strings.h>

#include <pier/remote_vec.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char again[PIER_REMOTE_VEC_TEXT_SIZE(PIER_MR_PARTS_MAX)];
	static struct pier_remote parts[PIER_MR_PARTS_MAX];
	char *text = fuzz_string(data, size);
	uint32_t count;
	size_t blanks;

	if (!pier_remote_vec_from_text(text, parts, PIER_MR_PARTS_MAX, &count)) {
		FUZZ_CHECK(!pier_remote_vec_to_text(parts, count, again, sizeof(again)));
		blanks = strspn(text, " \t\r\n");
		FUZZ_CHECK(!strncasecmp(text + blanks, again, strlen(again)));
	}
	free(text);
	return 0;
}
