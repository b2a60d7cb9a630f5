/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PRELOAD_PRELOAD_H
#define PIER_PRELOAD_PRELOAD_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

/*
 * libpier-dmabuf.so: registers the GPU memory of any program of verbs as dma-bufs. Each
 * file's comment says what it does; docs/preload.md has the whole.
 */

/* What PIER_PRELOAD asks for. */
enum preload_mode {
	PRELOAD_ON,
	PRELOAD_OFF,	 /* every call goes straight to libibverbs */
	PRELOAD_PEERMEM, /* also answers for the files of nvidia-peermem */
};

enum preload_mode preload_mode(void);

/*
 * Whether a thread is inside pier, whose calls of libibverbs are not the program's. The
 * thread counts how deep it is.
 */
extern _Thread_local unsigned int preload_depth
	__attribute__((tls_model("initial-exec"), visibility("hidden")));

/*
 * Whether the driver of a GPU is loaded, or a backend of PIER_BACKEND_PATH may know
 * pointers: only then can an address be one of a GPU. Loads nothing. Never with
 * PIER_PRELOAD=off.
 *
 * count         how many libraries the process has loaded in its life
 * ret_searched  becomes the count, or PRELOAD_FOUND: there is no need to search again
 */
bool preload_search_driver(unsigned long long count, atomic_ullong *ret_searched);
#define PRELOAD_FOUND ULLONG_MAX

/* A registration that the program asks for. */
struct preload_request {
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint64_t iova;
	int access;
};

enum preload_outcome {
	PRELOAD_HOST,	/* not memory of a GPU: libibverbs registers it */
	PRELOAD_DONE,	/* registered as a dma-buf */
	PRELOAD_FAILED, /* memory of a GPU that pier cannot register; the sentence is in
			 * pier_error_message() */
};

/* How memory was registered, for the report. */
struct preload_facts {
	char kind[96]; /* "device memory, cuda:0" */
	const char *path, *mapping;
};

/*
 * Register memory of a GPU. On PRELOAD_DONE the region has the program's addresses.
 *
 * ret_facts  or NULL: nobody reports them
 */
enum preload_outcome preload_register(const struct preload_request *request,
				      struct ibv_mr **ret_mr,
				      struct preload_facts *ret_facts);

/* Whether preload_register() made a region. */
bool preload_owns(const struct ibv_mr *mr);

/*
 * Deregister a region that preload_register() made. 0 or a positive errno, which leaves
 * it registered.
 *
 * ret_owned  false: it is another one, and nothing was done
 */
int preload_deregister(struct ibv_mr *mr, bool *ret_owned);

/*
 * Forget a protection domain, or all of a context, before it is gone: its address may be
 * another's soon.
 */
void preload_forget_pd(const struct ibv_pd *pd);
void preload_forget_context(const struct ibv_context *context);

/* PIER_DMABUF_REPORT is set. */
bool preload_reports(void);

/*
 * Add a line to the report.
 *
 * error     0, or the errno that the program gets
 * sentence  pier's reason why it is no dma-buf, or ""
 */
void preload_report(const struct preload_request *request,
		    const struct preload_facts *facts, uint64_t nanoseconds, int error,
		    const char *sentence);

/* Tell the user why memory of a GPU is no dma-buf, once for each cause. */
void preload_complain(const char *outcome, const char *sentence);

#endif
