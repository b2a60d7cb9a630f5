/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_SETUP_ATTR_H
#define PIER_CHANNEL_SETUP_ATTR_H

#include <stdbool.h>

#include <infiniband/verbs.h>

#include <pier/channel.h>

/*
 * The caller's attributes in this library's struct: a caller that was built
 * with an older or newer header has one of another size. NULL gives the
 * defaults, held to what the device can.
 *
 * Errors: -EINVAL shorter than any header ever had, or a field that only a
 * newer library knows is not zero.
 */
int pier_read_channel_attr(const struct pier_channel_attr *attr,
			   const struct ibv_device_attr *device,
			   struct pier_channel_attr *ret_attr);

/*
 * Whether every value is in its range and the device can do it; the sentence
 * names the first that is not, and the limit. 0 or -EINVAL.
 */
int pier_check_channel_attr(const struct pier_channel_attr *attr,
			    const struct ibv_device_attr *device);

/* The two attributes that can be changed later. 0 or -EINVAL. */
int pier_check_waiting(enum pier_waiting waiting, uint32_t spin_us);

/*
 * Of the completion queue: all that can be outstanding (see <pier/srq.h> for what a
 * shared queue adds), or what was asked for.
 */
uint32_t pier_cq_entries(const struct pier_channel_attr *attr);

/*
 * Likewise against the port, which must be asked for after attr->port was
 * checked. 0, -EINVAL or -ENETDOWN.
 */
int pier_check_channel_port(const struct pier_channel_attr *attr,
			    const struct ibv_port_attr *port);

#endif
