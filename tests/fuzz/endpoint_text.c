/* SPDX-License-Identifier: BSD-3-Clause */
/* pier_endpoint_from_text(): accepted inputs convert to text and back unchanged. */
#include <string.h>

#include <pier/endpoint.h>

#include "fuzz.h"

static void check_round_trip(const struct pier_endpoint *endpoint)
{
	char text[PIER_ENDPOINT_TEXT_MAX], text_again[PIER_ENDPOINT_TEXT_MAX];
	struct pier_endpoint again;

	FUZZ_CHECK(pier_endpoint_to_text(endpoint, text, sizeof(text)) >= 0);
	FUZZ_CHECK(!pier_endpoint_from_text(text, &again));
	FUZZ_CHECK(pier_endpoint_to_text(&again, text_again, sizeof(text_again)) >= 0);
	FUZZ_CHECK(!strcmp(text, text_again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pier_endpoint endpoint;
	char *text = fuzz_string(data, size);

	if (!pier_endpoint_from_text(text, &endpoint))
		check_round_trip(&endpoint);
	free(text);
	return 0;
}
