/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stddef.h>

#include "libcrypto.h"
#include "core/error.h"

/* libcrypto, opened instead of linked (-Dlibcrypto=opened). */

struct pier_libcrypto pier_crypto;

#define DESCRIBE_SYMBOL(name) { #name, (void **)&pier_crypto.name },
static const struct {
	const char *name;
	void **pointer;
} symbols[] = { PIER_LIBCRYPTO_FUNCTIONS(DESCRIBE_SYMBOL) };

int pier_open_libcrypto(void)
{
	void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return pier_fail(
			ELIBACC,
			"soft0 needs OpenSSL 3: %s: install it (Debian: libssl3)",
			dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*symbols[i].pointer = dlsym(library, symbols[i].name);
		if (!*symbols[i].pointer) {
			dlclose(library);
			return pier_fail(
				ELIBACC,
				"soft0 needs OpenSSL 3: libcrypto.so.3 has no %s",
				symbols[i].name);
		}
	}
	return 0;
}
