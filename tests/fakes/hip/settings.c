/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static struct fake_hip settings;

struct fake_hip *fake_settings(void)
{
	return &settings;
}

FAKE_API struct fake_hip *fake_hip_control(void)
{
	return &settings;
}

static void give_up(const char *name, const char *text)
{
	fprintf(stderr, "fake HIP: %s=%s cannot be understood\n", name, text);
	abort();
}

static unsigned long long number(const char *name, unsigned long long otherwise)
{
	const char *text = getenv(name);
	unsigned long long value;
	char *end;

	if (!text)
		return otherwise;
	value = strtoull(text, &end, 0);
	if (end == text || *end)
		give_up(name, text);
	return value;
}

static enum fake_hip_pcie read_pcie(void)
{
	static const char *const words[] = { "either", "refused", "required", "wrong" };
	const char *text = getenv("FAKE_HIP_PCIE");

	for (size_t i = 0; text && i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(text, words[i]) == 0)
			return (enum fake_hip_pcie)i;
	}
	if (text)
		give_up("FAKE_HIP_PCIE", text);
	return FAKE_HIP_PCIE_EITHER;
}

static void read_faults(void)
{
	const char *fail = getenv("FAKE_HIP_FAIL"), *lost = getenv("FAKE_HIP_LOST");

	if (fail && sscanf(fail, "%63[a-zA-Z_0-9]:%u:%u", settings.fail_function,
			   &settings.fail_call, &settings.fail_error) != 3)
		give_up("FAKE_HIP_FAIL", fail);
	if (lost && sscanf(lost, "%u:%u", &settings.lost_call, &settings.lost_error) != 2)
		give_up("FAKE_HIP_LOST", lost);
}

__attribute__((constructor)) static void read_environment(void)
{
	settings.devices = (int)number("FAKE_HIP_DEVICES", 2);
	if (settings.devices < 0 || settings.devices > FAKE_HIP_MAX_DEVICES)
		give_up("FAKE_HIP_DEVICES", getenv("FAKE_HIP_DEVICES"));
	settings.version = (int)number("FAKE_HIP_VERSION", 60241133);
	settings.memory = number("FAKE_HIP_MEMORY", 1 << 30);
	settings.exports_most = number("FAKE_HIP_EXPORTS", 1000);
	settings.pcie = read_pcie();
	settings.dmabuf = number("FAKE_HIP_DMABUF", 1);
	settings.pools = number("FAKE_HIP_POOLS", 0);
	settings.managed = number("FAKE_HIP_MANAGED", 0);
	settings.hdp = number("FAKE_HIP_HDP", 1);
	settings.reserved = number("FAKE_HIP_RESERVED", 1);
	settings.gtt = number("FAKE_HIP_GTT", 0);
	settings.partitions = number("FAKE_HIP_PARTITIONS", 0);
	settings.wide = number("FAKE_HIP_WIDE", 0);
	read_faults();
}

unsigned int fake_failure(const char *function)
{
	if (settings.fail_call == 0 || strcmp(settings.fail_function, function) != 0)
		return 0;
	return --settings.fail_call == 0 ? settings.fail_error : 0;
}
