/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdatomic.h>

#include "side.h"
#include "staged.h"

/* Of one lane, in a slot of its own. Each number is written in one piece of 8 bytes. */
struct staged_counts {
	_Atomic uint64_t copied; /* by the other side; its NIC writes it */
	uint8_t unused[56];
	_Atomic uint64_t ours; /* what this side writes there */
};

static uint8_t *staging_address(const struct lane *lane, uint64_t offset)
{
	void *memory = NULL;

	/* Host memory, so this does not fail. */
	pier_buffer_map(lane->side->staging, &memory);
	return (uint8_t *)memory + offset;
}

static struct staged_counts *counts_of(const struct lane *lane)
{
	return (struct staged_counts *)staging_address(lane, lane->staged_counts);
}

/*
 * The NICs read and write the counts at any time. That of soft0 is a thread of this
 * process, which to ThreadSanitizer is a race.
 */
__attribute__((no_sanitize_thread)) static uint64_t load_count(_Atomic uint64_t *count)
{
	return atomic_load_explicit(count, memory_order_acquire);
}

__attribute__((no_sanitize_thread)) static void store_count(_Atomic uint64_t *count,
							    uint64_t value)
{
	atomic_store_explicit(count, value, memory_order_release);
}

uint64_t staged_receive_slot(const struct lane *lane, uint64_t number)
{
	const struct side *side = lane->side;

	return lane->staged_recvs + number % side->settings->rx_depth * side->stride;
}

void prepare_staged(struct lane *lane)
{
	struct staged_counts *counts = counts_of(lane);

	store_count(&counts->copied, 0);
	lane->credited = lane->received;
}

int post_staged(struct lane *lane, struct pier_work *ret_work)
{
	const struct side *side = lane->side;
	uint64_t offset = lane->staged_sends + lane->posted % lane->depth * side->stride;
	size_t size = lane->gather.length;
	int error = pier_buffer_copy_from(side->buffer, lane->source,
					  staging_address(lane, offset), size);

	if (!error)
		error = pier_mr_gather(lane->mr, lane_iova(lane, offset), size,
				       &lane->gather);
	return error ? error : pier_post_send(lane->channel, &lane->gather, 1, ret_work);
}

uint32_t staged_credits(const struct lane *lane)
{
	uint64_t copied = load_count(&counts_of(lane)->copied);
	uint64_t away = lane->posted - copied;
	uint32_t most = lane->side->settings->rx_depth;

	/* A number that makes no sense gives no credit. */
	return away < most ? most - (uint32_t)away : 0;
}

int store_staged(const struct lane *lane, uint64_t number, size_t size)
{
	const struct side *side = lane->side;

	return pier_buffer_copy_to(
		side->buffer, lane->destination,
		staging_address(lane, staged_receive_slot(lane, number)), size);
}

int return_credits(struct lane *lane)
{
	uint64_t offset = lane->staged_counts + offsetof(struct staged_counts, ours);
	struct pier_gather element;
	struct pier_remote target;
	int error;

	if (lane->credited == lane->received || pier_channel_send_room(lane->channel) < 1)
		return 0;
	store_count(&counts_of(lane)->ours, lane->received - lane->receive_base);
	error = pier_mr_gather(lane->mr, lane_iova(lane, offset), sizeof(uint64_t),
			       &element);
	if (!error)
		error = pier_remote_sub(&lane->peer,
					lane->staged_counts +
						offsetof(struct staged_counts, copied),
					sizeof(uint64_t), &target);
	if (!error)
		error = pier_post_write(lane->channel, &element, 1, &target, NULL);
	if (!error)
		lane->credited = lane->received;
	return error;
}
