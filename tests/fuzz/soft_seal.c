/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The reader of a TCP link's records. The input's records are sealed with the right keys,
 * so fuzzing also reaches the code behind the authentication. Whatever the stream
 * contains, the delivered bytes are a prefix of the sealed ones, and all of them if the
 * stream was not changed.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "fuzz.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/crypto.h"
#include "provider/soft/link/seal.h"
#include "provider/soft/regions/vector.h"
#include "core/wire.h"

enum operation {
	RECORD,	  /* of this many bytes, as the peer sends it */
	LARGEST,  /* of this many bytes less than the maximum */
	EMPTY,	  /* of no bytes */
	TOO_LONG, /* of one byte more than the maximum */
	RAW,	  /* this many bytes of the input, unchanged */
	CHANGED,  /* with one byte changed */
	REPEATED, /* sent twice */
	LEFT_OUT, /* not sent */
	OPERATIONS
};

enum {
	CIPHER_MAX = SOFT_RECORD_LENGTH_SIZE + SOFT_MAX_RECORD + 1 + SOFT_RECORD_TAG_SIZE,
	EXPECTED_MAX = 1 << 22
};

struct stage {
	struct soft_seal *seal; /* the reader */
	EVP_CIPHER_CTX *peer;
	uint64_t records;
	int fds[2];
	bool broken;   /* the reader has refused a record */
	bool tampered; /* the stream differs from the sealed one */
	uint8_t *expected;
	size_t sealed, delivered;
	uint8_t record[CIPHER_MAX];
	uint8_t next; /* the next byte of the plaintext */
};

static void open_stage(struct stage *stage)
{
	struct soft_session session = { .transcript = { 1 },
					.agreed = { 2 },
					.cipher = SOFT_AES };
	uint8_t key[SOFT_KEY_SIZE];

	FUZZ_CHECK(pier_soft_open_crypto() == 0);
	memset(stage, 0, sizeof(*stage));
	stage->seal = pier_soft_create_seal(&session, false);
	FUZZ_CHECK(stage->seal);
	FUZZ_CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
			       stage->fds));
	pier_soft_derive_key(&session, true, key);
	stage->peer = EVP_CIPHER_CTX_new();
	FUZZ_CHECK(stage->peer &&
		   EVP_CipherInit_ex2(stage->peer, pier_soft_find_cipher(SOFT_AES), key,
				      NULL, 1, NULL));
	stage->expected = malloc(EXPECTED_MAX);
	FUZZ_CHECK(stage->expected);
}

static void close_stage(struct stage *stage)
{
	pier_soft_free_seal(stage->seal);
	EVP_CIPHER_CTX_free(stage->peer);
	close(stage->fds[0]);
	close(stage->fds[1]);
	free(stage->expected);
}

/* Read all available bytes into memory of `want` bytes with a guard behind it. */
static void read_all(struct stage *stage, size_t want)
{
	static uint8_t memory[SOFT_MAX_RECORD + 1];
	struct soft_vector vector;
	ssize_t received;

	while (!stage->broken) {
		memory[want] = 0x5a;
		pier_soft_vector_init(&vector, true);
		pier_soft_vector_add(&vector, memory, want);
		received = pier_soft_seal_receive(stage->seal, &vector, stage->fds[1]);
		FUZZ_CHECK(memory[want] == 0x5a);
		if (received < 0 && errno == EAGAIN)
			return;
		if (received <= 0) {
			FUZZ_CHECK(errno == EBADMSG && stage->tampered);
			stage->broken = true;
			return;
		}
		FUZZ_CHECK(stage->delivered + (size_t)received <= stage->sealed);
		FUZZ_CHECK(!memcmp(memory, stage->expected + stage->delivered,
				   (size_t)received));
		stage->delivered += (size_t)received;
	}
}

static void feed(struct stage *stage, const uint8_t *bytes, size_t length, size_t want)
{
	while (length > 0 && !stage->broken) {
		ssize_t sent = send(stage->fds[0], bytes, length, MSG_NOSIGNAL);

		FUZZ_CHECK(sent > 0);
		bytes += sent;
		length -= (size_t)sent;
		read_all(stage, want);
	}
}

/* A record counts as sealed by the peer if pier could have sent it. */
static size_t make_record(struct stage *stage, size_t length)
{
	static uint8_t plain[SOFT_MAX_RECORD + 1];
	bool good = length > 0 && length <= SOFT_MAX_RECORD;
	uint8_t nonce[12] = { 0 }, *record = stage->record;
	uint8_t *bytes = record + SOFT_RECORD_LENGTH_SIZE;
	int used;

	for (size_t i = 0; i < length; i++)
		plain[i] = stage->next++;
	pier_put_le32(record, (uint32_t)length + SOFT_RECORD_TAG_SIZE);
	pier_put_le64(nonce + 4, stage->records++);
	FUZZ_CHECK(EVP_CipherInit_ex2(stage->peer, NULL, NULL, nonce, 1, NULL) &&
		   EVP_CipherUpdate(stage->peer, NULL, &used, record,
				    SOFT_RECORD_LENGTH_SIZE) &&
		   EVP_CipherUpdate(stage->peer, bytes, &used, plain, (int)length) &&
		   EVP_CipherFinal_ex(stage->peer, bytes, &used) &&
		   EVP_CIPHER_CTX_ctrl(stage->peer, EVP_CTRL_AEAD_GET_TAG,
				       SOFT_RECORD_TAG_SIZE, bytes + length));
	stage->tampered |= !good;
	if (!stage->tampered) {
		if (stage->sealed + length > EXPECTED_MAX)
			return 0;
		memcpy(stage->expected + stage->sealed, plain, length);
		stage->sealed += length;
	}
	return SOFT_RECORD_LENGTH_SIZE + length + SOFT_RECORD_TAG_SIZE;
}

static void play(struct stage *stage, const uint8_t *four, const uint8_t *rest,
		 size_t rest_size)
{
	enum operation operation = four[0] % OPERATIONS;
	size_t number = 1 + four[1], want = 1 + (size_t)four[2] * four[3], length;

	if (operation == RAW) {
		stage->tampered = true;
		feed(stage, rest, number < rest_size ? number : rest_size, want);
		return;
	}
	if (operation == LARGEST || operation == TOO_LONG || operation == EMPTY)
		number = operation == LARGEST ? SOFT_MAX_RECORD - four[1]
			 : operation == EMPTY ? 0
					      : SOFT_MAX_RECORD + 1;
	if (number > 4096 && want < 64)
		want = 64; /* reading byte by byte would take long */
	/* Changed or omitted records are sealed, but must never be delivered. */
	stage->tampered |= operation == CHANGED || operation == LEFT_OUT;
	length = make_record(stage, number);
	if (length == 0 || operation == LEFT_OUT)
		return;
	if (operation == CHANGED)
		stage->record[four[3] % length] ^= (uint8_t)(1u << four[2] % 8);
	feed(stage, stage->record, length, want);
	if (operation == REPEATED) {
		stage->tampered = true;
		feed(stage, stage->record, length, want);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct stage stage;

	open_stage(&stage);
	for (int i = 0; i < 64 && size >= 4; i++) {
		play(&stage, data, data + 4, size - 4);
		if (data[0] % OPERATIONS == RAW) {
			size_t used = 1u + data[1];

			data += used < size - 4 ? used : size - 4;
			size -= used < size - 4 ? used : size - 4;
		}
		data += 4;
		size -= 4;
	}
	if (!stage.tampered)
		FUZZ_CHECK(stage.delivered == stage.sealed);
	close_stage(&stage);
	return 0;
}
