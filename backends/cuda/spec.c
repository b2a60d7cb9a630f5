/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "spec.h"
#include "core/checked.h"
#include "core/error.h"

static int fail_unit(const char *unit)
{
	return pier_fail(
		EINVAL,
		"the units of cuda are N (a device), N:linear, N:vmm, N:vmm:SIZE "
		"(segments of SIZE, as 2M), N:pool and N:host, but \"%s\" was asked for",
		unit);
}

/* Only digits: no sign and no blanks. *ret_end points after them. */
static bool parse_number(const char *text, uint64_t *ret_number, const char **ret_end)
{
	uint64_t number = 0;

	*ret_end = text;
	while (**ret_end >= '0' && **ret_end <= '9') {
		uint64_t digit = (uint64_t)(**ret_end - '0');

		if (!pier_mul_u64(number, 10, &number) ||
		    !pier_add_u64(number, digit, &number))
			return false;
		++*ret_end;
	}
	*ret_number = number;
	return *ret_end != text;
}

static bool parse_size(const char *text, uint64_t *ret_size)
{
	static const char units[] = "KMG";
	uint64_t size, scale = 1;
	const char *end, *unit;

	if (!parse_number(text, &size, &end) || size == 0)
		return false;
	unit = *end ? strchr(units, *end) : NULL;
	if (unit) {
		scale = UINT64_C(1) << (10 * (unit - units + 1));
		end++;
	}
	return *end == '\0' && pier_mul_u64(size, scale, ret_size);
}

int pier_cuda_parse_unit(const char *unit, struct pier_cuda_spec *ret_spec)
{
	struct pier_cuda_spec spec = { .kind = PIER_CUDA_LINEAR };
	uint64_t device;
	const char *rest;

	if (!unit)
		unit = "0";
	if (!parse_number(unit, &device, &rest))
		return fail_unit(unit);
	/*
	 * INT32_MAX exceeds every ordinal; the check against the device count refuses it.
	 */
	spec.device = device < INT32_MAX ? (int)device : INT32_MAX;
	spec.any = *rest == '\0';
	if (strcmp(rest, ":vmm") == 0) {
		spec.kind = PIER_CUDA_VMM;
	} else if (strcmp(rest, ":pool") == 0) {
		spec.kind = PIER_CUDA_POOL;
	} else if (strcmp(rest, ":host") == 0) {
		spec.kind = PIER_CUDA_HOST;
	} else if (strncmp(rest, ":vmm:", 5) == 0) {
		spec.kind = PIER_CUDA_VMM;
		if (!parse_size(rest + 5, &spec.segment))
			return fail_unit(unit);
	} else if (*rest && strcmp(rest, ":linear") != 0) {
		return fail_unit(unit);
	}
	*ret_spec = spec;
	return 0;
}
