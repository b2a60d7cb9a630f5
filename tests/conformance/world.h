/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef CONFORMANCE_WORLD_H
#define CONFORMANCE_WORLD_H

#include "../support/cmocka.h"
#include "../support/census.h"
#include "../support/expect.h"
#include "../support/random.h"
#include "../support/requests.h"

#include "end.h"

/*
 * A case's environment: two ends in this process, made by the case and closed afterwards
 * even if it fails. Then the census must be the same as before.
 */
struct world {
	struct end a, b;
	struct test_census before;
	struct test_random random;
};

int world_setup(void **state);
int world_teardown(void **state);
#define world_case(body) \
	cmocka_unit_test_setup_teardown(body, world_setup, world_teardown)

/* The reason why nothing can be tested here, or no channel, or NULL. */
extern const char *world_problem, *world_no_channels;
extern int cases_run;

/*
 * The case's world: empty, empty but for a case that will make channels, with two ends
 * that have no channels, with two unconnected ends, or with two connected ones. The areas
 * of the ends are full of random bytes. Skips the case with the reason if that is not
 * possible here.
 */
struct world *world_empty(void **state);
struct world *world_for_channels(void **state);
struct world *world_opened(void **state);
struct world *world_prepared(void **state, const struct pier_channel_attr *attr);
struct world *world_connected(void **state);
struct world *world_connected_with(void **state, const struct pier_channel_attr *attr);

/* Skip the running case for this reason. */
void world_skip(const char *reason);

/* New random bytes in memory and image. */
void area_shuffle(struct world *world, struct area *area);

/* Every byte is that of the image, whether it was written or not. */
void area_expect(const struct area *area);
void world_expect(const struct world *world);

/* Copy the bytes in the images. */
void image_copy(struct area *to, size_t to_offset, const struct area *from,
		size_t from_offset, size_t length);

struct pier_gather gather_at(const struct area *area, size_t offset, size_t length);
struct pier_scatter scatter_at(const struct area *area, size_t offset, size_t length);
struct pier_remote remote_at(const struct area *area, size_t offset, size_t length);

/* Wait for a request, which must end with this error. Returns the result. */
struct pier_result expect_end(struct pier_channel *channel, struct pier_work work,
			      int error);

/*
 * The same, but devices with vague errors may report the other one: rxe flushes requests
 * on memory outside their region (IBV_WC_WR_FLUSH_ERR), and reports a receive that is too
 * short as IBV_WC_LOC_QP_OP_ERR here and IBV_WC_REM_OP_ERR at the peer.
 */
void expect_vague_end(struct pier_channel *channel, struct pier_work work, int error,
		      int vague_error);

#endif
