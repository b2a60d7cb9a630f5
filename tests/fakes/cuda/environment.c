/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* A test with a misspelt setting must not pass. */
static void refuse(const char *name, const char *value)
{
	fprintf(stderr, "fake libcuda: %s=%s is not understood\n", name, value);
	abort();
}

static uint64_t to_number(const char *name, const char *text, char separator,
			  const char **ret_rest)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (end == text || (*end != '\0' && *end != separator))
		refuse(name, text);
	*ret_rest = *end ? end + 1 : end;
	return value;
}

static uint64_t read_number(const char *name, uint64_t otherwise, uint64_t most)
{
	const char *text = getenv(name), *rest;
	uint64_t value;

	if (!text)
		return otherwise;
	value = to_number(name, text, '\0', &rest);
	if (value > most)
		refuse(name, text);
	return value;
}

/* Returns the index of one of the words, whose list ends with NULL. */
static int read_word(const char *name, int otherwise, const char *const *words)
{
	const char *text = getenv(name);

	if (!text)
		return otherwise;
	for (int i = 0; words[i]; i++)
		if (strcmp(words[i], text) == 0)
			return i;
	refuse(name, text);
	return otherwise;
}

/* Reads texts separated by commas, one for each device. */
static void read_texts(const char *name, struct fake_cuda *control, size_t offset,
		       size_t size)
{
	const char *text = getenv(name);

	for (int i = 0; text && *text; i++) {
		size_t length = strcspn(text, ",");
		char *ret = (char *)&control->device[i] + offset;

		if (i == FAKE_CUDA_MAX_DEVICES || length >= size)
			refuse(name, text);
		memcpy(ret, text, length);
		ret[length] = '\0';
		text += length + (text[length] == ',');
	}
}

/* Parses the part of "cuMemAlloc:3:2:5" behind the first colon. */
static void read_failure(const char *numbers, struct fake_cuda_call *ret_call)
{
	const char *name = "FAKE_CUDA_FAIL";

	ret_call->fail_in = to_number(name, numbers, ':', &numbers);
	ret_call->fail_result = (int)to_number(name, numbers, ':', &numbers);
	if (*numbers)
		ret_call->fail_more = to_number(name, numbers, ':', &numbers);
}

static void read_failures(struct fake_cuda *control)
{
	const char *text = getenv("FAKE_CUDA_FAIL");
	char *copy, *rest = NULL;

	copy = text ? strdup(text) : NULL;
	for (char *one = copy ? strtok_r(copy, ",", &rest) : NULL; one;
	     one = strtok_r(NULL, ",", &rest)) {
		size_t length = strcspn(one, ":");
		struct fake_cuda_call *call;

		if (one[length] != ':')
			refuse("FAKE_CUDA_FAIL", one);
		one[length] = '\0';
		call = fake_cuda_call(control, one);
		if (!call)
			refuse("FAKE_CUDA_FAIL", one);
		else
			read_failure(one + length + 1, call);
	}
	free(copy);
}

static void read_loss(struct fake_cuda *control)
{
	const char *name = "FAKE_CUDA_LOST", *text = getenv(name);
	uint64_t device;

	if (!text)
		return;
	device = to_number(name, text, ':', &text);
	if (device >= FAKE_CUDA_MAX_DEVICES)
		refuse(name, getenv(name));
	control->device[device].lost_in = to_number(name, text, ':', &text);
	control->device[device].lost_result = (int)to_number(name, text, '\0', &text);
}

static void read_device(struct fake_cuda_device *device)
{
	static const char *const ranges[] = { "any", "base", "whole", "granules", NULL };
	static const char *const seams[] = { "refused", "joined", NULL };
	static const char *const pcie[] = { "either", "refused", "required", "wrong",
					    NULL };
	static const char *const ordering[] = { "none", "owner", "all", NULL };

	device->memory = read_number("FAKE_CUDA_MEMORY", device->memory, UINT64_MAX);
	device->bar = read_number("FAKE_CUDA_BAR", device->bar, UINT64_MAX);
	device->static_bar = read_number("FAKE_CUDA_STATIC_BAR", device->static_bar, 1);
	device->coherent = read_number("FAKE_CUDA_COHERENT", device->coherent, 1);
	device->dmabuf = read_number("FAKE_CUDA_DMABUF", device->dmabuf, 1);
	device->host_dmabuf = read_number("FAKE_CUDA_HOST_DMABUF", device->host_dmabuf,
					  1);
	device->every_kind = read_number("FAKE_CUDA_EVERY_KIND", device->every_kind, 1);
	device->ranges = read_word("FAKE_CUDA_RANGES", device->ranges, ranges);
	device->seams = read_word("FAKE_CUDA_SEAMS", device->seams, seams);
	device->pcie = read_word("FAKE_CUDA_PCIE", device->pcie, pcie);
	device->ordering =
		read_word("FAKE_CUDA_ORDERING", device->ordering / 100, ordering) * 100;
	device->flush_options = (int)read_number("FAKE_CUDA_FLUSH",
						 (uint64_t)device->flush_options, 3);
}

void fake_read_environment(struct fake_cuda *control)
{
	static const char *const windows[] = { "refused", "copied", NULL };

	control->version = (int)read_number("FAKE_CUDA_VERSION",
					    (uint64_t)control->version, 99990);
	control->devices = (uint32_t)read_number("FAKE_CUDA_DEVICES", control->devices,
						 FAKE_CUDA_MAX_DEVICES);
	control->windows = read_word("FAKE_CUDA_WINDOWS", control->windows, windows);
	control->peer_memory = read_number("FAKE_CUDA_PEER_MEMORY", control->peer_memory,
					   1);
	control->managed_pools = read_number("FAKE_CUDA_MANAGED_POOLS",
					     control->managed_pools, 1);
	control->no_ipc = read_number("FAKE_CUDA_NO_IPC", control->no_ipc, 1);
	control->contained = read_number("FAKE_CUDA_CONTAINED", control->contained, 1);
	control->no_peers = read_number("FAKE_CUDA_NO_PEERS", control->no_peers, 1);
	control->no_host_ranges = read_number("FAKE_CUDA_NO_HOST_RANGES",
					      control->no_host_ranges, 1);
	for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++)
		read_device(&control->device[i]);
	read_texts("FAKE_CUDA_NAMES", control, offsetof(struct fake_cuda_device, name),
		   sizeof(control->device[0].name));
	read_texts("FAKE_CUDA_PCI", control, offsetof(struct fake_cuda_device, pci),
		   sizeof(control->device[0].pci));
	read_failures(control);
	read_loss(control);
}
