/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_WIRE_H
#define PIER_CORE_WIRE_H

#include <stdint.h>

/* Little-endian integers in bytes that travel, at any alignment. */

static inline void pier_put_le16(uint8_t *wire, uint16_t value)
{
	wire[0] = (uint8_t)value;
	wire[1] = (uint8_t)(value >> 8);
}

static inline void pier_put_le32(uint8_t *wire, uint32_t value)
{
	pier_put_le16(wire, (uint16_t)value);
	pier_put_le16(wire + 2, (uint16_t)(value >> 16));
}

static inline void pier_put_le64(uint8_t *wire, uint64_t value)
{
	pier_put_le32(wire, (uint32_t)value);
	pier_put_le32(wire + 4, (uint32_t)(value >> 32));
}

static inline uint16_t pier_get_le16(const uint8_t *wire)
{
	return (uint16_t)(wire[0] | wire[1] << 8);
}

static inline uint32_t pier_get_le32(const uint8_t *wire)
{
	return pier_get_le16(wire) | (uint32_t)pier_get_le16(wire + 2) << 16;
}

static inline uint64_t pier_get_le64(const uint8_t *wire)
{
	return pier_get_le32(wire) | (uint64_t)pier_get_le32(wire + 4) << 32;
}

#endif
