/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_HOT_ALIAS_H
#define PIER_CORE_HOT_ALIAS_H

#include <pier/hot.h>

/* Give a public function the second name by which <pier/inline.h> calls it. */
#define PIER_HOT_ALIAS(name)                           \
	extern __typeof__(pier_##name) pier_hot_##name \
		__attribute__((__alias__("pier_" #name)))

#endif
