/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_CHANNEL_ATTR_H
#define PIER_PY_CHANNEL_ATTR_H

#include "extension.h"

/**
 * Set attributes from the keywords of a constructor.
 *
 * keywords  a dict or NULL. Those that are attributes are removed from it
 * others    the names of the other parameters, between blanks: they remain
 *
 * Returns 0, or -1 with TypeError or ValueError.
 */
int pier_py_channel_attr_take(PyObject *keywords, const char *others,
			      struct pier_channel_attr *attr);

/** Make a ChannelAttributes. NULL: raised. */
PyObject *pier_py_channel_attr_record(const struct pier_channel_attr *attr);

#endif
