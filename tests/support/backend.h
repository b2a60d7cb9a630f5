/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_BACKEND_H
#define TESTS_SUPPORT_BACKEND_H

/* Calls a backend's functions as the library does. */

#include <errno.h>

#include <pier/backend.h>

static inline int call_find(const struct pier_backend *backend, uint64_t address,
			    uint64_t length, struct pier_memory *ret_memory)
{
	struct pier_memory memory = { .size = sizeof(memory) };
	int result = backend->find(address, length, &memory);

	if (result == 0)
		*ret_memory = memory;
	return result;
}

/* Calls export_range() only if describe() does not rule the export out. */
static inline int call_export(const struct pier_backend *backend,
			      const struct pier_memory *memory, uint64_t address,
			      uint64_t length, enum pier_mapping mapping,
			      struct pier_backend_export *ret_export)
{
	struct pier_backend_request request = {
		.size = sizeof(request),
		.address = address,
		.length = length,
		.mapping = mapping,
		.access = PIER_BACKEND_READ | PIER_BACKEND_WRITE,
	};

	struct pier_memory_facts facts = { .size = sizeof(facts) };

	if (backend->describe)
		backend->describe(memory, &facts);
	if (facts.no_export[0])
		return pier_fail(EOPNOTSUPP, "%s", facts.no_export);
	ret_export->size = sizeof(*ret_export);
	return backend->export_range(memory, &request, ret_export);
}

static inline int call_flush_once(const struct pier_backend *backend,
				  const struct pier_memory *memory,
				  enum pier_mapping mapping, bool read_back)
{
	struct pier_backend_flush range = {
		.size = sizeof(range),
		.address = memory->address,
		.length = memory->length,
		.device = "none",
		.mapping = mapping,
		.read_back = read_back,
	};

	return backend->flush(memory, &range);
}

/* As the library calls it. */
static inline int call_flush(const struct pier_backend *backend,
			     const struct pier_memory *memory)
{
	int result = call_flush_once(backend, memory, PIER_MAPPING_AUTO, false);

	if (result != PIER_BACKEND_READ_BACK)
		return result;
	return call_flush_once(backend, memory, PIER_MAPPING_AUTO, true);
}

#endif
