/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_BACKEND_H
#define PIER_BACKENDS_BACKEND_H

#include <pier/backend.h>

/* The built-in backends; registry.c lists them. */
extern const struct pier_backend pier_host_backend;
extern const struct pier_backend pier_memfd_backend;
extern const struct pier_backend pier_udmabuf_backend;
extern const struct pier_backend pier_dma_heap_backend;
extern const struct pier_backend pier_dmabuf_backend;	  /* not in the registry */
extern const struct pier_backend pier_cuda_backend;	  /* with PIER_HAVE_CUDA */
extern const struct pier_backend pier_hip_backend;	  /* with PIER_HAVE_HIP */
extern const struct pier_backend pier_level_zero_backend; /* with PIER_HAVE_LEVEL_ZERO */

/* One entry of the registry: a backend, or why an object could not be loaded. */
struct pier_backend_entry {
	const struct pier_backend *backend; /* NULL: could not be loaded */
	const char *origin;		    /* path of the object; "": built in */
	const char *problem;		    /* why it could not be loaded */
};

/*
 * All entries, in order. The first call loads them; they stay until the process ends, and
 * registered backends follow. Any thread. Returns their number.
 */
size_t pier_backend_entries(const struct pier_backend_entry **ret_entries);

/* The backend of that name that could be loaded, or NULL. */
const struct pier_backend *pier_find_backend(const char *name, size_t name_length);

/* The function that pier_backend_revoke() calls, with the range [start, end). Set once.
 */
typedef void (*pier_revoke_hook)(uint64_t start, uint64_t end);
void pier_backend_set_revoke_hook(pier_revoke_hook hook);

/*
 * Make memory of the pages around [offset, offset + length) of a caller's dma-buf, or of
 * a memfd. The fd is duplicated. Undone by release() of the backend.
 *
 * ret_backend  pier_dmabuf_backend or pier_memfd_backend
 *
 * Errors: -EBADF; -EINVAL it is neither; -ERANGE the range leaves it; -EMFILE; -ENOMEM.
 */
int pier_wrap_fd(int fd, uint64_t offset, uint64_t length,
		 const struct pier_backend **ret_backend, struct pier_memory *ret_memory);

#endif
