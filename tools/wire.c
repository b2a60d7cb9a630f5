/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "core/wire.h"
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
	uint8_t bytes[sizeof(value)];

	pier_put_le32(bytes, value);
	put_bytes(writer, bytes, sizeof(bytes));
}

void put_u64(struct wire_writer *writer, uint64_t value)
{
	uint8_t bytes[sizeof(value)];

	pier_put_le64(bytes, value);
	put_bytes(writer, bytes, sizeof(bytes));
}

void put_string(struct wire_writer *writer, const char *string)
{
	size_t length = strlen(string);
	uint8_t bytes[sizeof(uint16_t)];

	if (length > UINT16_MAX) {
		writer->overflow = true;
		return;
	}
	pier_put_le16(bytes, (uint16_t)length);
	put_bytes(writer, bytes, sizeof(bytes));
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

	return bytes ? pier_get_le32(bytes) : 0;
}

uint64_t get_u64(struct wire_reader *reader)
{
	const uint8_t *bytes = get_bytes(reader, sizeof(uint64_t));

	return bytes ? pier_get_le64(bytes) : 0;
}

void get_string(struct wire_reader *reader, char *ret_string, size_t size)
{
	const uint8_t *bytes = get_bytes(reader, sizeof(uint16_t));
	size_t length;

	ret_string[0] = '\0';
	if (!bytes)
		return;
	length = pier_get_le16(bytes);
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

void pass_bytes(struct wire *wire, void *bytes, size_t length)
{
	const uint8_t *from;

	if (wire->writer) {
		put_bytes(wire->writer, bytes, length);
		return;
	}
	from = get_bytes(&wire->reader, length);
	if (from)
		memcpy(bytes, from, length);
}

void pass_u32(struct wire *wire, uint32_t *value)
{
	if (wire->writer)
		put_u32(wire->writer, *value);
	else
		*value = get_u32(&wire->reader);
}

void pass_u64(struct wire *wire, uint64_t *value)
{
	if (wire->writer)
		put_u64(wire->writer, *value);
	else
		*value = get_u64(&wire->reader);
}

void pass_bools(struct wire *wire, bool *const *values, uint32_t count)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; wire->writer && i < count; i++)
		bits |= (uint32_t)*values[i] << i;
	pass_u32(wire, &bits);
	require_value(wire, bits >> count == 0);
	for (uint32_t i = 0; !wire->writer && i < count; i++)
		*values[i] = bits >> i & 1;
}

void pass_string(struct wire *wire, char *string, size_t size)
{
	if (wire->writer)
		put_string(wire->writer, string);
	else
		get_string(&wire->reader, string, size);
}

void require_value(struct wire *wire, bool valid)
{
	wire->reader.bad |= !valid;
}
