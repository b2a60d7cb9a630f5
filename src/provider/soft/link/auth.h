/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_AUTH_H
#define PIER_SOFT_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#include "crypto.h"
#include "provider/soft/limits.h"

/* How two queue pairs authenticate each other, and agree on the keys of a sealed link. */

enum {
	SOFT_HELLO_SIZE = 80,
	SOFT_CHALLENGE_SIZE = 65,
	SOFT_PROOF_SIZE = 64,
	SOFT_WELCOME_SIZE = 32
};

struct soft_hello {
	uint8_t nonce[SOFT_SHARE_SIZE];
	union ibv_gid from, to;
	uint32_t from_qpn, to_qpn;
	uint8_t ciphers; /* offered; 0: the caller does not seal the link */
};

enum soft_role {
	SOFT_LISTENER_PROVES,
	SOFT_CALLER_PROVES,
	SOFT_CALLER_IDENTITY,
	SOFT_LISTENER_WELCOMES,
	SOFT_LISTENER_SHARES /* the same, and uses the memory that came with the proof */
};

void pier_soft_pack_hello(const struct soft_hello *hello, uint8_t *ret_bytes);
bool pier_soft_unpack_hello(const uint8_t *bytes, struct soft_hello *ret_hello);
/* A hello of soft0, of a protocol version that this one does not speak. */
bool pier_soft_is_other_version(const uint8_t *bytes);
/* The listener's choice of what a caller offers; SOFT_PLAIN: there is none. */
enum soft_cipher pier_soft_choose_cipher(uint8_t offered);
/* Whether a listener may choose this cipher of what this end offered. */
bool pier_soft_may_choose(uint8_t offered, uint8_t cipher);
void pier_soft_hash_transcript(const uint8_t *hello, const uint8_t *nonce,
			       enum soft_cipher cipher, uint8_t *ret_transcript);
void pier_soft_prove(const uint8_t *secret, enum soft_role role,
		     const uint8_t *transcript, uint8_t *ret_mac);
bool pier_soft_proves(const uint8_t *secret, enum soft_role role,
		      const uint8_t *transcript, const uint8_t *mac);

/* The secret half of a nonce. */
struct soft_share {
	bool wanted; /* only if the link is sealed */
	uint8_t scalar[SOFT_SHARE_SIZE];
};

/* The nonce of a sealed link is a fresh X25519 public key. */
bool pier_soft_make_nonce(struct soft_share *share, bool sealed, uint8_t *ret_nonce);
/* Wipes the share. False: the peer's nonce is not a valid public key. */
bool pier_soft_agree(struct soft_share *share, const uint8_t *nonce, uint8_t *ret_agreed);

/* The secrets from which the keys of a sealed link are derived, and its cipher. */
struct soft_session {
	uint8_t secrets[2 * SOFT_SECRET_SIZE]; /* of the listener, of the caller */
	uint8_t transcript[SOFT_MAC_SIZE];
	uint8_t agreed[SOFT_SHARE_SIZE];
	enum soft_cipher cipher;
};

void pier_soft_derive_key(const struct soft_session *session, bool from_caller,
			  uint8_t *ret_key);

#endif
