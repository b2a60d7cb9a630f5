/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include <pier/channel.h>
#include <pier/element.h>
#include <pier/endpoint.h>
#include <pier/remote.h>
#include <pier/sync.h>

#include "core/caller.h"
#include "core/error.h"
#include "region/mr.h"

/* A NIC that reads back what it wrote: see <pier/sync.h>. */

struct pier_reader {
	struct pier_pd *pd;
	struct pier_channel *near,
		*far; /* the reading end, and the end that it is connected to */
	struct pier_mr *mr;
	uint8_t byte;
};

static int connect_ends(struct pier_channel *near, struct pier_channel *far)
{
	struct pier_endpoint of_near, of_far;
	int error = pier_channel_endpoint(near, &of_near);

	if (!error)
		error = pier_channel_endpoint(far, &of_far);
	if (!error)
		error = pier_channel_connect(near, &of_far);
	return error ? error : pier_channel_connect(far, &of_near);
}

static int open_reader(struct pier_reader *reader, int timeout_ms)
{
	struct pier_channel_attr attr;
	int error = pier_mr_reg(reader->pd, &reader->byte, 1, PIER_ACCESS_LOCAL_WRITE,
				&reader->mr);

	pier_channel_attr_init(&attr);
	attr.max_send_wr = attr.max_recv_wr = 1;
	attr.max_send_sge = attr.max_recv_sge = 1;
	attr.access = PIER_ACCESS_REMOTE_READ;
	attr.timeout_ms = timeout_ms;
	if (!error)
		error = pier_channel_create(reader->pd, &attr, &reader->near);
	if (!error)
		error = pier_channel_create(reader->pd, &attr, &reader->far);
	return error ? error : connect_ends(reader->near, reader->far);
}

int pier_reader_create(struct pier_pd *pd, int timeout_ms,
		       struct pier_reader **ret_reader)
{
	PIER_REFUSE_NULL(pd, ret_reader);
	PIER_ENTRY();
	struct pier_reader *reader = calloc(1, sizeof(*reader));
	int error;

	if (!reader)
		return pier_fail(ENOMEM, "no memory for reading back");
	reader->pd = pd;
	error = open_reader(reader, timeout_ms);
	if (error) {
		/* The sentence of the failure stays: destroying leaves none. */
		pier_reader_destroy(reader);
		return error;
	}
	*ret_reader = reader;
	return 0;
}

/* The remote address of the byte, with the key of its part. */
static int find_byte(const struct pier_mr *mr, uint64_t offset,
		     struct pier_remote *ret_remote)
{
	for (uint32_t i = 0; i < pier_mr_parts(mr); i++) {
		struct pier_mr_part_info part;
		int error = pier_mr_part(mr, i, &part, sizeof(part));

		if (error)
			return error;
		if (offset < part.offset || offset - part.offset >= part.length)
			continue;
		*ret_remote = (struct pier_remote){
			.addr = part.iova + (offset - part.offset),
			.length = 1,
			.rkey = part.rkey,
		};
		return 0;
	}
	return pier_fail(ERANGE, "offset %" PRIu64 " is not in the region of %zu", offset,
			 pier_mr_length(mr));
}

static int check_region(const struct pier_reader *reader, const struct pier_mr *mr)
{
	if (mr->pd != reader->pd)
		return pier_fail(
			EINVAL,
			"the region is in another protection domain than the reader");
	if (!(mr->access & PIER_ACCESS_REMOTE_READ) || mr->window)
		return pier_fail(EACCES, "%s",
				 mr->window ? "only the peer can read a memory window: "
					      "read back the region that it is bound to"
					    : "the region was registered without "
					      "PIER_ACCESS_REMOTE_READ");
	return 0;
}

int pier_reader_read_back(struct pier_reader *reader, struct pier_mr *mr, uint64_t offset)
{
	PIER_REFUSE_NULL(reader, mr);
	struct pier_scatter target;
	struct pier_remote source;
	int error = check_region(reader, mr);

	if (!error)
		error = find_byte(mr, offset, &source);
	if (!error)
		error = pier_mr_scatter(reader->mr, pier_mr_iova(reader->mr), 1, &target);
	return error ? error
		     : pier_channel_read(reader->near, &target, 1, &source,
					 PIER_TIMEOUT_DEFAULT);
}

int pier_reader_destroy(struct pier_reader *reader)
{
	int error;

	if (!reader)
		return 0;
	error = pier_channel_destroy(reader->near);
	if (error)
		return error;
	reader->near = NULL;
	error = pier_channel_destroy(reader->far);
	if (error)
		return error;
	reader->far = NULL;
	error = pier_mr_dereg(reader->mr);
	if (!error)
		free(reader);
	return error;
}
