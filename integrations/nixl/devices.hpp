/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DEVICES_HPP
#define PIER_NIXL_DEVICES_HPP

#include <string>
#include <vector>

#include <pier/pier.h>

#include "settings.hpp"

namespace pier_nixl
{

/*
 * The devices of an agent, open from its start to its end. All memory is registered
 * with each of them, because NIXL registers memory before it names a peer.
 */
class device_list
{
      public:
	struct device {
		std::string name;
		struct pier_device *handle;
		struct pier_pd *pd;
		struct pier_mr_cache *cache; /* NULL: registrations are not kept */
		uint32_t max_qp_wr;
	};

	device_list() = default;
	device_list(const device_list &) = delete;
	void operator=(const device_list &) = delete;
	~device_list();

	/* Returns 0, or a negative errno with a sentence in pier_error_message(). */
	int open_all(const settings &chosen);
	/* Returns the index of a device, or -1. */
	int find(const std::string &name) const;
	/* Whether a device reaches other hosts without further settings. */
	bool has_hardware() const;

	std::vector<device> all;
	std::string description; /* pier_rails_describe() */

      private:
	int open_one(const std::string &name, const settings &chosen);
};

/* A notification travels in messages of at most this size. */
#define PIER_NIXL_SLOT_SIZE 4096
/* Messages that the receiver has room for. */
#define PIER_NIXL_RECEIVES  32
/* Requests that the initiator has outstanding on a channel. */
#define PIER_NIXL_SENDS	    288

/* A channel of a connection: one rail. */
struct channel_end {
	struct pier_channel *channel;
	uint32_t device;	 /* index in the device_list */
	std::string peer_device; /* name */
	uint32_t max_message;	 /* of one request, in bytes */
	uint32_t speed;		 /* in Mbit/s; 0: unknown */
};

/*
 * Make the channels of a connection, and shake hands on each over the socket. The peer
 * does the same with the descriptions exchanged.
 *
 * theirs     pier_rails_describe() of the peer; may be hostile
 * rails      the most channels; the same at both ends
 * timeout_s  the most seconds until all are connected
 * initiates  whether this end posts the requests, and the peer receives
 * ret_ends   at least one; give each to pier_channel_destroy(), also after an error
 *
 * Returns 0, or a negative errno with a sentence in pier_error_message().
 */
int make_channels(const device_list &devices, const std::string &theirs, uint32_t rails,
		  uint32_t timeout_s, bool initiates, int socket,
		  std::vector<channel_end> &ret_ends);

} // namespace pier_nixl

#endif
