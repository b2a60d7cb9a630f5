/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_UTIL_OBJECT_H
#define PIER_UTIL_OBJECT_H

#include <pier/object.h>

/* Every object counts itself when it is born and when it is gone. */
void pier_object_born(enum pier_object_kind kind);
void pier_object_gone(enum pier_object_kind kind);

#endif
