/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_ADDRESS_HPP
#define PIER_NIXL_ADDRESS_HPP

#include <cstdint>
#include <string>
#include <vector>

namespace pier_nixl
{

/* The bytes by which a caller shows that it has this agent's metadata. */
#define PIER_NIXL_TOKEN_SIZE 32

/*
 * How to reach an agent: what getConnInfo() returns. NIXL carries it in the metadata of
 * the agent, so whoever may read the metadata may connect.
 */
struct agent_address {
	std::string token;		  /* PIER_NIXL_TOKEN_SIZE bytes */
	std::string unix_name;		  /* in the abstract namespace, without the NUL */
	std::vector<std::string> hosts;	  /* IP addresses; none: no TCP */
	uint16_t port = 0;		  /* of TCP */
	uint32_t rails = 1;		  /* the most rails of a link */
	std::vector<std::string> devices; /* names, in the order of remote_memory */
	std::string description;	  /* pier_rails_describe() */

	std::string write() const;
	/* Returns false if the bytes, which may be hostile, are no form of write(). */
	bool read(const std::string &bytes);
};

/* The first bytes on a socket, by which a caller introduces itself. */
struct agent_hello {
	std::string token; /* the called agent's */
	std::string agent; /* the caller's name */
	uint32_t rails = 1;
	std::string description;

	std::string write() const;
};

/* A hello consists of a head of this size, and a body whose length is in the head. */
#define PIER_NIXL_HELLO_HEAD (8 + PIER_NIXL_TOKEN_SIZE + 4)
#define PIER_NIXL_HELLO_MAX  16384

/*
 * The byte by which the called agent accepts a hello. The caller begins the handshakes
 * after it, so of several sockets it can keep the one that leads to the agent.
 */
#define PIER_NIXL_HELLO_ACCEPTED 'Y'

/*
 * Check the head of a hello. Returns the length of its body, or 0 if the bytes are no
 * head or have another token.
 */
uint32_t check_hello_head(const uint8_t *head, const std::string &token);

/* Read the body of a hello. Returns false if the bytes are no body. */
bool read_hello_body(const std::string &body, agent_hello &ret_hello);

} // namespace pier_nixl

#endif
