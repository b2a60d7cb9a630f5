/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_BUFFER_H
#define PIER_PY_BUFFER_H

#include "dlpack.h"
#include "memory.h"
#include "threads.h"

/** pier.Buffer */
struct pier_py_buffer {
	PyObject ob_base;
	/* Its views and exported Py_buffers are users; regions the library counts. */
	struct pier_py_use use;
	struct pier_buffer *buffer;
	struct pier_py_memory memory; /* that it wraps, or none */
	bool readonly;
	void *host;		     /* for the CPU; NULL: it cannot reach the memory */
	struct dlpack_device device; /* its type is 0 if DLPack has none for it */
	char backend[32];
};

/** pier.Dmabuf: an exported dma-buf; with an fd of -1 it is closed. */
struct pier_py_dmabuf {
	PyObject ob_base;
	struct pier_py_use use;
	struct pier_dmabuf dmabuf;
	struct pier_py_buffer *buffer;
};

extern PyTypeObject *pier_py_buffer_type;
extern PyTypeObject *pier_py_dmabuf_type;

/**
 * Return the pointer through which the CPU uses the memory of an open buffer. NULL with
 * BufferError: the CPU cannot reach it.
 */
void *pier_py_buffer_map(struct pier_py_buffer *buffer);

#endif
