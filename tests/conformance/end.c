/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../support/memory_of.h"
#include "end.h"

const char *test_device, *test_backend, *test_peer_device;
bool test_vague;

struct pier_channel_attr test_attr(void)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.timeout_ms = PATIENT;
	attr.retry_count = 3;
	/* The limit of qedr: see src/provider/fault/persona.c. */
	attr.max_send_sge = attr.max_recv_sge = 4;
	return attr;
}

int area_open(struct area *area, struct pier_pd *pd, int access)
{
	int error = test_buffer_alloc(pier_pd_device(pd), test_backend, AREA_LENGTH,
				      &area->buffer);

	if (error)
		return error;
	area->image = calloc(1, AREA_LENGTH);
	if (!area->image)
		return -ENOMEM;
	return pier_mr_reg_buffer(pd, area->buffer, 0, AREA_LENGTH, access,
				  PIER_POLICY_DIRECT, &area->mr);
}

int area_close(struct area *area)
{
	int error = pier_mr_dereg(area->mr);

	if (!error) {
		area->mr = NULL;
		error = pier_buffer_free(area->buffer);
	}
	if (!error)
		area->buffer = NULL;
	free(area->image);
	area->image = NULL;
	return error;
}

uint64_t area_at(const struct area *area, size_t offset)
{
	return pier_mr_iova(area->mr) + offset;
}

long area_compare(const struct area *area)
{
	uint8_t *now = malloc(AREA_LENGTH);
	long different = -1;

	if (!now || pier_buffer_copy_from(area->buffer, 0, now, AREA_LENGTH) != 0)
		different = 0;
	else if (memcmp(now, area->image, AREA_LENGTH) != 0)
		for (different = 0; now[different] == area->image[different];)
			different++;
	free(now);
	return different;
}

int end_open(struct end *end, const char *device)
{
	int error = pier_device_open(device, &end->device);

	if (!error)
		error = pier_pd_alloc(end->device, &end->pd);
	if (!error)
		error = area_open(&end->area, end->pd, PIER_ACCESS_SHARED);
	return error;
}

int end_prepare(struct end *end, const struct pier_channel_attr *attr)
{
	struct pier_channel_attr usual = test_attr();

	return pier_channel_create(end->pd, attr ? attr : &usual, &end->channel);
}

static void keep_first(int *first, int error)
{
	if (!*first)
		*first = error;
}

int end_close(struct end *end)
{
	int error = 0;

	keep_first(&error, pier_channel_destroy(end->channel));
	keep_first(&error, area_close(&end->area));
	keep_first(&error, pier_pd_dealloc(end->pd));
	keep_first(&error, pier_device_close(end->device));
	*end = (struct end){ 0 };
	return error;
}

int ends_connect(struct end *a, struct end *b)
{
	struct pier_endpoint of_a, of_b;
	int error = pier_channel_endpoint(a->channel, &of_a);

	if (!error)
		error = pier_channel_endpoint(b->channel, &of_b);
	if (!error)
		error = pier_channel_connect(a->channel, &of_b);
	if (!error)
		error = pier_channel_connect(b->channel, &of_a);
	return error;
}
