/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_ATTR_H
#define PIER_CHANNEL_SETUP_ATTR_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include <pier/channel.h>

/*
 * Read the caller's attributes into this library's struct. The sizes differ if the
 * caller was built with an older or newer header. NULL leaves all members unset.
 * Members that are unset take the values of PIER_CHANNEL, or their defaults, clamped to
 * the limits of the device.
 *
 * Errors: -EINVAL the struct is shorter than in the first version, a field that this
 * library does not know is set, or PIER_CHANNEL is invalid.
 */
int pier_read_channel_attr(const struct pier_channel_attr *attr,
			   const struct ibv_device_attr *device,
			   struct pier_channel_attr *ret_attr);

/*
 * Check that every value is in its range and possible on the device. The sentence names
 * the first that is not, and the limit. Errors: -EINVAL.
 */
int pier_check_channel_attr(const struct pier_channel_attr *attr,
			    const struct ibv_device_attr *device);

/* Lower a default to the limit of a device; 0: none is known. */
static inline uint32_t pier_clamp_to_limit(uint32_t usual, uint32_t limit)
{
	return limit > 0 && usual > limit ? limit : usual;
}

/* Check one value. what: "channel attributes"; whose: of the limits. Errors: -EINVAL. */
int pier_check_range(const char *what, const char *name, uint32_t value, uint32_t first,
		     uint32_t last, const char *whose);

/* Check the two attributes that can be changed later. Errors: -EINVAL. */
int pier_check_waiting(enum pier_waiting waiting, uint32_t spin_us);

/*
 * The entries of a completion queue for the channel's own requests, without the receives
 * of a shared receive queue.
 */
uint32_t pier_request_entries(const struct pier_channel_attr *attr);

/*
 * The size of the completion queue: as requested, or for all requests that can be
 * outstanding (see <pier/srq.h> for shared receive queues).
 */
uint32_t pier_cq_entries(const struct pier_channel_attr *attr);

/*
 * Check against the port, which the caller queries after attr->port was checked.
 * Errors: -EINVAL, -ENETDOWN.
 */
int pier_check_channel_port(const struct pier_channel_attr *attr,
			    const struct ibv_port_attr *port);

/* Set the members that PIER_CHANNEL gives a value, and leave all others unset. */
int pier_read_environment(struct pier_channel_attr *ret_attr);

#endif
