/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A backend for tests. Like device memory, its memory is not mapped for the CPU and
 * must be copied to and from. Its units:
 *
 *	flipN        the Nth copy from a buffer has a wrong bit
 *	spoilN       the Nth copy to a buffer has a wrong bit
 *	broken       copies fail
 *	sealed       the memory cannot be exported
 *	sealedflipN  the same, and as flipN
 *
 * FAULTY_ROT=N: at the first short copy from a buffer (of a header) after N others, a bit
 * of what follows (its chunk) changes there.
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/backend.h>

enum {
	PAGE = 65536,
	ROT_DISTANCE = 8192, /* a header takes a block of the stream */
};

struct state {
	int fd; /* exported to soft0 */
	uint8_t *pages;
	void *address;		  /* reserved, so that it is unique; not accessible */
	unsigned int flip, spoil; /* 0: never */
	unsigned int rot;
	atomic_bool rotten;
	bool broken, sealed;
	atomic_uint copies_from, copies_to;
};

static int faulty_probe(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "for tests");
	return 0;
}

static int parse_unit(const char *unit, struct state *state)
{
	char end;

	state->sealed = unit && strncmp(unit, "sealed", 6) == 0;
	if (state->sealed)
		unit += 6;
	if (!unit || (state->sealed && !unit[0]) ||
	    sscanf(unit, "flip%u%c", &state->flip, &end) == 1 ||
	    sscanf(unit, "spoil%u%c", &state->spoil, &end) == 1)
		return 0;
	state->broken = strcmp(unit, "broken") == 0;
	return state->broken ? 0 : pier_fail(EINVAL, "faulty has no unit '%s'", unit);
}

static int take_pages(struct state *state, uint64_t length)
{
	state->fd = memfd_create("faulty", MFD_CLOEXEC);
	if (state->fd < 0 || ftruncate(state->fd, (off_t)length) < 0)
		return -1;
	state->pages = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, state->fd,
			    0);
	state->address = mmap(NULL, length, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return state->pages == MAP_FAILED || state->address == MAP_FAILED ? -1 : 0;
}

static int alloc_memory(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	struct state *state = calloc(1, sizeof(*state));
	const char *rot = getenv("FAULTY_ROT");
	int error;

	if (!state)
		return pier_fail(ENOMEM, "out of memory");
	length = (length + PAGE - 1) / PAGE * PAGE;
	state->rot = rot ? (unsigned int)strtoul(rot, NULL, 10) : UINT_MAX;
	error = parse_unit(unit, state);
	if (!error && take_pages(state, length) < 0)
		error = pier_fail(errno, "faulty has no memory: %s", strerror(errno));
	if (error) {
		free(state);
		return error;
	}
	ret_memory->address = (uint64_t)(uintptr_t)state->address;
	ret_memory->length = length;
	ret_memory->cpu = NULL;
	ret_memory->state = state;
	return 0;
}

static void free_memory(struct pier_memory *memory)
{
	struct state *state = memory->state;

	munmap(state->pages, memory->length);
	munmap(state->address, memory->length);
	close(state->fd);
	free(state);
}

static int export_range(const struct pier_memory *memory,
			const struct pier_backend_request *request,
			struct pier_backend_export *ret_export)
{
	const struct state *state = memory->state;

	if (state->sealed)
		return pier_fail(EPERM, "faulty is sealed");
	ret_export->fd = fcntl(state->fd, F_DUPFD_CLOEXEC, 0);
	if (ret_export->fd < 0)
		return pier_fail(errno, "faulty cannot be exported: %s", strerror(errno));
	ret_export->offset = request->address - memory->address;
	return 0;
}

static void close_export(struct pier_backend_export *dmabuf)
{
	close(dmabuf->fd);
}

static uint8_t *memory_at(const struct pier_memory *memory, uint64_t offset)
{
	const struct state *state = memory->state;

	return state->pages + offset;
}

static int copy_to(const struct pier_memory *memory, uint64_t offset, const void *source,
		   uint64_t length)
{
	struct state *state = memory->state;

	if (state->broken)
		return pier_fail(EIO, "faulty memory is broken");
	memcpy(memory_at(memory, offset), source, length);
	if (atomic_fetch_add(&state->copies_to, 1) + 1 == state->spoil)
		memory_at(memory, offset)[length / 2] ^= 1;
	return 0;
}

static int copy_from(const struct pier_memory *memory, uint64_t offset, void *destination,
		     uint64_t length)
{
	struct state *state = memory->state;
	unsigned int copy = atomic_fetch_add(&state->copies_from, 1) + 1;

	if (state->broken)
		return pier_fail(EIO, "faulty memory is broken");
	if (copy > state->rot && length < ROT_DISTANCE &&
	    !atomic_exchange(&state->rotten, true))
		memory_at(memory, offset)[length + ROT_DISTANCE] ^= 1;
	memcpy(destination, memory_at(memory, offset), length);
	if (copy == state->flip)
		((uint8_t *)destination)[length - 1] ^= 0x80;
	return 0;
}

static const struct pier_backend table = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "faulty",
	.description = "memory that loses bits",
	.memfd = true,
	.probe = faulty_probe,
	.alloc = alloc_memory,
	.free = free_memory,
	.export_range = export_range,
	.close_export = close_export,
	.copy_to = copy_to,
	.copy_from = copy_from,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	(void)host;
	return &table;
}
