/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_BYTES_HPP
#define PIER_NIXL_BYTES_HPP

#include <cstdint>
#include <cstring>
#include <string>

namespace pier_nixl
{

/* Writes little-endian numbers, and strings with their length in front. */
class byte_writer
{
      public:
	std::string out;

	void put_number(uint64_t value, size_t size)
	{
		for (size_t i = 0; i < size; i++)
			out.push_back((char)(value >> 8 * i));
	}
	void put_bytes(const void *bytes, size_t size)
	{
		out.append((const char *)bytes, size);
	}
	void put_string(const std::string &text)
	{
		put_number(text.size(), 4);
		out += text;
	}
};

/*
 * Reads what byte_writer wrote. The bytes may be hostile: after a read past the end,
 * failed() is true, and every further result is 0 or empty.
 */
class byte_reader
{
      public:
	byte_reader(const void *bytes, size_t size)
	    : next((const uint8_t *)bytes), left(size)
	{
	}
	explicit byte_reader(const std::string &bytes)
	    : byte_reader(bytes.data(), bytes.size())
	{
	}
	uint64_t number(size_t size)
	{
		uint64_t value = 0;
		const uint8_t *bytes = take(size);

		for (size_t i = 0; bytes && i < size; i++)
			value |= (uint64_t)bytes[i] << 8 * i;
		return value;
	}
	void bytes(void *ret_bytes, size_t size)
	{
		const uint8_t *bytes = take(size);

		if (bytes)
			memcpy(ret_bytes, bytes, size);
	}
	std::string string()
	{
		size_t size = number(4);
		const uint8_t *bytes = take(size);

		return bytes ? std::string((const char *)bytes, size) : std::string();
	}
	bool failed() const
	{
		return overrun;
	}
	/* Whether all bytes were read, and none was missing. */
	bool finished() const
	{
		return !overrun && left == 0;
	}

      private:
	const uint8_t *next;
	size_t left;
	bool overrun = false;

	const uint8_t *take(size_t size)
	{
		const uint8_t *bytes = next;

		if (overrun || size > left) {
			overrun = true;
			return nullptr;
		}
		next += size;
		left -= size;
		return bytes;
	}
};

} // namespace pier_nixl

#endif
