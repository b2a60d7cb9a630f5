/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CHANNEL_VEC_H
#define PIER_CHANNEL_VEC_H

#include <pier/post.h>

/* Whether it is a write or a read that takes several requests. The form was checked. */
bool pier_needs_several(const struct pier_channel *channel,
			const struct pier_request *request);

/* Post such a request, with one handle. Errors: as pier_channel_post_request(). */
int pier_post_several(struct pier_channel *channel, const struct pier_request *request,
		      struct pier_work *ret_work);

/* Move its bytes, in turns if necessary. Errors: as pier_channel_run_request(). */
int pier_run_several(struct pier_channel *channel, const struct pier_request *request,
		     int timeout_ms, struct pier_result *ret_result);

#endif
