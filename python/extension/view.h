/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PY_VIEW_H
#define PIER_PY_VIEW_H

#include "buffer.h"

#endif
