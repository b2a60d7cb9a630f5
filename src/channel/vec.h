/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_VEC_H
#define PIER_CHANNEL_VEC_H

#include <pier/post.h>

/*
 * Post a request with more elements than one request takes, in several requests with
 * one handle if its opcode allows that. The form was checked. Errors: as
 * pier_channel_post_request().
 */
int pier_post_longer(struct pier_channel *channel, const struct pier_request *request,
		     struct pier_work *ret_work);

#endif
