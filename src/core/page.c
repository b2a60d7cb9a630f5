/* SPDX-License-Identifier: BSD-3-Clause */
#include <unistd.h>

#include "page.h"
#include "checked.h"

bool pier_page_range(uint64_t address, uint64_t length, uint64_t page,
		     struct pier_page_range *ret_range)
{
	uint64_t base = address & ~(page - 1), end;

	if (length == 0 || !pier_add_u64(address, length, &end) ||
	    !pier_round_up_u64(end, page, &end))
		return false;
	*ret_range = (struct pier_page_range){
		.base = base,
		.length = end - base,
		.offset = address - base,
		.iova = address,
	};
	return true;
}

_Atomic(uint64_t) pier_known_page;

uint64_t pier_ask_host_page(void)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	atomic_store_explicit(&pier_known_page, page, memory_order_relaxed);
	return page;
}
