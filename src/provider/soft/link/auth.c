/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "auth.h"
#include "core/wire.h"
#include "provider/libcrypto.h"
#include "provider/soft/limits.h"

/*
 * Two queue pairs authenticate each other before either reads a frame. Each has a secret
 * in its endpoint, so only its peer knows it.
 *
 *	caller: hello      who calls whom, a nonce, and the ciphers that it offers
 *	listener: nonce, MAC(secret of the listener, transcript), the chosen cipher
 *	caller: MAC(secret of the listener, transcript),
 *		MAC(secret of the caller, transcript)
 *	listener: MAC(secret of the listener, transcript)
 *
 * On one host the caller's MACs come with the fd of memory for both to share, if it could
 * allocate some. The last MAC of the listener covers whether it uses that memory.
 *
 * The transcript is the hash of hello, the listener's nonce and the cipher, so every MAC
 * covers all three: nobody on the path can alter the offer or the choice. The listener
 * may not know the secret of the caller yet: it checks that MAC when its queue pair goes
 * to RTR.
 *
 * A link is sealed, that is encrypted and authenticated (seal.c), unless it is a Unix
 * socket between two processes of one user. The nonces of a sealed link are fresh X25519
 * public keys (RFC 7748). Its stream keys depend on both secrets, the transcript and the
 * X25519 result, so an endpoint that leaks later does not decrypt recorded traffic.
 *
 * Each end decides by what its own kernel reports about its socket. A caller that seals
 * accepts no choice but one that it offered, and one that does not seal none at all. So a
 * relay that is the peer's user for one end and another user for the other cannot make
 * either of them send plaintext. A process of the same user can relay a plain link and
 * read it, but that process could also ptrace(2) this one.
 */

/* The last byte is the version of everything that follows on the stream. */
static const uint8_t magic[8] = { 'p', 'i', 'e', 'r', 's', 'o', 'f', 4 };

void pier_soft_pack_hello(const struct soft_hello *hello, uint8_t *ret_bytes)
{
	memcpy(ret_bytes, magic, 8);
	memcpy(ret_bytes + 8, hello->nonce, 32);
	memcpy(ret_bytes + 40, hello->from.raw, 16);
	memcpy(ret_bytes + 56, hello->to.raw, 16);
	pier_put_le32(ret_bytes + 72, hello->from_qpn);
	/* A number of a queue pair has 24 bits. */
	pier_put_le32(ret_bytes + 76, hello->to_qpn & 0xffffff);
	ret_bytes[79] = hello->ciphers;
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
	ret_hello->from_qpn = pier_get_le32(bytes + 72);
	ret_hello->to_qpn = pier_get_le32(bytes + 76) & 0xffffff;
	ret_hello->ciphers = bytes[79];
	return true;
}

enum soft_cipher pier_soft_choose_cipher(uint8_t offered)
{
	int common = offered & pier_soft_offered_ciphers();

	return (enum soft_cipher)(common & -common);
}

bool pier_soft_may_choose(uint8_t offered, uint8_t cipher)
{
	if (offered == 0)
		return cipher == SOFT_PLAIN;
	return (cipher & offered) && (cipher & (cipher - 1)) == 0;
}

void pier_soft_hash_transcript(const uint8_t *hello, const uint8_t *nonce,
			       enum soft_cipher cipher, uint8_t *ret_transcript)
{
	uint8_t all[SOFT_HELLO_SIZE + SOFT_SHARE_SIZE + 1];

	memcpy(all, hello, SOFT_HELLO_SIZE);
	memcpy(all + SOFT_HELLO_SIZE, nonce, SOFT_SHARE_SIZE);
	all[SOFT_HELLO_SIZE + SOFT_SHARE_SIZE] = (uint8_t)cipher;
	pier_soft_hash(all, sizeof(all), ret_transcript);
}

/* The role prevents an end from sending back the proof of the other. */
void pier_soft_prove(const uint8_t *secret, enum soft_role role,
		     const uint8_t *transcript, uint8_t *ret_mac)
{
	uint8_t message[SOFT_MAC_SIZE + 1];

	memcpy(message, transcript, SOFT_MAC_SIZE);
	message[SOFT_MAC_SIZE] = (uint8_t)role;
	pier_soft_mac(secret, SOFT_SECRET_SIZE, message, sizeof(message), ret_mac);
}

bool pier_soft_proves(const uint8_t *secret, enum soft_role role,
		      const uint8_t *transcript, const uint8_t *mac)
{
	uint8_t expected[SOFT_MAC_SIZE];

	pier_soft_prove(secret, role, transcript, expected);
	return pier_crypto.CRYPTO_memcmp(expected, mac, sizeof(expected)) == 0;
}

bool pier_soft_make_nonce(struct soft_share *share, bool sealed, uint8_t *ret_nonce)
{
	share->wanted = sealed;
	if (!share->wanted)
		return pier_soft_random(ret_nonce, SOFT_SHARE_SIZE);
	return pier_soft_random(share->scalar, SOFT_SHARE_SIZE) &&
	       pier_soft_multiply(share->scalar, NULL, ret_nonce);
}

bool pier_soft_agree(struct soft_share *share, const uint8_t *nonce, uint8_t *ret_agreed)
{
	bool agreed = !share->wanted ||
		      pier_soft_multiply(share->scalar, nonce, ret_agreed);

	explicit_bzero(share, sizeof(*share));
	return agreed;
}

/*
 * HKDF (RFC 5869) of one block: the secrets are the salt, and the X25519 result is the
 * input.
 */
void pier_soft_derive_key(const struct soft_session *session, bool from_caller,
			  uint8_t *ret_key)
{
	static const char label[] = "pier soft0 stream key";
	uint8_t extracted[SOFT_MAC_SIZE];
	uint8_t info[sizeof(label) + SOFT_MAC_SIZE + 2];

	_Static_assert(SOFT_KEY_SIZE == SOFT_MAC_SIZE, "one block is the key");
	memcpy(info, label, sizeof(label));
	memcpy(info + sizeof(label), session->transcript, SOFT_MAC_SIZE);
	info[sizeof(label) + SOFT_MAC_SIZE] = from_caller ? 1 : 2;
	info[sizeof(label) + SOFT_MAC_SIZE + 1] = 1; /* the number of the block */
	pier_soft_mac(session->secrets, sizeof(session->secrets), session->agreed,
		      SOFT_SHARE_SIZE, extracted);
	pier_soft_mac(extracted, sizeof(extracted), info, sizeof(info), ret_key);
	explicit_bzero(extracted, sizeof(extracted));
}
