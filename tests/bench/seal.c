/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What libsodium alone does on one thread, which bounds a TCP link of soft0:
 *
 *	pier-seal SIZE COUNT	seals COUNT records of SIZE bytes, prints bytes per second
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sodium.h>

#define PROGRAM "pier-seal"
#include "bench.h"

int main(int argc, char **argv)
{
	crypto_secretstream_xchacha20poly1305_state state;
	uint8_t key[crypto_secretstream_xchacha20poly1305_KEYBYTES];
	uint8_t header[crypto_secretstream_xchacha20poly1305_HEADERBYTES];
	uint8_t *plain, *sealed;
	uint64_t count;
	size_t size;
	double start;

	if (argc != 3) {
		fprintf(stderr, "usage: pier-seal SIZE COUNT\n");
		return 2;
	}
	size = strtoull(argv[1], NULL, 0);
	count = strtoull(argv[2], NULL, 0);
	plain = calloc(1, size);
	sealed = malloc(size + crypto_secretstream_xchacha20poly1305_ABYTES);
	if (sodium_init() < 0 || !plain || !sealed)
		die("memory");
	crypto_secretstream_xchacha20poly1305_keygen(key);
	crypto_secretstream_xchacha20poly1305_init_push(&state, header, key);
	start = now();
	for (uint64_t i = 0; i < count; i++)
		crypto_secretstream_xchacha20poly1305_push(&state, sealed, NULL, plain,
							   size, NULL, 0, 0);
	printf("%.0f\n", (double)size * (double)count / (now() - start));
	free(plain);
	free(sealed);
	return 0;
}
