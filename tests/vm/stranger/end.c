/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "end.h"

static int open_device(struct end *end, const struct words *options)
{
	int error = pier_device_open(words_text(options, "device"), &end->device);

	return error ? error : pier_pd_alloc(end->device, &end->pd);
}

/* A kind of memory that does not work here says -EOPNOTSUPP. */
static int open_buffer(struct end *end, const struct words *options, bool *ret_skip)
{
	size_t length = words_number(options, "length");
	int error = pier_buffer_alloc(words_text(options, "memory"), length,
				      &end->buffer);

	*ret_skip = error == -EOPNOTSUPP;
	if (error)
		return error;
	end->bytes = malloc(length);
	if (!end->bytes)
		die("no memory");
	return 0;
}

/* -EOPNOTSUPP of a device that says it can is a failure. */
static int open_region(struct end *end, const struct words *options, bool *ret_skip)
{
	struct pier_device_attr attr;
	int error = pier_device_query(end->device, &attr, sizeof(attr));

	if (error)
		return error;
	error = pier_mr_reg_buffer(end->pd, end->buffer,
				   words_number(options, "region_offset"),
				   words_number(options, "region_length"),
				   PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &end->mr);
	*ret_skip = error == -EOPNOTSUPP && !attr.dmabuf;
	return error;
}

static int open_channel(struct end *end, const struct words *options)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.gid_index = (uint32_t)words_number_or(options, "gid_index", PIER_UNSET);
	attr.mtu = (uint32_t)words_number_or(options, "mtu", 0);
	attr.psn = (uint32_t)words_number_or(options, "psn", PIER_UNSET);
	attr.max_rd_atomic = (uint32_t)words_number_or(options, "max_rd_atomic",
						       PIER_UNSET);
	return pier_channel_create(end->pd, &attr, &end->channel);
}

int end_open(struct end *end, const struct words *options, bool *ret_skip)
{
	int error;

	memset(end, 0, sizeof(*end));
	*ret_skip = false;
	error = open_device(end, options);
	if (!error)
		error = open_buffer(end, options, ret_skip);
	if (!error)
		error = open_region(end, options, ret_skip);
	return error ? error : open_channel(end, options);
}

int end_close(struct end *end)
{
	int error = pier_channel_destroy(end->channel);

	if (!error)
		error = pier_mr_dereg(end->mr);
	if (!error)
		error = pier_buffer_free(end->buffer);
	if (!error)
		error = pier_pd_dealloc(end->pd);
	if (!error)
		error = pier_device_close(end->device);
	free(end->bytes);
	return error;
}
