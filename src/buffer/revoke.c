/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdatomic.h>

#include "buffer.h"
#include "core/checked.h"

static _Atomic(pier_revoke_hook) on_revoke;

void pier_buffer_set_revoke_hook(pier_revoke_hook hook)
{
	atomic_store(&on_revoke, hook);
}

void pier_backend_revoke(uint64_t address, uint64_t length)
{
	pier_revoke_hook hook = atomic_load(&on_revoke);
	uint64_t end;

	if (!pier_add_u64(address, length, &end))
		end = UINT64_MAX;
	if (hook && length > 0)
		hook(address, end);
}
