/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_MEMORY_H
#define PIER_PY_MEMORY_H

#include "extension.h"

/*
 * The memory of any Python object: a plain buffer, or an array of the host or of a GPU
 * that offers DLPack or the CUDA array interface. All zero: none.
 */
struct pier_py_memory {
	void *address; /* for a CPU or a GPU */
	size_t length;
	bool readonly;
	/* Of DLPack: the CPU reads the address; the items are in C order. */
	bool on_cpu, in_c_order;
	Py_buffer buffer; /* of objects with the buffer protocol, or all zero */
	PyObject *object; /* of objects with the CUDA array interface */
	/* Of DLPack: what deletes the tensor. */
	void (*delete_tensor)(void *tensor);
	void *tensor;
};

/**
 * Get the memory of an object, and keep it there.
 *
 * Returns 0, or -1 with TypeError (it has no memory), pier.Invalid (it is not dense),
 * pier.NotSupported (on a device of another kind), or an exception of the object.
 */
int pier_py_memory_get(PyObject *object, struct pier_py_memory *ret_memory);

/**
 * Make a bytes object of the name of a kind of memory: a str, or a torch.device, whose
 * "cpu" is "host".
 *
 * ret_name  a PyObject *: a new reference
 *
 * Returns 1, or 0 with TypeError or ValueError.
 */
int pier_py_memory_name(PyObject *memory, void *ret_name);

/** Release memory; again at any time. */
void pier_py_memory_release(struct pier_py_memory *memory);

/** For the garbage collector. */
int pier_py_memory_traverse(struct pier_py_memory *memory, visitproc visit, void *arg);

#endif
