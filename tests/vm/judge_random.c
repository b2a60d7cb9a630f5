/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"

#include <inttypes.h>
#include <stdio.h>

#include <pier/mr.h>

/*
 * Random requests: a correct one, of which up to two members are replaced by values near
 * a boundary. The seed is printed, and PIER_SEED replays it.
 */

enum {
	REQUESTS = 10000,
};

static uint64_t below(struct test_random *random, uint64_t limit)
{
	return test_random_below(random, limit);
}

/* A value at a boundary or a few bytes from it. */
static uint64_t near_boundary(struct test_random *random, const struct court *court,
			      uint64_t start, uint64_t end)
{
	uint64_t page = court->page;
	const uint64_t boundaries[] = {
		0,
		page * (1 + below(random, 16)),
		start,
		start + page * below(random, 16),
		end,
		1ull << (12 + below(random, 52)),
		(1ull << 32) * page,
		-page,
		-page * (1 + below(random, 16)),
		test_random_next(random),
	};
	uint64_t count = sizeof(boundaries) / sizeof(boundaries[0]);

	return boundaries[below(random, count)] + below(random, 9) - 4;
}

static int random_access(struct test_random *random)
{
	const int known[] = { PIER_ACCESS_LOCAL_WRITE, PIER_ACCESS_REMOTE_WRITE,
			      PIER_ACCESS_REMOTE_READ, PIER_ACCESS_REMOTE_ATOMIC,
			      PIER_ACCESS_RELAXED_ORDERING };
	unsigned int access = 0;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (below(random, 2))
			access |= (unsigned int)known[i];
	if (below(random, 3) == 0)
		access |= 1u << below(random, 32);
	return (int)access;
}

/* A request inside [start, end) whose iova is congruent modulo the page. */
static struct request good_request(struct test_random *random, const struct court *court,
				   uint64_t start, uint64_t end)
{
	uint64_t length = 1 + below(random, end - start);
	uint64_t offset = start + below(random, end - start - length + 1);
	uint64_t page = court->page;

	return (struct request){
		.offset = offset,
		.length = length,
		.iova = (test_random_next(random) >> below(random, 64)) / page * page +
			offset % page,
		.access = PIER_ACCESS_SHARED,
	};
}

/*
 * Replaces a member. The iova usually follows the offset, since otherwise the first check
 * would refuse most requests.
 */
static void spoil(struct test_random *random, const struct court *court, uint64_t start,
		  uint64_t end, struct request *request)
{
	uint64_t page = court->page;

	switch (below(random, 5)) {
	case 0:
		request->offset = near_boundary(random, court, start, end);
		request->iova = request->iova / page * page + request->offset % page;
		break;
	case 1:
		request->length = near_boundary(random, court, start, end);
		break;
	case 2:
		/* The end is near the boundary, not the length. */
		request->length = near_boundary(random, court, start, end) -
				  request->offset;
		break;
	case 3:
		request->iova = near_boundary(random, court, request->offset,
					      -request->length);
		break;
	default:
		request->access = random_access(random);
	}
}

static void judge_one(struct test_random *random, struct court *court,
		      const struct target *target, const char *name)
{
	uint64_t start = target ? 0 : court->memory;
	uint64_t end = target ? target->size : start + court->memory_length;
	struct request request;

	if (end == 0)
		end = court->memory_length; /* not a dma-buf, so any size will do */
	request = good_request(random, court, start, end);
	request.host = !target;
	request.fd = target ? target->fd : -1;
	for (uint64_t i = below(random, 3); i > 0; i--)
		spoil(random, court, start, end, &request);
	court_judge(court, &request, name);
}

/* The target's name, and how to reproduce the request. */
static void name_request(char *ret_name, size_t size, const char *what, size_t number,
			 uint64_t seed)
{
	snprintf(ret_name, size, "%s, random request %zu with PIER_SEED=%#" PRIx64, what,
		 number, seed);
}

void judge_dmabuf_random(void **state)
{
	struct judge *judge = *state;
	struct test_random random = test_random_start();
	uint64_t seed = random.state;
	char name[160];

	for (size_t i = 0; i < REQUESTS; i++) {
		bool good = below(&random, 8) != 0;
		uint64_t count = good ? judge->targets.dmabufs : judge->targets.count;
		const struct target *target = &judge->targets.list[below(&random, count)];

		name_request(name, sizeof(name), target->name, i, seed);
		judge_one(&random, &judge->court, target, name);
	}
	court_report(&judge->court, "random requests for dma-bufs", REQUESTS,
		     REQUESTS / 4);
}

void judge_host_random(void **state)
{
	struct judge *judge = *state;
	struct test_random random = test_random_start();
	uint64_t seed = random.state;
	char name[160];

	for (size_t i = 0; i < REQUESTS; i++) {
		name_request(name, sizeof(name), "host memory", i, seed);
		judge_one(&random, &judge->court, NULL, name);
	}
	court_report(&judge->court, "random requests for host memory", REQUESTS,
		     REQUESTS / 4);
}
