/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "digest.h"
#include "region/sync.h"

/* The name of libisal's function: CRC-32C is the polynomial of iSCSI. */
typedef unsigned int crc32_function(unsigned char *buffer, int length, unsigned int crc);

static _Atomic(crc32_function *) crc32c;

/* Threads that open it at the same time find the same function. */
static int open_libisal(void)
{
	crc32_function *function;
	void *library;

	if (atomic_load_explicit(&crc32c, memory_order_relaxed))
		return 0;
	library = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return pier_fail(ELIBACC,
				 "PIER_TRANSFER_DIGEST needs libisal: %s: install it "
				 "(Debian: libisal2)",
				 dlerror());
	function = (crc32_function *)dlsym(library, "crc32_iscsi");
	if (!function) {
		dlclose(library);
		return pier_fail(ELIBACC, "PIER_TRANSFER_DIGEST needs libisal: "
					  "libisal.so.2 has no crc32_iscsi");
	}
	atomic_store_explicit(&crc32c, function, memory_order_relaxed);
	return 0;
}

static void add_bytes(void *context, const void *bytes, size_t length)
{
	crc32_function *function = atomic_load_explicit(&crc32c, memory_order_relaxed);
	unsigned char *at = (unsigned char *)(uintptr_t)bytes;
	uint32_t *crc = context;

	while (length > 0) {
		int piece = length < INT32_MAX ? (int)length : INT32_MAX;

		*crc = function(at, piece, *crc);
		at += piece;
		length -= (size_t)piece;
	}
}

static uint32_t digest_of(const void *bytes, size_t length)
{
	uint32_t crc = UINT32_MAX;

	add_bytes(&crc, bytes, length);
	return ~crc;
}

/* Digest bytes of the rail's memory. */
static int digest_memory(const struct pier_digests *digests, struct pier_range place,
			 uint32_t *ret_digest)
{
	uint32_t crc = UINT32_MAX;
	const struct pier_visit visit = {
		.look = add_bytes,
		.context = &crc,
		.copy = digests->copy,
		.copy_size = PIER_DIGEST_CHUNK,
	};
	int error = pier_visit_region(digests->mr, digests->offset + place.offset,
				      place.length, &visit);

	*ret_digest = ~crc;
	return error;
}

static int open_checks(struct pier_digests *digests, uint32_t count, uint64_t chunk)
{
	uint64_t page = pier_host_page(), length;
	void *memory = NULL;
	int error;

	digests->checks = calloc(count, sizeof(*digests->checks));
	if (!digests->checks)
		return pier_fail(ENOMEM, "no memory for %u checks", count);
	digests->count = count;
	digests->mark = (uint64_t)pier_now();
	/* More than the chunk, so that a mark always fits. */
	digests->room = (chunk / page + 1) * page;
	length = count * digests->room;
	error = pier_buffer_alloc("memfd", length, &digests->buffer);
	if (!error)
		error = pier_buffer_map(digests->buffer, &memory);
	if (!error)
		error = pier_mr_reg_buffer(digests->mr->pd, digests->buffer, 0, length,
					   PIER_ACCESS_LOCAL_WRITE, PIER_POLICY_ANY,
					   &digests->again);
	digests->memory = memory;
	return error ? pier_fail_because(-error, "memory for reading %u chunks again",
					 count)
		     : 0;
}

int pier_digests_open(struct pier_mr *mr, uint64_t offset, uint32_t checks,
		      uint64_t chunk, struct pier_digests **ret_digests)
{
	struct pier_digests *digests;
	int error = open_libisal();

	if (error)
		return error;
	if (!pier_can_visit(mr))
		return pier_fail(EOPNOTSUPP, "PIER_TRANSFER_DIGEST: the region has a "
					     "dma-buf without a buffer, whose bytes "
					     "cannot be read here");
	digests = calloc(1, sizeof(*digests));
	if (!digests)
		return pier_fail(ENOMEM, "no memory for digests");
	digests->mr = mr;
	digests->offset = offset;
	digests->direct = pier_has_direct(mr);
	digests->copy = malloc(PIER_DIGEST_CHUNK);
	if (!digests->copy)
		error = pier_fail(ENOMEM, "no memory for digests");
	if (!error && checks)
		error = open_checks(digests, checks, chunk);
	if (error)
		pier_digests_close(digests);
	else
		*ret_digests = digests;
	return error;
}

/* A device that withholds completions may still write to the region: it is then kept. */
void pier_digests_close(struct pier_digests *digests)
{
	if (!digests)
		return;
	if ((digests->again && pier_mr_dereg(digests->again)) ||
	    (digests->buffer && pier_buffer_free(digests->buffer)))
		pier_warning("memory for reading chunks again is not freed: %s",
			     pier_error_message());
	free(digests->checks);
	free(digests->copy);
	free(digests);
}

struct pier_check *pier_digests_find(const struct pier_digests *digests,
				     enum pier_check_state state)
{
	for (uint32_t i = 0; i < digests->count; i++)
		if (digests->checks[i].state == state)
			return &digests->checks[i];
	return NULL;
}

static uint64_t place_of_check(const struct pier_digests *digests,
			       const struct pier_check *check)
{
	return (uint64_t)(check - digests->checks) * digests->room;
}

struct pier_scatter pier_digests_element(struct pier_digests *digests,
					 const struct pier_check *check)
{
	/* 2^64 divided by the golden ratio: no mark is like those before. */
	digests->mark += UINT64_C(0x9e3779b97f4a7c15);
	memcpy(digests->memory + place_of_check(digests, check), &digests->mark,
	       sizeof(digests->mark));
	return pier_mr_scatter_unchecked(digests->again,
					 pier_mr_iova(digests->again) +
						 place_of_check(digests, check),
					 (uint32_t)check->range.length);
}

int pier_digest_source(struct pier_digests *digests, struct pier_range place)
{
	int error;

	if (place.offset == digests->known.offset &&
	    place.length == digests->known.length)
		return 0;
	error = digest_memory(digests, place, &digests->source);
	digests->known = error ? (struct pier_range){ 0 } : place;
	return error;
}

/* The local memory is named: the peer's path is not known here. */
static int compare_digests(const struct pier_digests *digests, struct pier_range chunk,
			   uint32_t source, uint32_t arrived)
{
	const struct pier_mr *mr = pier_mr_beneath(digests->mr);
	const struct pier_mr_part *part;

	if (source == arrived)
		return 0;
	part = mr->parts ? pier_mr_find_part(mr, digests->offset + chunk.offset)
			 : pier_mr_part_at(mr, 0);
	return pier_fail(EBADMSG,
			 "chunk [%" PRIu64 ", +%" PRIu64
			 ") through %s: the digest of its source is %08" PRIx32
			 ", and that of the bytes that arrived is %08" PRIx32
			 " (CRC-32C; path %s, mapping %s)",
			 chunk.offset, chunk.length, mr->pd->device->name, source,
			 arrived, pier_path_name(part->path),
			 pier_mapping_name(part->mapping));
}

int pier_digest_arrived(const struct pier_digests *digests, struct pier_range chunk,
			uint32_t source)
{
	uint32_t arrived = 0;
	int error = 0;

	if (digests->direct)
		error = pier_flush_for_device(digests->mr, digests->offset + chunk.offset,
					      chunk.length, false);
	if (!error)
		error = digest_memory(digests, chunk, &arrived);
	return error ? error : compare_digests(digests, chunk, source, arrived);
}

int pier_digest_judge(const struct pier_digests *digests, const struct pier_check *check,
		      bool reads)
{
	uint32_t again = digest_of(digests->memory + place_of_check(digests, check),
				   (size_t)check->range.length);

	return reads ? pier_digest_arrived(digests, check->range, again)
		     : compare_digests(digests, check->range, check->source, again);
}
