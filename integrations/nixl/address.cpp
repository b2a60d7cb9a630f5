/* SPDX-License-Identifier: BSD-3-Clause */
#include "address.hpp"

#include "bytes.hpp"

namespace pier_nixl
{

static const char address_magic[] = "PIERNXA1";
static const char hello_magic[] = "PIERNXH2";
static const size_t magic_size = 8;
static const size_t list_max = 256;

static void put_list(byte_writer &writer, const std::vector<std::string> &list)
{
	writer.put_number(list.size(), 2);
	for (const std::string &one : list)
		writer.put_string(one);
}

static std::vector<std::string> read_list(byte_reader &reader)
{
	std::vector<std::string> list;
	size_t count = reader.number(2);

	for (size_t i = 0; i < count && i < list_max && !reader.failed(); i++)
		list.push_back(reader.string());
	return list;
}

std::string agent_address::write() const
{
	byte_writer writer;

	writer.put_bytes(address_magic, magic_size);
	writer.put_bytes(token.data(), PIER_NIXL_TOKEN_SIZE);
	writer.put_string(unix_name);
	put_list(writer, hosts);
	writer.put_number(port, 2);
	writer.put_number(rails, 4);
	put_list(writer, devices);
	writer.put_string(description);
	return writer.out;
}

bool agent_address::read(const std::string &bytes)
{
	byte_reader reader(bytes);
	char magic[magic_size] = {}, secret[PIER_NIXL_TOKEN_SIZE] = {};

	reader.bytes(magic, sizeof(magic));
	reader.bytes(secret, sizeof(secret));
	token.assign(secret, sizeof(secret));
	unix_name = reader.string();
	hosts = read_list(reader);
	port = (uint16_t)reader.number(2);
	rails = (uint32_t)reader.number(4);
	devices = read_list(reader);
	description = reader.string();
	return reader.finished() && !memcmp(magic, address_magic, magic_size) &&
	       rails > 0 && !devices.empty();
}

std::string agent_hello::write() const
{
	byte_writer body, writer;

	body.put_string(agent);
	body.put_number(rails, 4);
	body.put_string(description);
	writer.put_bytes(hello_magic, magic_size);
	writer.put_bytes(token.data(), PIER_NIXL_TOKEN_SIZE);
	writer.put_string(body.out);
	return writer.out;
}

/* The time of the comparison does not depend on the number of equal bytes. */
static bool is_token(const uint8_t *bytes, const std::string &token)
{
	unsigned difference = 0;

	for (size_t i = 0; i < PIER_NIXL_TOKEN_SIZE; i++)
		difference |= (unsigned)(bytes[i] ^ (uint8_t)token[i]);
	return difference == 0;
}

uint32_t check_hello_head(const uint8_t *head, const std::string &token)
{
	byte_reader reader(head + magic_size + PIER_NIXL_TOKEN_SIZE, 4);
	uint32_t length = (uint32_t)reader.number(4);

	if (memcmp(head, hello_magic, magic_size) || !is_token(head + magic_size, token))
		return 0;
	return length <= PIER_NIXL_HELLO_MAX ? length : 0;
}

bool read_hello_body(const std::string &body, agent_hello &ret_hello)
{
	byte_reader reader(body);

	ret_hello.agent = reader.string();
	ret_hello.rails = (uint32_t)reader.number(4);
	ret_hello.description = reader.string();
	return reader.finished() && !ret_hello.agent.empty() && ret_hello.rails > 0;
}

} // namespace pier_nixl
