/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include "core/deadline.h"
#include "core/error.h"
#include "loop.h"
#include "read_back.h"

enum {
	TIMEOUT_MS = 5000,
};

struct pier_read_back {
	struct pier_loop *loop;
	struct ibv_mr *mr;
	uint8_t byte; /* where the bytes go */
};

static int register_byte(struct pier_pd *pd, struct pier_read_back *reader)
{
	errno = 0;
	reader->mr = pd->device->provider->reg_mr(
		pd->pd, &reader->byte, 1, (uintptr_t)&reader->byte,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	return reader->mr ? 0 : pier_fail_because(errno ? errno : EIO, "register a byte");
}

static int start_read_back(struct pier_pd *pd, int64_t deadline)
{
	int error;

	pd->read_back = calloc(1, sizeof(*pd->read_back));
	if (!pd->read_back)
		return pier_fail(ENOMEM, "no memory for a queue pair");
	pier_clear_error();
	error = register_byte(pd, pd->read_back);
	if (!error)
		error = pier_loop_create(pd->device, pd->pd, deadline,
					 &pd->read_back->loop);
	return error;
}

static int read_byte(struct pier_pd *pd, struct ibv_sge *byte)
{
	int64_t deadline = pier_deadline(TIMEOUT_MS);
	int error = pd->read_back ? 0 : start_read_back(pd, deadline);

	if (!error)
		error = pier_loop_run(pd->read_back->loop, IBV_WR_RDMA_WRITE, byte,
				      (uintptr_t)&pd->read_back->byte,
				      pd->read_back->mr->rkey, deadline);
	if (error)
		pier_end_read_back(pd);
	return error;
}

int pier_read_back(struct pier_pd *pd, uint32_t lkey, uint64_t address)
{
	struct ibv_sge byte = { .addr = address, .length = 1, .lkey = lkey };
	int error;

	pthread_mutex_lock(&pd->read_back_lock);
	error = read_byte(pd, &byte);
	pthread_mutex_unlock(&pd->read_back_lock);
	if (error)
		return pier_fail_because(-error, "letting %s read back a byte",
					 pd->device->name);
	return 0;
}

void pier_end_read_back(struct pier_pd *pd)
{
	struct pier_read_back *reader = pd->read_back;

	if (!reader)
		return;
	pier_loop_destroy(reader->loop);
	if (reader->mr)
		pd->device->provider->dereg_mr(reader->mr);
	free(reader);
	pd->read_back = NULL;
}
