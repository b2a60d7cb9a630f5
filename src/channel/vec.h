/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_VEC_H
#define PIER_CHANNEL_VEC_H

#include <pier/post.h>

/*
 * Post a request of more elements than one takes: in several, if it can be, with one
 * handle. Its form is checked. Errors: as pier_post_request().
 */
int pier_post_longer(struct pier_channel *channel, const struct pier_request *request,
		     struct pier_work *ret_work);

#endif
