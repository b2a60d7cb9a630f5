/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "seal.h"
#include "auth.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/wire.h"
#include "provider/soft/limits.h"
#include "provider/soft/regions/rlimits.h"
#include "provider/soft/regions/vector.h"

/*
 * Memory of the application may vanish, so only the kernel accesses it: bytes go through
 * a memfd of soft0 by pwritev(2) and preadv(2), as those of a shared ring do
 * (regions/vector.c). A record is decrypted as a whole before any byte of it is
 * delivered.
 */

enum {
	CIPHER_MAX = SOFT_MAX_RECORD + SOFT_RECORD_OVERHEAD,
	RECORD_MAX = SOFT_RECORD_LENGTH_SIZE + CIPHER_MAX,
	/*
	 * TAG_REKEY replaces the key by a hash of it. A key that leaks from this process
	 * later decrypts at most so many earlier bytes. libsodium rekeys by itself, but
	 * only after 2^32 records.
	 */
	REKEY_BYTES = 16 * 1024 * 1024,
	REKEY_RECORDS = 1 << 20
};

_Static_assert(SOFT_RECORD_OVERHEAD == crypto_secretstream_xchacha20poly1305_ABYTES &&
		       SOFT_SEAL_START_SIZE ==
			       crypto_secretstream_xchacha20poly1305_HEADERBYTES &&
		       SOFT_KEY_SIZE == crypto_secretstream_xchacha20poly1305_KEYBYTES,
	       "what the wire has is what libsodium makes");

struct soft_seal {
	struct soft_extent *staging;
	crypto_secretstream_xchacha20poly1305_state tx, rx;
	uint8_t rx_key[SOFT_KEY_SIZE];
	bool rx_started;
	uint64_t bytes_under_key, records_under_key;
	/* Ciphertext that the socket has not accepted, and that is not decrypted yet. */
	uint32_t out_first, out_end, in_first, in_end;
	/* Plaintext that is not delivered yet. */
	uint32_t plain_first, plain_end;
	uint8_t out[RECORD_MAX];
	uint8_t in[RECORD_MAX];
	uint8_t plain[SOFT_MAX_RECORD];
};

/*
 * fallocate(2) reserves the pages, so no write to the mapping can end in SIGBUS. Beyond
 * RLIMIT_FSIZE fallocate(2) itself sends SIGXFSZ: inode_newsize_ok() in the kernel.
 */
static bool open_staging(struct soft_extent *staging)
{
	void *memory;

	if (staging->fd >= 0)
		return true;
	if (!pier_soft_may_write(0, SOFT_MAX_RECORD)) {
		pier_warning("soft0: a TCP link needs a file size limit (RLIMIT_FSIZE, "
			     "\"ulimit -f\") of at least %d bytes",
			     SOFT_MAX_RECORD);
		return false;
	}
	staging->fd = memfd_create("pier-soft-staging", MFD_CLOEXEC);
	if (staging->fd < 0)
		return false;
	if (fallocate(staging->fd, 0, 0, SOFT_MAX_RECORD) == 0) {
		memory = mmap(NULL, SOFT_MAX_RECORD, PROT_READ | PROT_WRITE, MAP_SHARED,
			      staging->fd, 0);
		if (memory != MAP_FAILED) {
			madvise(memory, SOFT_MAX_RECORD, MADV_DONTFORK);
			staging->memory = memory;
			staging->length = SOFT_MAX_RECORD;
			return true;
		}
	}
	staging->fd = pier_close_fd(staging->fd);
	return false;
}

void pier_soft_close_staging(struct soft_extent *staging)
{
	if (staging->fd < 0)
		return;
	munmap(staging->memory, SOFT_MAX_RECORD);
	staging->fd = pier_close_fd(staging->fd);
}

struct soft_seal *pier_soft_create_seal(const struct soft_session *session, bool caller,
					struct soft_extent *staging)
{
	struct soft_seal *seal;
	uint8_t tx_key[SOFT_KEY_SIZE];

	if (!open_staging(staging))
		return NULL;
	seal = calloc(1, sizeof(*seal));
	if (!seal)
		return NULL;
	seal->staging = staging;
	pier_soft_derive_key(session, caller, tx_key);
	pier_soft_derive_key(session, !caller, seal->rx_key);
	crypto_secretstream_xchacha20poly1305_init_push(&seal->tx, seal->out, tx_key);
	seal->out_end = SOFT_SEAL_START_SIZE;
	sodium_memzero(tx_key, sizeof(tx_key));
	return seal;
}

void pier_soft_free_seal(struct soft_seal *seal)
{
	if (!seal)
		return;
	sodium_memzero(seal, sizeof(*seal));
	free(seal);
}

int pier_soft_seal_flush(struct soft_seal *seal, int fd)
{
	while (seal->out_first < seal->out_end) {
		ssize_t sent = send(fd, seal->out + seal->out_first,
				    seal->out_end - seal->out_first,
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return -1;
		seal->out_first += (uint32_t)sent;
	}
	seal->out_first = seal->out_end = 0;
	return 0;
}

static size_t smaller_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

/*
 * Collects as much as one record takes, or nothing: no header leaves without its
 * payload.
 */
static ssize_t gather_plaintext(struct soft_seal *seal, struct soft_vector *vector)
{
	struct soft_extent extent = *seal->staging;
	ssize_t gathered;

	extent.length = smaller_size(vector->bytes, SOFT_MAX_RECORD);
	gathered = pier_soft_copy_synced(vector, &extent);
	if (gathered == (ssize_t)extent.length)
		return gathered;
	errno = EFAULT;
	return -1;
}

static uint8_t next_tag(struct soft_seal *seal, size_t length)
{
	seal->bytes_under_key += length;
	if (seal->bytes_under_key < REKEY_BYTES &&
	    ++seal->records_under_key < REKEY_RECORDS)
		return crypto_secretstream_xchacha20poly1305_TAG_MESSAGE;
	seal->bytes_under_key = seal->records_under_key = 0;
	return crypto_secretstream_xchacha20poly1305_TAG_REKEY;
}

static void seal_record(struct soft_seal *seal, size_t length)
{
	uint8_t *record = seal->out;

	pier_put_le32(record, (uint32_t)length + SOFT_RECORD_OVERHEAD);
	crypto_secretstream_xchacha20poly1305_push(
		&seal->tx, record + SOFT_RECORD_LENGTH_SIZE, NULL,
		(const uint8_t *)seal->staging->memory, length, record,
		SOFT_RECORD_LENGTH_SIZE, next_tag(seal, length));
	seal->out_end = SOFT_RECORD_LENGTH_SIZE + (uint32_t)length + SOFT_RECORD_OVERHEAD;
}

/*
 * A record counts as sent when it is encrypted, though the socket may not have accepted
 * it.
 */
ssize_t pier_soft_seal_send(struct soft_seal *seal, struct soft_vector *vector, int fd)
{
	ssize_t length;

	if (pier_soft_seal_flush(seal, fd) < 0)
		return -1;
	length = gather_plaintext(seal, vector);
	if (length < 0)
		return -1;
	seal_record(seal, (size_t)length);
	if (pier_soft_seal_flush(seal, fd) < 0 && errno != EAGAIN)
		return -1;
	return length;
}

/* Returns what recv(2) returned. */
static ssize_t receive_ciphertext(struct soft_seal *seal, int fd)
{
	ssize_t received;

	memmove(seal->in, seal->in + seal->in_first, seal->in_end - seal->in_first);
	seal->in_end -= seal->in_first;
	seal->in_first = 0;
	received = recv(fd, seal->in + seal->in_end, sizeof(seal->in) - seal->in_end,
			MSG_DONTWAIT);
	if (received > 0)
		seal->in_end += (uint32_t)received;
	return received;
}

static int refuse_record(void)
{
	errno = EBADMSG;
	return -1;
}

/* 1: the stream has begun; 0: more bytes are needed; -1: they are not from the peer. */
static int start_stream(struct soft_seal *seal)
{
	if (seal->in_end - seal->in_first < SOFT_SEAL_START_SIZE)
		return 0;
	if (crypto_secretstream_xchacha20poly1305_init_pull(
		    &seal->rx, seal->in + seal->in_first, seal->rx_key) != 0)
		return refuse_record();
	sodium_memzero(seal->rx_key, sizeof(seal->rx_key));
	seal->in_first += SOFT_SEAL_START_SIZE;
	seal->rx_started = true;
	return 1;
}

/* 1: there is plaintext; 0: the record is incomplete; -1: it is not from the peer. */
static int open_record(struct soft_seal *seal)
{
	const uint8_t *record;
	uint32_t have, length;
	uint8_t tag;
	int started = seal->rx_started ? 1 : start_stream(seal);

	if (started <= 0)
		return started;
	record = seal->in + seal->in_first;
	have = seal->in_end - seal->in_first;
	if (have < SOFT_RECORD_LENGTH_SIZE)
		return 0;
	length = pier_get_le32(record);
	/* Empty records are refused: they would cost time and deliver nothing. */
	if (length <= SOFT_RECORD_OVERHEAD || length > CIPHER_MAX)
		return refuse_record();
	if (have < SOFT_RECORD_LENGTH_SIZE + length)
		return 0;
	if (crypto_secretstream_xchacha20poly1305_pull(
		    &seal->rx, seal->plain, NULL, &tag, record + SOFT_RECORD_LENGTH_SIZE,
		    length, record, SOFT_RECORD_LENGTH_SIZE) != 0)
		return refuse_record();
	if (tag != crypto_secretstream_xchacha20poly1305_TAG_MESSAGE &&
	    tag != crypto_secretstream_xchacha20poly1305_TAG_REKEY)
		return refuse_record();
	seal->in_first += SOFT_RECORD_LENGTH_SIZE + length;
	seal->plain_first = 0;
	seal->plain_end = length - SOFT_RECORD_OVERHEAD;
	return 1;
}

static ssize_t deliver_plaintext(struct soft_seal *seal, struct soft_vector *vector)
{
	struct soft_extent extent = {
		.memory = (char *)seal->plain + seal->plain_first,
		.fd = -1,
		.length = smaller_size(seal->plain_end - seal->plain_first,
				       vector->bytes),
	};
	ssize_t delivered;

	if (!vector->steady) {
		memcpy(seal->staging->memory, extent.memory, extent.length);
		extent.fd = seal->staging->fd;
	}
	delivered = pier_soft_copy_synced(vector, &extent);
	if (delivered > 0)
		seal->plain_first += (uint32_t)delivered;
	return delivered;
}

ssize_t pier_soft_seal_receive(struct soft_seal *seal, struct soft_vector *vector, int fd)
{
	while (seal->plain_first == seal->plain_end) {
		int opened = open_record(seal);
		ssize_t received;

		if (opened < 0)
			return -1;
		if (opened > 0)
			break;
		received = receive_ciphertext(seal, fd);
		if (received <= 0)
			return received;
	}
	return deliver_plaintext(seal, vector);
}
