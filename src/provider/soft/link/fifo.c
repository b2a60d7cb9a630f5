/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fifo.h"
#include "auth.h"
#include "core/environment.h"
#include "core/fd.h"
#include "link.h"
#include "provider/soft/engine.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/vector.h"
#include "socket.h"

/* The environment variable is for tests: "off" sends frames over the socket. */
static bool may_share_memory(void)
{
	return !pier_switched_off("PIER_SOFT_SHARED") &&
	       pier_soft_may_write(0, SOFT_SHARED_MEMORY_SIZE) &&
	       pier_soft_may_touch_holes();
}

/*
 * A random address below the stack; the kernel takes another one if it is in use. Nothing
 * else is there in other processes, or in this one after the memory was unmapped. See
 * grant.c.
 */
static void *choose_address(void)
{
	uint64_t random = 0;

	pier_soft_random(&random, sizeof(random));
	return (void *)(uintptr_t)(random % (uintptr_t)&random);
}

/* Consumes the fd. */
static struct soft_shared_memory *map_shared_memory(int fd)
{
	struct soft_shared_memory *memory = calloc(1, sizeof(*memory));
	void *mapping;

	if (!memory) {
		pier_close_fd(fd);
		return NULL;
	}
	mapping = mmap(choose_address(), SOFT_SHARED_MEMORY_SIZE, PROT_READ | PROT_WRITE,
		       MAP_SHARED, fd, 0);
	if (mapping == MAP_FAILED) {
		pier_close_fd(fd);
		free(memory);
		return NULL;
	}
	/* A forked child does not use the memory, and must not keep it alive. */
	madvise(mapping, SOFT_SHARED_MEMORY_SIZE, MADV_DONTFORK);
	atomic_init(&memory->users, 1);
	memory->fd = fd;
	memory->layout = mapping;
	return memory;
}

struct soft_shared_memory *pier_soft_create_shared_memory(void)
{
	int fd;

	if (!may_share_memory())
		return NULL;
	fd = memfd_create("pier-soft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return NULL;
	if (!pier_soft_is_spare(fd) || ftruncate(fd, SOFT_SHARED_MEMORY_SIZE) < 0 ||
	    fcntl(fd, F_ADD_SEALS, SOFT_FINAL_SEALS) < 0) {
		pier_close_fd(fd);
		return NULL;
	}
	return map_shared_memory(fd);
}

struct soft_shared_memory *pier_soft_adopt_shared_memory(int borrowed)
{
	struct stat status;
	int fd;

	if (!may_share_memory() || !pier_soft_is_fixed(borrowed) ||
	    fstat(borrowed, &status) < 0 || status.st_size != SOFT_SHARED_MEMORY_SIZE)
		return NULL;
	fd = fcntl(borrowed, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && !pier_soft_is_spare(fd))
		fd = pier_close_fd(fd);
	return fd < 0 ? NULL : map_shared_memory(fd);
}

void pier_soft_release_shared_memory(struct soft_shared_memory *memory)
{
	if (!memory || atomic_fetch_sub(&memory->users, 1) > 1)
		return;
	munmap(memory->layout, SOFT_SHARED_MEMORY_SIZE);
	pier_close_fd(memory->fd);
	free(memory);
}

/*
 * The engine polls the FIFOs with recent activity: that costs no system call, and for a
 * quiet FIFO no cache miss. For all other FIFOs the flags in the shared memory say that
 * this end sleeps, and the peer sends a byte over the socket. So an idle link adds
 * nothing to the cost of a poll.
 */

enum {
	MAX_POLLED = 64,
	/* How long the thread goes on polling before it sleeps. */
	SPIN_NANOSECONDS = 20000
};

/* Whether there is something that the link does not know yet. */
static bool find_fifo_activity(struct soft_link *link)
{
	const struct soft_fifo *fifo = link->fifo;
	bool bytes = !link->readable && atomic_load(&fifo->in->head) != fifo->taken;
	bool room = !link->writable &&
		    fifo->put - atomic_load(&fifo->out->tail) != SOFT_FIFO_SIZE;

	link->readable |= bytes;
	link->writable |= room;
	return bytes || room;
}

void pier_soft_wake_peer(struct soft_link *link, _Atomic uint32_t *sleeps)
{
	/* Read before it is written: the cache line mostly stays where it is. */
	if (atomic_load(sleeps) && atomic_exchange(sleeps, 0))
		pier_soft_send_wake(link);
}

void pier_soft_stop_polling(struct soft_link *link)
{
	struct soft_engine *engine = soft_engine_of(link);
	struct soft_fifo *fifo = link->fifo;

	pier_list_remove(&fifo->polled);
	engine->polled_count -= fifo->is_polled;
	fifo->is_polled = false;
}

static void stop_polling_oldest(struct soft_engine *engine)
{
	struct soft_fifo *oldest = NULL;

	pier_list_for_each(struct soft_fifo, fifo, &engine->polled, polled) {
		if (!oldest || fifo->last_active < oldest->last_active)
			oldest = fifo;
	}
	assert(oldest);
	/* If there is something in it, it sleeps after its turn. */
	if (!pier_soft_sleep_on_fifo(oldest->link))
		pier_soft_activate(&oldest->link->end->work);
}

void pier_soft_start_polling(struct soft_link *link)
{
	struct soft_engine *engine = soft_engine_of(link);
	struct soft_fifo *fifo = link->fifo;

	fifo->last_active = engine->now;
	if (fifo->is_polled)
		return;
	if (engine->polled_count >= MAX_POLLED)
		stop_polling_oldest(engine);
	atomic_store_explicit(&fifo->in->reader_sleeps, 0, memory_order_relaxed);
	atomic_store_explicit(&fifo->out->writer_sleeps, 0, memory_order_relaxed);
	pier_list_append(&engine->polled, &fifo->polled);
	fifo->is_polled = true;
	engine->polled_count++;
}

/* pier_soft_fifo_send() explains why no wake-up is lost. */
bool pier_soft_sleep_on_fifo(struct soft_link *link)
{
	struct soft_fifo *fifo = link->fifo;

	atomic_store(&fifo->in->reader_sleeps, 1);
	if (!link->writable)
		atomic_store(&fifo->out->writer_sleeps, 1);
	if (find_fifo_activity(link)) {
		atomic_store_explicit(&fifo->in->reader_sleeps, 0, memory_order_relaxed);
		atomic_store_explicit(&fifo->out->writer_sleeps, 0, memory_order_relaxed);
		return false;
	}
	pier_soft_stop_polling(link);
	return true;
}

bool pier_soft_sleep_on_fifos(struct soft_engine *engine)
{
	bool quiet = true;

	pier_list_for_each_safe(struct soft_fifo, fifo, next, &engine->polled, polled) {
		if (!pier_soft_sleep_on_fifo(fifo->link)) {
			pier_soft_activate(&fifo->link->end->work);
			quiet = false;
		}
	}
	return quiet;
}

void pier_soft_poll_fifos(struct soft_engine *engine, uint64_t now)
{
	pier_list_for_each(struct soft_fifo, fifo, &engine->polled, polled) {
		if (!find_fifo_activity(fifo->link))
			continue;
		fifo->last_active = now;
		engine->spin_until = now + SPIN_NANOSECONDS;
		pier_soft_activate(&fifo->link->end->work);
	}
}

enum {
	/* The other end works on one part while this one copies the next. */
	COPY_BYTES = SOFT_FIFO_SIZE / 3
};

struct soft_fifo *pier_soft_create_fifo(struct soft_shared_memory *memory, int out,
					int in)
{
	struct soft_fifo *fifo = memory ? calloc(1, sizeof(*fifo)) : NULL;

	if (!fifo) {
		pier_soft_release_shared_memory(memory);
		return NULL;
	}
	fifo->memory = memory;
	fifo->out = &memory->layout->directions[out];
	fifo->in = &memory->layout->directions[in];
	pier_list_init(&fifo->polled);
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		pier_list_init(&fifo->given[i].of_mr);
	return fifo;
}

void pier_soft_free_fifo(struct soft_fifo *fifo)
{
	if (!fifo)
		return;
	for (int i = 0; i < fifo->fd_count; i++)
		pier_soft_close_foreign(fifo->fds[i]);
	pier_soft_release_shared_memory(fifo->memory);
	free(fifo);
}

/* The bytes of a FIFO from `position` on, up to its end. */
static struct soft_extent fifo_extent(const struct soft_fifo *fifo,
				      const struct soft_direction *half,
				      uint64_t position, size_t length)
{
	struct soft_fifo_layout *shared = fifo->memory->layout;
	uint64_t in_fifo = position % SOFT_FIFO_SIZE;
	uint64_t offset = SOFT_FIFOS_OFFSET + in_fifo +
			  (uint64_t)(half - shared->directions) * SOFT_FIFO_SIZE;

	return (struct soft_extent){
		.memory = (char *)shared + offset,
		.fd = fifo->memory->fd,
		.offset = offset,
		.length = length < SOFT_FIFO_SIZE - in_fifo ? length
							    : SOFT_FIFO_SIZE - in_fifo,
	};
}

/*
 * -1 with EFAULT: memory of the vector has vanished. A send copies everything or
 * nothing, as a packet of a socket, so that no header is sent without its payload. A
 * receive delivers everything before the gap.
 */
static ssize_t copy_through_fifo(struct soft_fifo *fifo,
				 const struct soft_direction *half, uint64_t position,
				 size_t length, struct soft_vector *vector)
{
	size_t done = 0;

	while (done < length && vector->first < vector->count) {
		struct soft_extent extent = fifo_extent(fifo, half, position + done,
							length - done);
		ssize_t copied = pier_soft_copy(vector, &extent);
		bool gap = copied < (ssize_t)extent.length &&
			   vector->first < vector->count;

		if (copied > 0)
			done += (size_t)copied;
		if (gap && (!vector->writes || done == 0)) {
			errno = EFAULT;
			return -1;
		}
		if (gap)
			break;
	}
	return (ssize_t)done;
}

static ssize_t copy_bracketed(struct soft_fifo *fifo, const struct soft_direction *half,
			      uint64_t position, size_t length,
			      struct soft_vector *vector)
{
	ssize_t copied;

	pier_soft_vector_sync(vector, DMA_BUF_SYNC_START);
	copied = copy_through_fifo(fifo, half, position, length, vector);
	pier_soft_vector_sync(vector, DMA_BUF_SYNC_END);
	return copied;
}

/*
 * Order, by the memory model of C11 (5.1.2.4, 7.17.3). Each position has one writer.
 *
 * Bytes: the store of `head` releases the bytes before it, and the reader's load of
 * `head` acquires them before it copies. The reader's copies out of the FIFO are before
 * its store of `tail` (release), and the writer loads `tail` (acquire) before it
 * overwrites them. Copies by a system call are made by the same thread in between.
 *
 * No wake-up is lost. The writer publishes its position and then reads whether the
 * reader sleeps. The reader sets that it sleeps and then reads the position
 * (pier_soft_sleep_on_fifo()). All four are sequentially consistent, so they have one
 * total order, in which one of the two reads comes after the other's store: acquire and
 * release alone would allow both to read the old value. A flag that is cleared late
 * (relaxed) costs at most a wake-up too many. The byte on the socket stays there until
 * it is read, and raises an event at the reader, which watches that socket.
 */
ssize_t pier_soft_fifo_send(struct soft_link *link, struct soft_vector *vector)
{
	struct soft_fifo *fifo = link->fifo;
	uint64_t used = fifo->put -
			atomic_load_explicit(&fifo->out->tail, memory_order_acquire);
	ssize_t sent;

	if (used >= SOFT_FIFO_SIZE) {
		errno = used == SOFT_FIFO_SIZE ? EAGAIN : EPROTO;
		return -1;
	}
	used = SOFT_FIFO_SIZE - used;
	sent = copy_bracketed(fifo, fifo->out, fifo->put,
			      used < COPY_BYTES ? used : COPY_BYTES, vector);
	if (sent > 0) {
		fifo->put += (uint64_t)sent;
		atomic_store(&fifo->out->head, fifo->put);
		pier_soft_wake_peer(link, &fifo->out->reader_sleeps);
	}
	return sent;
}

/* After a hang-up everything that the peer sent is in the FIFO already. */
static ssize_t receive_nothing(const struct soft_link *link)
{
	if (link->hung_up)
		return 0;
	errno = EAGAIN;
	return -1;
}

/* The same for a writer that waits for room: pier_soft_fifo_send(). */
ssize_t pier_soft_fifo_receive(struct soft_link *link, struct soft_vector *vector)
{
	struct soft_fifo *fifo = link->fifo;
	uint64_t there = atomic_load_explicit(&fifo->in->head, memory_order_acquire) -
			 fifo->taken;
	ssize_t received;

	if (there == 0)
		return receive_nothing(link);
	if (there > SOFT_FIFO_SIZE) {
		errno = EPROTO;
		return -1;
	}
	received = copy_bracketed(fifo, fifo->in, fifo->taken,
				  there < COPY_BYTES ? there : COPY_BYTES, vector);
	if (received > 0) {
		fifo->taken += (uint64_t)received;
		atomic_store(&fifo->in->tail, fifo->taken);
		pier_soft_wake_peer(link, &fifo->in->writer_sleeps);
	}
	return received;
}
