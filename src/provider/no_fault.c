/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include "core/error.h"
#include "provider.h"

/* In place of fault/, for a build that leaves it out. */

int pier_fault_open(const struct pier_provider *beneath, struct ibv_device *device,
		    const char *plan, size_t length,
		    const struct pier_provider **ret_provider,
		    struct ibv_context **ret_context)
{
	(void)beneath;
	(void)device;
	(void)plan;
	(void)length;
	(void)ret_provider;
	(void)ret_context;
	return pier_fail(ENODEV, "this build has no plans of faults: it was configured "
				 "with -Dfault=disabled");
}

void pier_fault_opened(struct ibv_context *context)
{
	(void)context;
}
