/* SPDX-License-Identifier: BSD-3-Clause */
/* A backend that refuses this library. */
#include <errno.h>

#include <pier/backend.h>

const struct pier_backend *pier_backend_get(const struct pier_backend_host *host)
{
	if (host->abi != PIER_BACKEND_ABI || !PIER_BACKEND_HAS(host, log))
		return NULL;
	host->log(PIER_LOG_INFO, "refuses was asked by version %u", host->version);
	host->fail(ENOTSUP, "it refuses version %u", host->version);
	return NULL;
}
