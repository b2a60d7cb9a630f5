/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"

#include <limits.h>
#include <stdio.h>

#include <pier/mr.h>

enum {
	WRITE = PIER_ACCESS_LOCAL_WRITE,
	SHARED = PIER_ACCESS_SHARED,
};

static const uint64_t two_32 = 1ull << 32, two_63 = 1ull << 63;

enum {
	OFFSETS = 22,
	LENGTHS = 21,
};

static void list_offsets(uint64_t page, uint64_t end, struct named ret_offsets[OFFSETS])
{
	const struct named offsets[OFFSETS] = {
		{ "0", 0 },
		{ "1", 1 },
		{ "page-1", page - 1 },
		{ "page", page },
		{ "page+1", page + 1 },
		{ "2page-1", 2 * page - 1 },
		{ "2page", 2 * page },
		{ "end-page-1", end - page - 1 },
		{ "end-page", end - page },
		{ "end-page+1", end - page + 1 },
		{ "end-1", end - 1 },
		{ "end", end },
		{ "end+1", end + 1 },
		{ "end+page", end + page },
		{ "2^32-1", two_32 - 1 },
		{ "2^32", two_32 },
		{ "2^32+1", two_32 + 1 },
		{ "2^63-1", two_63 - 1 },
		{ "2^63", two_63 },
		{ "2^64-page-1", -page - 1 },
		{ "2^64-page", -page },
		{ "2^64-1", -1ull },
	};

	memcpy(ret_offsets, offsets, sizeof(offsets));
}

static void list_lengths(uint64_t page, uint64_t end, uint64_t offset,
			 struct named ret_lengths[LENGTHS])
{
	uint64_t rest = end - offset;
	const struct named lengths[LENGTHS] = {
		{ "0", 0 },
		{ "1", 1 },
		{ "2", 2 },
		{ "page-1", page - 1 },
		{ "page", page },
		{ "page+1", page + 1 },
		{ "rest-page", rest - page },
		{ "rest-1", rest - 1 },
		{ "rest", rest },
		{ "rest+1", rest + 1 },
		{ "rest+page", rest + page },
		{ "2^32-1", two_32 - 1 },
		{ "2^32", two_32 },
		{ "2^32+rest", two_32 + rest },
		{ "2^63", two_63 },
		{ "2^63+rest", two_63 + rest },
		{ "to 2^64-1", -1 - offset },
		{ "to 2^64", -offset },
		{ "past 2^64", -offset + 1 },
		{ "2^64-page", -page },
		{ "2^64-1", -1ull },
	};

	memcpy(ret_lengths, lengths, sizeof(lengths));
}

static void judge_iovas(struct court *court, const struct target *target,
			const struct named *offset, const struct named *length)
{
	struct named iovas[IOVAS];
	char name[160];

	court_iovas(court, offset->value, length->value, iovas);
	for (size_t i = 0; i < IOVAS; i++) {
		struct request request = {
			.offset = offset->value,
			.length = length->value,
			.iova = iovas[i].value,
			.fd = target->fd,
			.access = SHARED,
		};

		snprintf(name, sizeof(name), "%s, offset %s, length %s, iova %s",
			 target->name, offset->name, length->name, iovas[i].name);
		court_judge(court, &request, name);
	}
}

static void judge_ranges_of(struct court *court, const struct target *target)
{
	uint64_t page = court->page;
	struct named offsets[OFFSETS], lengths[LENGTHS];

	list_offsets(page, target->size, offsets);
	for (size_t i = 0; i < OFFSETS; i++) {
		list_lengths(page, target->size, offsets[i].value, lengths);
		for (size_t j = 0; j < LENGTHS; j++)
			judge_iovas(court, target, &offsets[i], &lengths[j]);
	}
}

/* Positions of a region in a dma-buf, and its iovas. */
void judge_dmabuf_ranges(void **state)
{
	struct judge *judge = *state;
	size_t judged = 1;

	judge_ranges_of(&judge->court, &judge->targets.list[TARGET_UDMABUF]);
	if (judge->targets.dmabufs > TARGET_HEAP) {
		judge_ranges_of(&judge->court, &judge->targets.list[TARGET_HEAP]);
		judged++;
	}
	court_report(&judge->court, "ranges of dma-bufs",
		     judged * OFFSETS * LENGTHS * IOVAS, judged * 500);
}

static void judge_access(struct court *court, const struct target *target, int access)
{
	struct request request = { .length = 1, .fd = target->fd, .access = access };
	char name[80];

	snprintf(name, sizeof(name), "%s, access 0x%x", target->name,
		 (unsigned int)access);
	court_judge(court, &request, name);
	request.fd = -1;
	snprintf(name, sizeof(name), "fd -1, access 0x%x", (unsigned int)access);
	court_judge(court, &request, name);
}

/*
 * The lowest four flags, relaxed ordering, and each other bit alone and combined. The fd
 * -1 shows whether the flags were accepted.
 */
void judge_dmabuf_access(void **state)
{
	struct judge *judge = *state;
	const struct target *target = &judge->targets.list[TARGET_UDMABUF];

	for (int low = 0; low < 16; low++) {
		judge_access(&judge->court, target, low);
		for (int bit = 4; bit < 32; bit++)
			judge_access(&judge->court, target,
				     (int)((unsigned int)low | 1u << bit));
	}
	judge_access(&judge->court, target, -1);
	judge_access(&judge->court, target, INT_MIN | INT_MAX);
	court_report(&judge->court, "access to dma-bufs", 2 * (16 * 29 + 2), 10);
}

/* Mistakes of each kind, and correct values; each is combined with each. */
static const struct {
	const char *name;
	uint64_t offset, length;
} ranges[] = {
	{ "good range", 0, 1 },
	/* A mistake for a dma-buf of one page. */
	{ "two pages", 0, 8192 },
	{ "length 0", 0, 0 },
	{ "length 0 in a page", 1, 0 },
	{ "length 0 past the end", 1ull << 40, 0 },
	{ "past the end", 0, 1ull << 40 },
	{ "offset past the end", 1ull << 40, 1 },
	{ "sum of 2^64-1", 1, UINT64_MAX - 1 },
	{ "sum of 2^64", 1, UINT64_MAX },
	{ "sum past 2^64", 2, UINT64_MAX },
};

static const struct {
	const char *name;
	int access;
} accesses[] = {
	{ "good access", SHARED },
	{ "reading", 0 },
	{ "unknown flag", WRITE | 1 << 10 },
	{ "optional flag", WRITE | 1 << 21 },
	{ "no local write", PIER_ACCESS_REMOTE_WRITE },
};

static const struct {
	const char *name;
	uint64_t pages, bytes; /* added to the offset */
} shifts[] = {
	{ "good iova", 0, 0 },
	{ "misaligned iova", 0, 1 },
	/* Two pages wrap there. */
	{ "iova in the last page", -1ull, 0 },
};

enum {
	RANGES = sizeof(ranges) / sizeof(ranges[0]),
	ACCESSES = sizeof(accesses) / sizeof(accesses[0]),
	SHIFTS = sizeof(shifts) / sizeof(shifts[0]),
};

static void judge_mistakes(struct court *court, const struct target *target, size_t range,
			   size_t access)
{
	char name[160];

	for (size_t i = 0; i < SHIFTS; i++) {
		struct request request = {
			.offset = ranges[range].offset,
			.length = ranges[range].length,
			.iova = ranges[range].offset + shifts[i].pages * court->page +
				shifts[i].bytes,
			.fd = target->fd,
			.access = accesses[access].access,
		};

		snprintf(name, sizeof(name), "%s, %s, %s, %s", target->name,
			 ranges[range].name, accesses[access].name, shifts[i].name);
		court_judge(court, &request, name);
	}
}

/* Every kind of fd with every combination of other mistakes. */
void judge_dmabuf_mistakes(void **state)
{
	struct judge *judge = *state;
	const struct targets *targets = &judge->targets;

	for (size_t i = 0; i < targets->count; i++)
		for (size_t range = 0; range < RANGES; range++)
			for (size_t access = 0; access < ACCESSES; access++)
				judge_mistakes(&judge->court, &targets->list[i], range,
					       access);
	court_report(&judge->court, "fds and mistakes", 20 * RANGES * ACCESSES * SHIFTS,
		     targets->dmabufs * 2);
}
