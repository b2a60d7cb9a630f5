/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>
#include <sys/random.h>

#include <sodium.h>

#include "auth.h"
#include "provider/soft/limits.h"

/*
 * Two queue pairs authenticate each other before either reads a frame. Each has a secret
 * in its endpoint, so only its peer knows it.
 *
 *	caller: hello      who calls whom, and a nonce
 *	listener: nonce, MAC(secret of the listener, transcript)
 *	caller: MAC(secret of the listener, transcript),
 *		MAC(secret of the caller, transcript)
 *	listener: MAC(secret of the listener, transcript)
 *
 * On one host the caller's MACs come with the fd of memory for both to share, if it could
 * allocate some. The last MAC of the listener covers whether it uses that memory.
 *
 * The transcript is the hash of hello, the listener's nonce and whether the link is
 * sealed, so every MAC covers all three. The listener may not know the secret of
 * the caller yet: it checks that MAC when its queue pair goes to RTR.
 *
 * A link is sealed, that is encrypted and authenticated (seal.c), unless it is a Unix
 * socket between two processes of one user. The nonces of a sealed link are fresh X25519
 * public keys (RFC 7748). Its stream keys depend on both secrets, the transcript and the
 * X25519 result, so an endpoint that leaks later does not decrypt recorded traffic.
 *
 * Each end decides by what its own kernel reports about its socket, and hashes the
 * decision into the transcript. So a relay that is the peer's user for one end and
 *another user for the other cannot make either of them send plaintext: the MACs do not
 *match. A process of the same user can relay a plain link and read it, but that process
 *could also ptrace(2) this one.
 */

/* The last byte is the version of everything that follows on the stream. */
static const uint8_t magic[8] = { 'p', 'i', 'e', 'r', 's', 'o', 'f', 3 };

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

bool pier_soft_is_other_version(const uint8_t *bytes)
{
	return memcmp(bytes, magic, 7) == 0 && bytes[7] != magic[7];
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

void pier_soft_hash_transcript(const uint8_t *hello, const uint8_t *nonce, bool sealed,
			       uint8_t *ret_transcript)
{
	uint8_t all[SOFT_HELLO_SIZE + SOFT_SHARE_SIZE + 1];

	memcpy(all, hello, SOFT_HELLO_SIZE);
	memcpy(all + SOFT_HELLO_SIZE, nonce, SOFT_SHARE_SIZE);
	all[SOFT_HELLO_SIZE + SOFT_SHARE_SIZE] = sealed;
	crypto_generichash(ret_transcript, SOFT_MAC_SIZE, all, sizeof(all), NULL, 0);
}

/* The role prevents an end from sending back the proof of the other. */
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

bool pier_soft_make_nonce(struct soft_share *share, bool sealed, uint8_t *ret_nonce)
{
	share->wanted = sealed;
	if (!share->wanted)
		return pier_soft_random(ret_nonce, SOFT_SHARE_SIZE);
	return pier_soft_random(share->scalar, SOFT_SHARE_SIZE) &&
	       crypto_scalarmult_base(ret_nonce, share->scalar) == 0;
}

/* crypto_scalarmult() fails for points of low order, with which both would agree on 0. */
bool pier_soft_agree(struct soft_share *share, const uint8_t *nonce, uint8_t *ret_agreed)
{
	bool agreed = !share->wanted ||
		      crypto_scalarmult(ret_agreed, share->scalar, nonce) == 0;

	sodium_memzero(share, sizeof(*share));
	return agreed;
}

void pier_soft_derive_key(const struct soft_session *session, bool from_caller,
			  uint8_t *ret_key)
{
	static const char label[] = "pier soft0 stream key";
	const uint8_t direction = from_caller ? 1 : 2;
	crypto_generichash_state state;

	_Static_assert(sizeof(session->secrets) <= crypto_generichash_KEYBYTES_MAX,
		       "the secrets are the key as they are");
	crypto_generichash_init(&state, session->secrets, sizeof(session->secrets),
				SOFT_KEY_SIZE);
	crypto_generichash_update(&state, (const uint8_t *)label, sizeof(label));
	crypto_generichash_update(&state, session->transcript, SOFT_MAC_SIZE);
	crypto_generichash_update(&state, session->agreed, SOFT_SHARE_SIZE);
	crypto_generichash_update(&state, &direction, 1);
	crypto_generichash_final(&state, ret_key, SOFT_KEY_SIZE);
	sodium_memzero(&state, sizeof(state));
}
