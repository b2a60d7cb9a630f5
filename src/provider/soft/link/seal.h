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
 * key of its own and consists of records:
 *
 *	length	4 bytes, little-endian: of the rest; authenticated with it
 *	ciphertext
 *	tag	16 bytes
 *
 * The nonce is the number of records under the present key, which both ends count.
 * A record that was changed, invented, repeated, left out or moved does not
 * authenticate. There is no final record: a peer that is done hangs up, which ends the
 * link with the same error as a broken connection.
 */

enum {
	SOFT_RECORD_LENGTH_SIZE = 4,
	SOFT_RECORD_TAG_SIZE = 16
};

struct soft_seal;

/* NULL: no memory or fd, or RLIMIT_FSIZE is too small. */
struct soft_seal *pier_soft_create_seal(const struct soft_session *session, bool caller);
/* Takes NULL. */
void pier_soft_free_seal(struct soft_seal *seal);

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
