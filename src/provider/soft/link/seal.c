/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "seal.h"
#include "auth.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/wire.h"
#include "crypto.h"
#include "provider/libcrypto.h"
#include "provider/soft/limits.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/vector.h"

/*
 * Memory of the application may vanish, so only the kernel accesses it: bytes go through
 * a memfd of the seal by pwritev(2) and preadv(2), as those of a shared FIFO do
 * (regions/vector.c). A record is encrypted and decrypted in place, in that memfd, and
 * none of its bytes is delivered before all of it is authenticated.
 */

enum {
	RECORD_MAX = SOFT_RECORD_LENGTH_SIZE + SOFT_MAX_RECORD + SOFT_RECORD_TAG_SIZE,
	STAGING_SIZE = 2 * RECORD_MAX,
	NONCE_SIZE = 12,
	/*
	 * After this much the key is replaced by a hash of it. A key that leaks from this
	 * process later decrypts at most so many earlier bytes.
	 */
	REKEY_BYTES = 16 * 1024 * 1024,
	REKEY_RECORDS = 1 << 20
};

struct direction {
	EVP_CIPHER_CTX *cipher;
	uint8_t key[SOFT_KEY_SIZE];
	uint64_t bytes, records; /* under this key */
	uint8_t *record;	 /* RECORD_MAX bytes of the staging */
	/* Ciphertext that the socket has not accepted, or that is not decrypted yet. */
	uint32_t first, end;
};

struct soft_seal {
	struct soft_extent staging; /* of tx, then of rx */
	struct direction tx, rx;
	/* Bytes of rx.record that are decrypted and not delivered yet. */
	uint32_t plain_first, plain_end;
};

/*
 * fallocate(2) reserves the pages, so no write to the mapping can end in SIGBUS. Beyond
 * RLIMIT_FSIZE fallocate(2) itself sends SIGXFSZ: inode_newsize_ok() in the kernel.
 */
static bool open_staging(struct soft_extent *staging)
{
	void *memory;

	if (!pier_soft_may_write(0, STAGING_SIZE)) {
		pier_warning("soft0: a TCP link needs a file size limit (RLIMIT_FSIZE, "
			     "\"ulimit -f\") of at least %d bytes",
			     STAGING_SIZE);
		return false;
	}
	staging->fd = memfd_create("pier-soft-staging", MFD_CLOEXEC);
	if (staging->fd < 0 || fallocate(staging->fd, 0, 0, STAGING_SIZE) < 0)
		return false;
	memory = mmap(NULL, STAGING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, staging->fd,
		      0);
	if (memory == MAP_FAILED)
		return false;
	madvise(memory, STAGING_SIZE, MADV_DONTFORK);
	staging->memory = memory;
	return true;
}

static bool set_key(struct direction *direction, const EVP_CIPHER *cipher, bool seals)
{
	direction->bytes = direction->records = 0;
	return pier_crypto.EVP_CipherInit_ex2(direction->cipher, cipher, direction->key,
					      NULL, seals, NULL);
}

static bool open_direction(struct direction *direction,
			   const struct soft_session *session, bool from_caller,
			   bool seals)
{
	pier_soft_derive_key(session, from_caller, direction->key);
	direction->cipher = pier_crypto.EVP_CIPHER_CTX_new();
	return direction->cipher &&
	       set_key(direction, pier_soft_find_cipher(session->cipher), seals);
}

struct soft_seal *pier_soft_create_seal(const struct soft_session *session, bool caller)
{
	struct soft_seal *seal = calloc(1, sizeof(*seal));

	if (!seal)
		return NULL;
	seal->staging.fd = -1;
	if (!open_staging(&seal->staging) ||
	    !open_direction(&seal->tx, session, caller, true) ||
	    !open_direction(&seal->rx, session, !caller, false)) {
		pier_soft_free_seal(seal);
		return NULL;
	}
	seal->tx.record = (uint8_t *)seal->staging.memory;
	seal->rx.record = seal->tx.record + RECORD_MAX;
	return seal;
}

void pier_soft_free_seal(struct soft_seal *seal)
{
	if (!seal)
		return;
	pier_crypto.EVP_CIPHER_CTX_free(seal->tx.cipher);
	pier_crypto.EVP_CIPHER_CTX_free(seal->rx.cipher);
	if (seal->staging.memory)
		munmap(seal->staging.memory, STAGING_SIZE);
	pier_close_fd(seal->staging.fd);
	explicit_bzero(seal, sizeof(*seal));
	free(seal);
}

/*
 * Encrypts or decrypts a record in place. Both ends replace the key after the same
 * records. False: the record is not authentic, or libcrypto failed.
 */
static bool apply_cipher(struct direction *direction, uint8_t *record, uint32_t length,
			 bool seals)
{
	static const char label[] = "pier soft0 next key";
	EVP_CIPHER_CTX *cipher = direction->cipher;
	uint8_t nonce[NONCE_SIZE] = { 0 };
	uint8_t *bytes = record + SOFT_RECORD_LENGTH_SIZE, *tag = bytes + length;
	int used;

	pier_put_le64(nonce + NONCE_SIZE - 8, direction->records++);
	direction->bytes += length;
	if (!pier_crypto.EVP_CipherInit_ex2(cipher, NULL, NULL, nonce, seals, NULL) ||
	    !pier_crypto.EVP_CipherUpdate(cipher, NULL, &used, record,
					  SOFT_RECORD_LENGTH_SIZE) ||
	    !pier_crypto.EVP_CipherUpdate(cipher, bytes, &used, bytes, (int)length) ||
	    (!seals && !pier_crypto.EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG,
							SOFT_RECORD_TAG_SIZE, tag)) ||
	    !pier_crypto.EVP_CipherFinal_ex(cipher, tag, &used) ||
	    (seals && !pier_crypto.EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG,
						       SOFT_RECORD_TAG_SIZE, tag)))
		return false;
	if (direction->bytes < REKEY_BYTES && direction->records < REKEY_RECORDS)
		return true;
	pier_soft_mac(direction->key, SOFT_KEY_SIZE, label, sizeof(label),
		      direction->key);
	return set_key(direction, NULL, seals);
}

int pier_soft_seal_flush(struct soft_seal *seal, int fd)
{
	struct direction *tx = &seal->tx;

	while (tx->first < tx->end) {
		ssize_t sent = send(fd, tx->record + tx->first, tx->end - tx->first,
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return -1;
		tx->first += (uint32_t)sent;
	}
	tx->first = tx->end = 0;
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
	struct soft_extent extent = {
		.memory = seal->staging.memory + SOFT_RECORD_LENGTH_SIZE,
		.fd = seal->staging.fd,
		.offset = SOFT_RECORD_LENGTH_SIZE,
		.length = smaller_size(vector->bytes, SOFT_MAX_RECORD),
	};

	if (pier_soft_copy_synced(vector, &extent) == (ssize_t)extent.length)
		return (ssize_t)extent.length;
	errno = EFAULT;
	return -1;
}

/*
 * A record counts as sent when it is encrypted, though the socket may not have accepted
 * it.
 */
ssize_t pier_soft_seal_send(struct soft_seal *seal, struct soft_vector *vector, int fd)
{
	struct direction *tx = &seal->tx;
	ssize_t length;

	if (pier_soft_seal_flush(seal, fd) < 0)
		return -1;
	length = gather_plaintext(seal, vector);
	if (length < 0)
		return -1;
	pier_put_le32(tx->record, (uint32_t)length + SOFT_RECORD_TAG_SIZE);
	if (!apply_cipher(tx, tx->record, (uint32_t)length, true)) {
		errno = EIO;
		return -1;
	}
	tx->end = SOFT_RECORD_LENGTH_SIZE + (uint32_t)length + SOFT_RECORD_TAG_SIZE;
	if (pier_soft_seal_flush(seal, fd) < 0 && errno != EAGAIN)
		return -1;
	return length;
}

/* Returns what recv(2) returned. */
static ssize_t receive_ciphertext(struct direction *rx, int fd)
{
	ssize_t received;

	memmove(rx->record, rx->record + rx->first, rx->end - rx->first);
	rx->end -= rx->first;
	rx->first = 0;
	received = recv(fd, rx->record + rx->end, RECORD_MAX - rx->end, MSG_DONTWAIT);
	if (received > 0)
		rx->end += (uint32_t)received;
	return received;
}

static int refuse_record(void)
{
	errno = EBADMSG;
	return -1;
}

/* 1: there is plaintext; 0: the record is incomplete; -1: it is not from the peer. */
static int open_record(struct soft_seal *seal)
{
	struct direction *rx = &seal->rx;
	uint8_t *record = rx->record + rx->first;
	uint32_t have = rx->end - rx->first, size;

	if (have < SOFT_RECORD_LENGTH_SIZE)
		return 0;
	size = pier_get_le32(record);
	/* Empty records are refused: they would cost time and deliver nothing. */
	if (size <= SOFT_RECORD_TAG_SIZE || size > RECORD_MAX - SOFT_RECORD_LENGTH_SIZE)
		return refuse_record();
	if (have < SOFT_RECORD_LENGTH_SIZE + size)
		return 0;
	if (!apply_cipher(rx, record, size - SOFT_RECORD_TAG_SIZE, false))
		return refuse_record();
	seal->plain_first = rx->first + SOFT_RECORD_LENGTH_SIZE;
	rx->first = seal->plain_first + size;
	seal->plain_end = rx->first - SOFT_RECORD_TAG_SIZE;
	return 1;
}

static ssize_t deliver_plaintext(struct soft_seal *seal, struct soft_vector *vector)
{
	uint32_t offset = RECORD_MAX + seal->plain_first;
	struct soft_extent extent = {
		.memory = seal->staging.memory + offset,
		.fd = seal->staging.fd,
		.offset = offset,
		.length = smaller_size(seal->plain_end - seal->plain_first,
				       vector->bytes),
	};
	ssize_t delivered = pier_soft_copy_synced(vector, &extent);

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
		received = receive_ciphertext(&seal->rx, fd);
		if (received <= 0)
			return received;
	}
	return deliver_plaintext(seal, vector);
}
