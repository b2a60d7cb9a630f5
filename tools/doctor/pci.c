/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "pci.h"

enum {
	CAPABILITIES = 0x34,
	CAPABILITY_PCIE = 0x10,
	DEVICE_CONTROL = 8,
	EXTENDED = 0x100,
	EXTENDED_ACS = 0x0d,
	ACS_CONTROL = 6,
	STEPS_MAX = 96, /* a list may be a circle */
};

/* A little-endian number, or -1. */
static long read_value(const char *config, size_t offset, size_t bytes)
{
	long value = 0;

	if (strlen(config) < 2 * (offset + bytes))
		return -1;
	for (size_t i = bytes; i-- > 0;) {
		char digits[3] = { config[2 * (offset + i)],
				   config[2 * (offset + i) + 1] };

		value = value << 8 | strtol(digits, NULL, 16);
	}
	return value;
}

long pci_device_control(const char *config)
{
	long at = read_value(config, CAPABILITIES, 1);

	for (int i = 0; i < STEPS_MAX && at >= 0x40; i++) {
		if (read_value(config, (size_t)at, 1) == CAPABILITY_PCIE)
			return read_value(config, (size_t)at + DEVICE_CONTROL, 2);
		at = read_value(config, (size_t)at + 1, 1);
	}
	return -1;
}

/* A header has the id, 16 bits, the version, 4 bits, and the next offset, 12 bits. */
long pci_acs_control(const char *config)
{
	long at = EXTENDED;

	for (int i = 0; i < STEPS_MAX && at >= EXTENDED; i++) {
		long id = read_value(config, (size_t)at, 2);

		if (id < 0)
			return -1;
		if (id == EXTENDED_ACS)
			return read_value(config, (size_t)at + ACS_CONTROL, 2);
		at = read_value(config, (size_t)at + 2, 2) >> 4;
	}
	return -2;
}
