/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>

#include <pier/element.h>

#include "memory/mr.h"
#include "util/error.h"

static int check_element(const struct pier_mr *mr, uint64_t addr, size_t length)
{
	if (length > UINT32_MAX)
		return pier_fail(EMSGSIZE, "element of %zu bytes: 32 bits is the most",
				 length);
	if (!pier_mr_encloses(mr, addr, length))
		return pier_fail(ERANGE,
				 "element [0x%" PRIx64 ", +%zu) leaves the region "
				 "[0x%" PRIx64 ", +%zu)",
				 addr, length, mr->iova, mr->length);
	return 0;
}

int pier_gather(const struct pier_mr *mr, uint64_t addr, size_t length,
		struct pier_gather *ret_element)
{
	int error = check_element(mr, addr, length);

	if (!error)
		*ret_element = pier_gather_unchecked(mr, addr, (uint32_t)length);
	return error;
}

int pier_scatter(const struct pier_mr *mr, uint64_t addr, size_t length,
		 struct pier_scatter *ret_element)
{
	int error = check_element(mr, addr, length);

	if (error)
		return error;
	if (!(mr->access & PIER_ACCESS_LOCAL_WRITE))
		return pier_fail(EACCES,
				 "scatter element: the region was registered without "
				 "LOCAL_WRITE (access 0x%x)",
				 (unsigned int)mr->access);
	*ret_element = pier_scatter_unchecked(mr, addr, (uint32_t)length);
	return 0;
}

struct pier_gather pier_gather_unchecked(const struct pier_mr *mr, uint64_t addr,
					 uint32_t length)
{
	return (struct pier_gather){ .addr = addr,
				     .length = length,
				     .lkey = mr->mr->lkey };
}

struct pier_scatter pier_scatter_unchecked(const struct pier_mr *mr, uint64_t addr,
					   uint32_t length)
{
	return (struct pier_scatter){ .addr = addr,
				      .length = length,
				      .lkey = mr->mr->lkey };
}
