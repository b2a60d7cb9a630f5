/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "refused_qp.h"

/*
 * A device's limits hold one at a time. libmlx5 counts blocks of 64 bytes: a send of 16
 * elements takes 7 of them, so that 4,681 fit where max_qp_wr is 32,768, and it fails
 * with a bare EINVAL (mlx5_calc_sq_size() of libmlx5).
 */

/* A number in struct ibv_qp_cap, and the lowest that is useful. */
struct number {
	const char *name;
	size_t offset;
	uint32_t least;
};

static const struct number numbers[] = {
	{ "max_send_wr", offsetof(struct ibv_qp_cap, max_send_wr), 1 },
	{ "max_recv_wr", offsetof(struct ibv_qp_cap, max_recv_wr), 1 },
	{ "max_send_sge", offsetof(struct ibv_qp_cap, max_send_sge), 1 },
	{ "max_recv_sge", offsetof(struct ibv_qp_cap, max_recv_sge), 1 },
	{ "max_inline", offsetof(struct ibv_qp_cap, max_inline_data), 0 },
};

static uint32_t *number_in(struct ibv_qp_cap *cap, const struct number *number)
{
	return (uint32_t *)((char *)cap + number->offset);
}

/* The call changes what it is given: a copy. */
static bool accepts_qp(const struct pier_channel *channel, struct ibv_qp_init_attr init)
{
	struct ibv_qp *qp = pier_create_direct_qp(channel->provider, channel->pd->pd,
						  &init);

	return qp && channel->provider->destroy_qp(qp) == 0;
}

/* The highest number that is accepted, with the others as they are. False: none is. */
static bool find_highest(const struct pier_channel *channel, const struct number *number,
			 struct ibv_qp_init_attr init, uint32_t *ret_highest)
{
	uint32_t *value = number_in(&init.cap, number);
	uint32_t good = number->least, bad = *value;

	if (bad <= good)
		return false;
	*value = good;
	if (!accepts_qp(channel, init))
		return false;
	while (bad - good > 1) {
		*value = good + (bad - good) / 2;
		if (accepts_qp(channel, init))
			good = *value;
		else
			bad = *value;
	}
	*ret_highest = good;
	return true;
}

void pier_explain_refused_qp(const struct pier_channel *channel, int error,
			     const struct ibv_qp_init_attr *refused, char *ret_text,
			     size_t size)
{
	size_t used = 0;
	uint32_t highest;

	ret_text[0] = '\0';
	/* If it is accepted now, it was not refused for a number. */
	if ((error != EINVAL && error != ENOMEM) || accepts_qp(channel, *refused))
		return;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (used < size && find_highest(channel, &numbers[i], *refused, &highest))
			used += (size_t)snprintf(ret_text + used, size - used, "%s %s %u",
						 used ? ", or" : ": it takes",
						 numbers[i].name, highest);
}
