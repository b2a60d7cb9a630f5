/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An out-of-tree backend in a shared object. It divides an arena of shared memory
 * into slots of one size.
 *
 *	cc -shared -fPIC $(pkg-config --cflags pier) -o arena.so backend_arena.c
 *	PIER_BACKEND_PATH=$PWD pier info
 *
 * Specs can name "arena" like a built-in backend. The object does not link libpier: the
 * library passes it the functions that it needs.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/backend.h>

enum {
	SLOTS = 16,
	SLOT_SIZE = 256 << 10, /* a multiple of every host page size */
};

static struct {
	pthread_mutex_t lock;
	char *start; /* NULL before the first allocation */
	int fd;
	int used[SLOTS];
} arena = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

/* The library; set before it calls any other function here. */
static const struct pier_backend_host *host;

static int arena_probe(char *ret_detail, size_t size)
{
	snprintf(ret_detail, size, "%d slots of %d KiB", SLOTS, SLOT_SIZE >> 10);
	return 0;
}

/* With the lock held. */
static int create_arena(void)
{
	void *start = MAP_FAILED;
	int fd = memfd_create("arena", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, SLOTS * SLOT_SIZE) == 0)
		start = mmap(NULL, SLOTS * SLOT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
			     fd, 0);
	if (start == MAP_FAILED) {
		int error = errno;

		if (fd >= 0)
			close(fd);
		return host->fail(error, "creating the arena: %s", strerror(error));
	}
	arena.fd = fd;
	arena.start = start;
	return 0;
}

static void describe_slot(int slot, struct pier_memory *ret_memory)
{
	char *start = arena.start + (size_t)slot * SLOT_SIZE;

	ret_memory->address = (uint64_t)(uintptr_t)start;
	ret_memory->length = SLOT_SIZE;
	ret_memory->cpu = start;
	ret_memory->state = &arena.used[slot];
}

static int take_slot(struct pier_memory *ret_memory)
{
	for (int slot = 0; slot < SLOTS; slot++) {
		if (!arena.used[slot]) {
			arena.used[slot] = 1;
			describe_slot(slot, ret_memory);
			memset(ret_memory->cpu, 0, SLOT_SIZE);
			return 0;
		}
	}
	return host->fail(ENOMEM, "all %d slots of the arena are in use", SLOTS);
}

static int arena_alloc(const char *unit, uint64_t length, struct pier_memory *ret_memory)
{
	int result = 0;

	if (unit)
		return host->fail(EINVAL, "arena has no units, but \"%s\" was asked for",
				  unit);
	if (length > SLOT_SIZE)
		return host->fail(E2BIG, "a slot of the arena has %d bytes", SLOT_SIZE);
	pthread_mutex_lock(&arena.lock);
	if (!arena.start)
		result = create_arena();
	if (result == 0)
		result = take_slot(ret_memory);
	pthread_mutex_unlock(&arena.lock);
	return result;
}

static void arena_free(struct pier_memory *memory)
{
	pthread_mutex_lock(&arena.lock);
	*(int *)memory->state = 0;
	pthread_mutex_unlock(&arena.lock);
}

static int arena_find(uint64_t address, uint64_t length, struct pier_memory *ret_memory)
{
	int result = -ENOENT;
	uint64_t start, slot;

	(void)length;
	pthread_mutex_lock(&arena.lock);
	start = (uint64_t)(uintptr_t)arena.start;
	slot = (address - start) / SLOT_SIZE; /* wraps to a huge value below the start */
	if (arena.start && slot < SLOTS && arena.used[slot]) {
		describe_slot((int)slot, ret_memory);
		result = 0;
	}
	pthread_mutex_unlock(&arena.lock);
	return result;
}

static int arena_export(const struct pier_memory *memory,
			const struct pier_backend_request *request,
			struct pier_backend_export *ret_export)
{
	int fd = fcntl(arena.fd, F_DUPFD_CLOEXEC, 0);

	(void)memory;
	if (fd < 0)
		return host->fail(errno, "duplicating the arena's fd: %s",
				  strerror(errno));
	ret_export->fd = fd;
	ret_export->offset = request->address - (uint64_t)(uintptr_t)arena.start;
	return 0;
}

static void arena_close_export(struct pier_backend_export *dmabuf)
{
	close(dmabuf->fd);
}

static const struct pier_backend arena_backend = {
	.abi = PIER_BACKEND_ABI,
	.size = sizeof(struct pier_backend),
	.name = "arena",
	.description = "slots of one memfd (example)",
	.memfd = true,
	.probe = arena_probe,
	.alloc = arena_alloc,
	.free = arena_free,
	.find = arena_find,
	.export_range = arena_export,
	.close_export = arena_close_export,
};

const struct pier_backend *pier_backend_get(const struct pier_backend_host *library)
{
	host = library;
	return &arena_backend;
}
