/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_DEVICE_H
#define PIER_PY_DEVICE_H

#include "threads.h"

/** pier.Device */
struct pier_py_device {
	PyObject ob_base;
	struct pier_py_use use;
	struct pier_device *device;
};

/** pier.ProtectionDomain */
struct pier_py_pd {
	PyObject ob_base;
	struct pier_py_use use;
	struct pier_pd *pd;
	struct pier_py_device *device;
	bool owns_device; /* opened by the constructor, and closed with the domain */
	/* NULL until the first registration that is cached. */
	_Atomic(struct pier_mr_cache *) caches[PIER_POLICY_BOUNCE + 1];
};

extern PyTypeObject *pier_py_pd_type;

/**
 * Use the protection domain that a constructor was given.
 *
 * Returns it, borrowed, with a user (pier_py_use_end(&pd->use)); NULL with TypeError, or
 * ValueError if it is closed.
 */
struct pier_py_pd *pier_py_pd_begin(PyObject *pd);

/**
 * Return the registration cache of an open domain for a policy. The domain owns it. NULL:
 * raised.
 */
struct pier_mr_cache *pier_py_pd_cache(struct pier_py_pd *pd, enum pier_policy policy);

#endif
