/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>
#include <sys/random.h>

#include <sodium.h>

#include "soft.h"

/*
 * How two queue pairs make sure of each other before a frame is read. Each has
 * a secret that travels in its endpoint, so only its peer knows it.
 *
 *	caller: hello      who calls whom, and a nonce
 *	listener: nonce, MAC(secret of the listener, transcript)
 *	caller: MAC(secret of the listener, transcript),
 *		MAC(secret of the caller, transcript)
 *	listener: MAC(secret of the listener, transcript)
 *
 * On one host the caller's MACs come with an fd, if there is one to be had: memory for
 * both to share. Whether the listener takes it is part of its last MAC.
 *
 * The transcript is the hash of hello and the listener's nonce. A listener may
 * not know the secret of the caller yet; it checks that MAC when its queue pair
 * goes to RTR.
 */

static const uint8_t magic[8] = { 'p', 'i', 'e', 'r', 's', 'o', 'f', 1 };

bool pier_soft_random(void *ret_bytes, size_t length)
{
	return getrandom(ret_bytes, length, 0) == (ssize_t)length;
}

void pier_soft_pack_hello(const struct soft_hello *hello, uint8_t *ret_bytes)
{
	uint32_t from = htole32(hello->from_qpn), to = htole32(hello->to_qpn);

	memcpy(ret_bytes, magic, 8);
	memcpy(ret_bytes + 8, hello->nonce, 32);
	memcpy(ret_bytes + 40, hello->from.raw, 16);
	memcpy(ret_bytes + 56, hello->to.raw, 16);
	memcpy(ret_bytes + 72, &from, 4);
	memcpy(ret_bytes + 76, &to, 4);
}

bool pier_soft_unpack_hello(const uint8_t *bytes, struct soft_hello *ret_hello)
{
	if (memcmp(bytes, magic, 8) != 0)
		return false;
	memcpy(ret_hello->nonce, bytes + 8, 32);
	memcpy(ret_hello->from.raw, bytes + 40, 16);
	memcpy(ret_hello->to.raw, bytes + 56, 16);
	memcpy(&ret_hello->from_qpn, bytes + 72, 4);
	memcpy(&ret_hello->to_qpn, bytes + 76, 4);
	ret_hello->from_qpn = le32toh(ret_hello->from_qpn);
	ret_hello->to_qpn = le32toh(ret_hello->to_qpn);
	return true;
}

void pier_soft_hash_transcript(const uint8_t *hello, const uint8_t *nonce,
			       uint8_t *ret_transcript)
{
	uint8_t all[SOFT_HELLO_SIZE + 32];

	memcpy(all, hello, SOFT_HELLO_SIZE);
	memcpy(all + SOFT_HELLO_SIZE, nonce, 32);
	crypto_generichash(ret_transcript, SOFT_MAC_SIZE, all, sizeof(all), NULL, 0);
}

/* The role keeps one side from handing the other its own proof back. */
void pier_soft_prove(const uint8_t *secret, enum soft_role role,
		     const uint8_t *transcript, uint8_t *ret_mac)
{
	uint8_t message[SOFT_MAC_SIZE + 1];

	_Static_assert(SOFT_SECRET_SIZE >= crypto_generichash_KEYBYTES_MIN,
		       "the secret is the key as it is");
	memcpy(message, transcript, SOFT_MAC_SIZE);
	message[SOFT_MAC_SIZE] = (uint8_t)role;
	crypto_generichash(ret_mac, SOFT_MAC_SIZE, message, sizeof(message), secret,
			   SOFT_SECRET_SIZE);
}

bool pier_soft_proves(const uint8_t *secret, enum soft_role role,
		      const uint8_t *transcript, const uint8_t *mac)
{
	uint8_t expected[SOFT_MAC_SIZE];

	pier_soft_prove(secret, role, transcript, expected);
	return sodium_memcmp(expected, mac, sizeof(expected)) == 0;
}
