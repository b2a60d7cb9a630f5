/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/expect.h"

#include <poll.h>
#include <stdlib.h>

#include <pier/element.h>
#include <pier/mr.h>

#include "provider/soft/device.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/queues/cq.h"
#include "provider/soft/queues/poll.h"
#include "provider/soft/soft.h"
#include "stepped_pair.h"

enum {
	NEAR_NANOSECONDS = 2000000,
};

/* Verbs calls carry their context but not its pair: only one pair exists at a time. */
static struct pair *open_pair;

static void before_verb(const struct ibv_context *context)
{
	struct pair_end *ends = open_pair->ends;

	if (open_pair->before_verb)
		open_pair->before_verb(open_pair,
				       &ends[context == ends[1].device.context]);
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *ret_wc)
{
	before_verb(cq->context);
	return pier_soft_poll_cq(cq, count, ret_wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	before_verb(cq->context);
	return pier_soft_req_notify_cq(cq, solicited_only);
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
			void **ret_context)
{
	before_verb(channel->context);
	return pier_soft_get_cq_event(channel, ret_cq, ret_context);
}

static void open_end(struct pair_end *end, const struct pier_channel_attr *attr)
{
	struct ibv_context *context = pier_soft_open_stepped();

	assert_non_null(context);
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	end->provider = pier_soft_provider;
	end->provider.get_cq_event = get_cq_event;
	end->device = (struct pier_device){ .provider = &end->provider,
					    .context = context,
					    .name = "stepped" };
	expect_ok(pier_soft_provider.query_device(context, &end->device.limits));
	expect_ok(pier_pd_alloc(&end->device, &end->pd));
	end->memory = calloc(1, PAIR_MEMORY);
	assert_non_null(end->memory);
	expect_ok(pier_mr_reg(end->pd, end->memory, PAIR_MEMORY, PIER_ACCESS_SHARED,
			      &end->mr));
	expect_ok(pier_channel_create(end->pd, attr, &end->channel));
}

void pair_open(struct pair *pair, const struct pier_channel_attr *attr)
{
	struct pier_endpoint endpoints[2];

	*pair = (struct pair){ .before_verb = NULL };
	open_pair = pair;
	for (int i = 0; i < 2; i++) {
		open_end(&pair->ends[i], attr);
		expect_ok(pier_channel_endpoint(pair->ends[i].channel, &endpoints[i]));
	}
	for (int i = 0; i < 2; i++)
		expect_ok(pier_channel_connect(pair->ends[i].channel, &endpoints[!i]));
	pair_settle(pair);
}

static void close_end(struct pair_end *end)
{
	expect_ok(pier_channel_destroy(end->channel));
	expect_ok(pier_mr_dereg(end->mr));
	expect_ok(pier_pd_dealloc(end->pd));
	for (int i = 0; i < PIER_GID_PORTS; i++)
		pier_drop_gids(end->device.gids[i].gids);
	expect_ok(pier_soft_provider.close_device(end->device.context));
	free(end->memory);
}

void pair_close(struct pair *pair)
{
	close_end(&pair->ends[0]);
	close_end(&pair->ends[1]);
	open_pair = NULL;
}

static void let_time_pass(const struct soft_engine *engine)
{
	while (engine->deadline != SOFT_NEVER && engine->deadline > pier_soft_now() &&
	       engine->deadline - pier_soft_now() < NEAR_NANOSECONDS)
		continue;
}

bool pair_step(struct pair *pair, unsigned int end)
{
	struct ibv_context *context = pair->ends[end].device.context;

	let_time_pass(&soft_context(context)->engine);
	return pier_soft_step(soft_context(context));
}

void pair_settle(struct pair *pair)
{
	bool worked = true;

	while (worked) {
		worked = pair_step(pair, 0);
		worked |= pair_step(pair, 1);
	}
}

bool pair_readable(const struct pair *pair, unsigned int end)
{
	struct pollfd fd = { .fd = pier_channel_fd(pair->ends[end].channel),
			     .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

struct pier_gather pair_gather(const struct pair *pair, unsigned int end, size_t offset,
			       uint32_t length)
{
	const struct pair_end *of = &pair->ends[end];
	struct pier_gather element;

	expect_ok(
		pier_mr_gather(of->mr, (uintptr_t)of->memory + offset, length, &element));
	return element;
}

struct pier_scatter pair_scatter(const struct pair *pair, unsigned int end, size_t offset,
				 uint32_t length)
{
	const struct pair_end *of = &pair->ends[end];
	struct pier_scatter element;

	expect_ok(pier_mr_scatter(of->mr, (uintptr_t)of->memory + offset, length,
				  &element));
	return element;
}

struct pier_remote pair_remote(const struct pair *pair, unsigned int end, size_t offset,
			       uint32_t length)
{
	struct pier_remote whole, part;

	expect_ok(pier_mr_remote(pair->ends[end].mr, &whole));
	expect_ok(pier_remote_sub(&whole, offset, length, &part));
	return part;
}
