/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "extensible.h"

enum {
	/* No version of a struct is longer: the size was never set. */
	LONGEST = 4096,
};

int pier_read_extensible(const char *what, const char *init, const void *given,
			 size_t first, size_t known, void *ret_known)
{
	const uint32_t unset = UINT32_MAX;
	const char *bytes = given;
	size_t size;

	memcpy(&size, given, sizeof(size));
	if (size < first)
		return pier_fail(EINVAL, "%s: size %zu is less than %zu; begin with %s",
				 what, size, first, init);
	if (size > LONGEST)
		return pier_fail(EINVAL,
				 "%s: size %zu is that of no version; begin with %s",
				 what, size, init);
	for (size_t i = known; i < size; i++) {
		bool is_unset = size - i >= sizeof(unset) &&
				memcmp(bytes + i, &unset, sizeof(unset)) == 0;

		if (i % sizeof(unset) == 0 && is_unset)
			i += sizeof(unset) - 1;
		else if (bytes[i] != 0)
			return pier_fail(
				EINVAL,
				"%s: byte %zu of %zu is set, and this library "
				"knows only the first %zu: it is older than the header; "
				"install the newer libpier",
				what, i, size, known);
	}
	memcpy(ret_known, given, size < known ? size : known);
	memcpy(ret_known, &known, sizeof(known));
	return 0;
}

void pier_write_extensible(const void *known, size_t known_size, void *ret, size_t size)
{
	size_t common = size < known_size ? size : known_size;

	memcpy(ret, known, common);
	memset((char *)ret + common, 0, size - common);
}

int pier_write_list(void *list, size_t known_size, uint32_t count, void *ret_list,
		    uint32_t *ret_count, size_t size)
{
	char *given = list;

	if (count && size != known_size) {
		given = calloc(count, size);
		for (uint32_t i = 0; given && i < count; i++)
			pier_write_extensible((char *)list + i * known_size, known_size,
					      given + i * size, size);
		free(list);
		if (!given)
			return pier_fail(ENOMEM, "no memory for a list of %u entries",
					 count);
	}
	memcpy(ret_list, &given, sizeof(given));
	*ret_count = count;
	return 0;
}
