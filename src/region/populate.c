/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <pier/mr.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/page.h"
#include "core/thread.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14; glibc 2.35 */
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

enum {
	CHUNK = 16 << 20, /* a multiple of every page size but the largest */
	NODES = 1024,	  /* MAX_NUMNODES in linux/numa.h is 2^10 at most */
	WORD = 8 * sizeof(unsigned long),
};

struct work {
	char *start;
	size_t length;
	int advice;
	int node; /* where new pages go; -1: where the task's policy says */
	atomic_size_t next;
	atomic_int error;
};

/*
 * The first page tells whether the chunk was used before. Walking over pages that are
 * there takes a fifth of the time of allocating them.
 */
static bool is_populated(char *chunk)
{
	unsigned char resident = 0;

	return mincore(chunk, 1, &resident) == 0 && (resident & 1);
}

/* Take chunks until there are none. */
static void populate_chunks(struct work *work)
{
	size_t offset;

	while ((offset = atomic_fetch_add(&work->next, CHUNK)) < work->length) {
		size_t left = work->length - offset;
		char *chunk = work->start + offset;

		if (!is_populated(chunk) &&
		    madvise(chunk, left < CHUNK ? left : CHUNK, work->advice))
			atomic_store(&work->error, errno);
	}
}

/* New pages are on the node of the thread that touches them first: here the caller's. */
static void *run_populating(void *argument)
{
	struct work *work = argument;
	unsigned long nodes[NODES / WORD] = { 0 };

	if (work->node >= 0) {
		nodes[(size_t)work->node / WORD] = 1ul << (size_t)work->node % WORD;
		syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, (unsigned long)NODES);
	}
	populate_chunks(work);
	return NULL;
}

/* -1 if the caller has a policy of its own, which its threads inherit (copy_process()).
 */
static int find_node(void)
{
	int policy = MPOL_DEFAULT;
	unsigned int node;

	/* glibc has a function for SYS_getcpu from 2.29 on. */
	if (syscall(SYS_get_mempolicy, &policy, NULL, 0ul, NULL, 0ul) ||
	    policy != MPOL_DEFAULT || syscall(SYS_getcpu, NULL, &node, NULL) ||
	    node >= NODES)
		return -1;
	return (int)node;
}

/* As many as have something to do, and as there are processors for. */
static uint32_t limit_threads(uint32_t threads, size_t length)
{
	size_t chunks = length / CHUNK + (length % CHUNK != 0);
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
	    threads > (uint32_t)CPU_COUNT(&allowed))
		threads = (uint32_t)CPU_COUNT(&allowed);
	return threads < chunks ? threads : (uint32_t)chunks;
}

/* The caller works too. Fewer threads than wanted are slower, and no error. */
static void run_threads(struct work *work, uint32_t threads)
{
	pthread_t others[PIER_POPULATE_THREADS_MAX];
	uint32_t started = 0;

	while (started + 1 < threads &&
	       pier_start_thread(&others[started], "pier-populate", run_populating,
				 work) == 0)
		started++;
	populate_chunks(work);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(others[i], NULL);
}

int pier_memory_populate(void *addr, uint64_t length, uint32_t access, uint32_t threads)
{
	PIER_REFUSE_NULL(addr);
	/* ib_umem_get() takes writable pages for these: ib_access_writable(). */
	const int writes = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_WRITE |
			   PIER_ACCESS_REMOTE_ATOMIC | PIER_ACCESS_MW_BIND;
	uint64_t page = pier_host_page(), end;
	struct work work = {
		.advice = access & writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ,
	};
	int error;

	if (threads < 1 || threads > PIER_POPULATE_THREADS_MAX || length == 0 ||
	    !pier_add_u64((uintptr_t)addr, length, &end) || end > UINT64_MAX - page)
		return pier_fail(EINVAL,
				 "populating %zu bytes at %p with %u threads: 1 to %d",
				 length, addr, threads, PIER_POPULATE_THREADS_MAX);
	work.start = (char *)((uintptr_t)addr / page * page);
	work.length = (size_t)((end + page - 1) / page * page - (uintptr_t)work.start);
	work.node = find_node();
	run_threads(&work, limit_threads(threads, work.length));
	error = atomic_load(&work.error);
	/* EINVAL: the kernel is older than 5.14, or a special mapping (madvise(2)). */
	if (error)
		return pier_fail(error == EINVAL ? EOPNOTSUPP : error,
				 "populating %zu bytes at %p: madvise: %s", length, addr,
				 strerror(error));
	return 0;
}
