/* SPDX-License-Identifier: BSD-3-Clause */
#include <pier/device.h>
#include <string.h>

#include "provider.h"

const struct pier_provider *const pier_providers[] = {
	&pier_verbs_provider,
#ifdef PIER_HAVE_SOFT
	&pier_soft_provider,
#endif
	NULL,
};

const char *pier_explain_missing_device(const char *name)
{
#ifndef PIER_HAVE_SOFT
	if (strcmp(name, PIER_SOFT_DEVICE) == 0)
		return "this build has no software NIC: it was configured with "
		       "-Dsoft=disabled";
#endif
	(void)name;
	return NULL;
}
