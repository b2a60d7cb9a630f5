/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_DEVICES_HPP
#define PIER_NIXL_DEVICES_HPP

#include <poll.h>
#include <string>
#include <vector>

#include <pier/pier.h>

#include "clock.hpp"
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
	/* Of all channels, as in struct pier_channel_attr. */
	uint32_t service_level = PIER_UNSET, traffic_class = PIER_UNSET;

      private:
	int open_one(const std::string &name, const settings &chosen);
};

/* The longest notification. */
#define PIER_NIXL_NOTICE_MAX (64 << 20)
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
 * Makes the channels of a connection, and shakes hands on each over the socket, in steps
 * that do not wait for the peer. The peer does the same with the descriptions exchanged.
 */
class channel_maker
{
      public:
	channel_maker() = default;
	channel_maker(const channel_maker &) = delete;
	void operator=(const channel_maker &) = delete;
	~channel_maker();

	/*
	 * devices    must outlast this
	 * theirs     pier_rails_describe() of the peer; may be hostile
	 * rails      the most channels; the same at both ends
	 * timeout_s  the most seconds until all are connected
	 * initiates  whether this end posts the requests, and the peer receives
	 *
	 * Returns 0, or a negative errno with a sentence in pier_error_message().
	 */
	int begin(const device_list &devices, const std::string &theirs, uint32_t rails,
		  uint32_t timeout_s, bool initiates, int socket);
	/*
	 * Returns 1 when all are connected, 0 before that, or a negative errno with a
	 * sentence in pier_error_message().
	 */
	int step();

	/* What the next step waits for, as of poll(2), and its time at the latest. */
	struct pollfd fds[2];
	time_point wake;
	/* At least one, all connected after the last step. Those left are destroyed. */
	std::vector<channel_end> ends;

      private:
	const device_list *from;
	std::vector<pier_rail_pair> pairs;
	size_t connected = 0;
	time_point end;
	bool is_initiator;
	int stream;
};

} // namespace pier_nixl

#endif
