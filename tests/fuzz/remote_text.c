/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_remote_from_text(): accepted inputs convert to text and back unchanged. */
#include <string.h>
#include <strings.h>

#include <pier/remote.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_string(data, size), again[PIER_REMOTE_TEXT_SIZE];
	struct pier_remote remote;
	size_t blanks;

	if (!pier_remote_from_text(text, &remote)) {
		FUZZ_CHECK(remote.addr + remote.length >= remote.addr);
		pier_remote_to_text(&remote, again);
		blanks = strspn(text, " \t\r\n");
		FUZZ_CHECK(!strncasecmp(text + blanks, again, strlen(again)));
	}
	free(text);
	return 0;
}
