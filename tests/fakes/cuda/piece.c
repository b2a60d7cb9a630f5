/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>

#include "fake.h"

struct fake_piece *fake_add_piece(enum fake_cuda_kind kind, uint64_t address,
				  uint64_t size)
{
	struct fake_piece *piece = calloc(1, sizeof(*piece));

	if (!piece)
		return NULL;
	*piece = (struct fake_piece){
		.next = fake_driver.pieces,
		.kind = kind,
		.address = address,
		.size = size,
		.id = ++fake_driver.last_id,
		.device = -1,
	};
	fake_driver.pieces = piece;
	fake_driver.control.live[kind]++;
	return piece;
}

void fake_remove_piece(struct fake_piece *piece)
{
	struct fake_piece **link = &fake_driver.pieces;

	while (*link != piece)
		link = &(*link)->next;
	*link = piece->next;
	fake_driver.control.live[piece->kind]--;
	free(piece);
}

static struct fake_piece *find(uint64_t address, bool reservation)
{
	struct fake_piece *piece = fake_driver.pieces;

	for (; piece; piece = piece->next)
		if ((piece->kind == FAKE_CUDA_RESERVATION) == reservation &&
		    address >= piece->address && address - piece->address < piece->size)
			break;
	return piece;
}

struct fake_piece *fake_find(uint64_t address)
{
	return find(address, false);
}

struct fake_piece *fake_find_reservation(uint64_t address)
{
	return find(address, true);
}

struct fake_piece *fake_find_base(enum fake_cuda_kind kind, uint64_t address)
{
	struct fake_piece *piece = fake_driver.pieces;

	while (piece && (piece->kind != kind || piece->address != address))
		piece = piece->next;
	return piece;
}

void *fake_at(uint64_t address, uint64_t size, uint64_t *ret_size)
{
	struct fake_piece *piece = fake_find(address);
	uint64_t offset, rest;

	if (!piece || (piece->kind == FAKE_CUDA_MAPPING && !piece->reachable))
		return NULL;
	offset = address - piece->address;
	rest = piece->size - offset;
	*ret_size = size < rest ? size : rest;
	if (!piece->backing)
		return (void *)(uintptr_t)address;
	return piece->backing->bytes + piece->offset + offset;
}
