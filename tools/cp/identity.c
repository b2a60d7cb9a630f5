/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "identity.h"
#include "wire.h"

/* As the contexts in digest.c. */
static const char identity_context[crypto_kdf_CONTEXTBYTES] = "cp-ident";

enum {
	BOOT_ID_SIZE = 36 /* a UUID as text: random(4) */
};

/* Identifies the running kernel, because inode numbers of two hosts may be equal. */
static bool read_boot_id(uint8_t *ret_id)
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd >= 0 ? read(fd, ret_id, BOOT_ID_SIZE) : -1;

	if (fd >= 0)
		close(fd);
	return length == BOOT_ID_SIZE;
}

bool identify_file(const struct stat *stat, const uint8_t *secret, uint8_t *ret_identity)
{
	uint8_t key[crypto_generichash_KEYBYTES], facts[BOOT_ID_SIZE + 16];

	memset(ret_identity, 0, CP_IDENTITY_SIZE);
	if (!read_boot_id(facts))
		return false;
	store_u64(facts + BOOT_ID_SIZE, stat->st_dev);
	store_u64(facts + BOOT_ID_SIZE + 8, stat->st_ino);
	crypto_kdf_derive_from_key(key, sizeof(key), 0, identity_context, secret);
	crypto_generichash(ret_identity, CP_IDENTITY_SIZE, facts, sizeof(facts), key,
			   sizeof(key));
	sodium_memzero(key, sizeof(key));
	return true;
}

bool is_identity_of(const uint8_t *identity, const struct stat *stat,
		    const uint8_t *secret)
{
	uint8_t here[CP_IDENTITY_SIZE];

	return identify_file(stat, secret, here) &&
	       sodium_memcmp(identity, here, sizeof(here)) == 0;
}
