/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <string.h>

#include "wire.h"

void put_bytes(struct wire_writer *writer, const void *bytes, size_t length)
{
	if (length > sizeof(writer->data) - writer->length) {
		writer->overflow = true;
		return;
	}
	/* Then `bytes` may be NULL, which memcpy() does not take. */
	if (length == 0)
		return;
	memcpy(writer->data + writer->length, bytes, length);
	writer->length += length;
}

void put_u32(struct wire_writer *writer, uint32_t value)
{
	uint32_t little = htole32(value);

	put_bytes(writer, &little, sizeof(little));
}

void put_u64(struct wire_writer *writer, uint64_t value)
{
	uint64_t little = htole64(value);

	put_bytes(writer, &little, sizeof(little));
}

void put_string(struct wire_writer *writer, const char *string)
{
	size_t length = strlen(string);
	uint16_t little = htole16((uint16_t)length);

	if (length > UINT16_MAX) {
		writer->overflow = true;
		return;
	}
	put_bytes(writer, &little, sizeof(little));
	put_bytes(writer, string, length);
}

const uint8_t *get_bytes(struct wire_reader *reader, size_t length)
{
	const uint8_t *bytes = reader->data;

	if (reader->bad || length > reader->left) {
		reader->bad = true;
		return NULL;
	}
	reader->data += length;
	reader->left -= length;
	return bytes;
}

uint32_t get_u32(struct wire_reader *reader)
{
	const uint8_t *bytes = get_bytes(reader, sizeof(uint32_t));
	uint32_t little = 0;

	if (bytes)
		memcpy(&little, bytes, sizeof(little));
	return le32toh(little);
}

uint64_t get_u64(struct wire_reader *reader)
{
	const uint8_t *bytes = get_bytes(reader, sizeof(uint64_t));

	return bytes ? load_u64(bytes) : 0;
}

void get_string(struct wire_reader *reader, char *ret_string, size_t size)
{
	const uint8_t *bytes = get_bytes(reader, sizeof(uint16_t));
	size_t length;

	ret_string[0] = '\0';
	if (!bytes)
		return;
	length = (size_t)bytes[0] | (size_t)bytes[1] << 8;
	bytes = get_bytes(reader, length);
	if (!bytes)
		return;
	if (length >= size || memchr(bytes, '\0', length)) {
		reader->bad = true;
		return;
	}
	memcpy(ret_string, bytes, length);
	ret_string[length] = '\0';
}

bool wire_complete(const struct wire_reader *reader)
{
	return !reader->bad && reader->left == 0;
}

void store_u64(uint8_t *to, uint64_t value)
{
	uint64_t little = htole64(value);

	memcpy(to, &little, sizeof(little));
}

uint64_t load_u64(const uint8_t *from)
{
	uint64_t little;

	memcpy(&little, from, sizeof(little));
	return le64toh(little);
}
