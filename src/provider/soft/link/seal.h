/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_SEAL_H
#define PIER_SOFT_SEAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "auth.h"
#include "provider/soft/regions/vector.h"

/*
 * The encrypted stream of a sealed link, between frames and socket. Each direction has a
 * key of its own and begins with the 24 bytes that crypto_secretstream_xchacha20poly1305
 * calls its header; records follow:
 *
 *	length	4 bytes, little-endian: of the ciphertext; authenticated with it
 *	ciphertext, with 17 bytes of tag and MAC
 *
 * A record that was changed, invented, repeated, left out or moved does not
 * authenticate. There is no final record: a peer that is done hangs up, which ends the
 * link with the same error as a broken connection.
 */

enum {
	SOFT_RECORD_LENGTH_SIZE = 4,
	SOFT_RECORD_OVERHEAD = 17,
	SOFT_SEAL_START_SIZE = 24
};

struct soft_seal;

/*
 * NULL: no memory or fd, or RLIMIT_FSIZE is too small. `staging` belongs to the engine.
 * The first seal opens it; it must outlive all of them, and no two use it at once.
 */
struct soft_seal *pier_soft_create_seal(const struct soft_session *session, bool caller,
					struct soft_extent *staging);
/* Takes NULL. */
void pier_soft_free_seal(struct soft_seal *seal);
/* Also takes one that was never opened. */
void pier_soft_close_staging(struct soft_extent *staging);

/*
 * As sendmsg(2) and recvmsg(2) without waiting. EFAULT: memory of the vector has
 * vanished; nothing of this call was sent. EBADMSG: the next record is not from the
 * peer.
 */
ssize_t pier_soft_seal_send(struct soft_seal *seal, struct soft_vector *vector, int fd);
ssize_t pier_soft_seal_receive(struct soft_seal *seal, struct soft_vector *vector,
			       int fd);
/* Sends what is encrypted already; 0 when all of it is sent. */
int pier_soft_seal_flush(struct soft_seal *seal, int fd);

#endif
