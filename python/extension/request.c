/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "region.h"
#include "request.h"

void pier_py_local_free(struct pier_py_local *local)
{
	if (local->list != local->few)
		free(local->list);
	local->list = NULL;
	pier_py_regions_release(pier_py_local_take_regions(local));
}

/* Takes over the user of the region; one for each region that follows another. */
static int keep_region(struct pier_py_local *local, struct pier_py_region *region)
{
	Py_ssize_t count;

	if (!local->regions)
		local->regions = PyList_New(0);
	count = local->regions ? PyList_Size(local->regions) : 0;
	if (count > 0 &&
	    PyList_GetItem(local->regions, count - 1) == (PyObject *)region) {
		pier_py_use_end(&region->use);
		return 0;
	}
	if (local->regions && PyList_Append(local->regions, (PyObject *)region) == 0)
		return 0;
	pier_py_use_end(&region->use);
	return -1;
}

static int reserve(struct pier_py_local *local, uint32_t more)
{
	uint32_t capacity = local->count + more;
	struct pier_gather *list;

	if (capacity <= local->capacity)
		return 0;
	if (capacity < 2 * local->capacity)
		capacity = 2 * local->capacity;
	list = local->list == local->few ? NULL : local->list;
	list = reallocarray(list, capacity, sizeof(*list));
	if (!list) {
		PyErr_NoMemory();
		return -1;
	}
	if (local->list == local->few)
		memcpy(list, local->few, local->count * sizeof(*list));
	local->list = list;
	local->capacity = capacity;
	return 0;
}

/* Behind those that are there, if there is room for so many. */
static int list_elements(struct pier_py_local *local, const struct pier_mr *mr,
			 struct pier_py_range range, bool scatter, uint32_t *ret_count)
{
	struct pier_gather *list = local->list + local->count;
	uint64_t addr = pier_mr_iova(mr) + range.offset;
	uint32_t room = local->capacity - local->count;

	return scatter ? pier_mr_scatter_list(mr, addr, range.length,
					      (struct pier_scatter *)list, room,
					      ret_count)
		       : pier_mr_gather_list(mr, addr, range.length, list, room,
					     ret_count);
}

static int add_elements(struct pier_py_local *local, const struct pier_mr *mr,
			struct pier_py_range range, bool scatter)
{
	uint32_t count = 0;
	int error = list_elements(local, mr, range, scatter, &count);

	if (error == -ENOSPC) {
		if (reserve(local, count) < 0)
			return -1;
		error = list_elements(local, mr, range, scatter, &count);
	}
	if (pier_py_check(error))
		return -1;
	local->count += count;
	local->length += range.length;
	return 0;
}

static int add_part(struct pier_py_local *local, PyObject *object, bool scatter)
{
	struct pier_py_range range;
	struct pier_py_region *region = pier_py_local_begin(object, &range);

	if (!region || keep_region(local, region) < 0)
		return -1;
	return add_elements(local, region->mr, range, scatter);
}

void pier_py_local_init(struct pier_py_local *local)
{
	*local = (struct pier_py_local){ .capacity = PIER_PY_FEW_ELEMENTS };
	local->list = local->few;
}

int pier_py_local_add(struct pier_py_local *local, PyObject *object, bool scatter)
{
	Py_ssize_t count;

	if (object == Py_None)
		return 0;
	if (!PyTuple_Check(object) && !PyList_Check(object))
		return add_part(local, object, scatter);
	count = PySequence_Size(object);
	for (Py_ssize_t i = 0; i < count; i++) {
		PyObject *item = PySequence_GetItem(object, i);
		int result = item ? add_part(local, item, scatter) : -1;

		Py_XDECREF(item);
		if (result < 0)
			return -1;
	}
	return 0;
}

static const char *const opcode_names[] = {
	[PIER_OP_SEND] = "send",
	[PIER_OP_WRITE] = "write",
	[PIER_OP_READ] = "read",
	[PIER_OP_RECV] = "recv",
	[PIER_OP_RECV_WRITE_IMM] = "recv_write",
	[PIER_OP_BIND] = "bind",
	[PIER_OP_COMPARE_SWAP] = "compare_swap",
	[PIER_OP_FETCH_ADD] = "fetch_add",
	[PIER_OP_KEEPALIVE] = "keepalive",
};

static const char *opcode_name(enum pier_opcode opcode)
{
	size_t index = (size_t)opcode;

	if (index >= sizeof(opcode_names) / sizeof(opcode_names[0]) ||
	    !opcode_names[index])
		return "unknown";
	return opcode_names[index];
}

PyObject *pier_py_result_record(const struct pier_result *result)
{
	PyObject *immediate = result->has_immediate
				      ? PyLong_FromUnsignedLong(result->immediate)
				      : Py_NewRef(Py_None);

	return pier_py_record("Result", "(sIN)", opcode_name(result->opcode),
			      result->byte_length, immediate);
}
