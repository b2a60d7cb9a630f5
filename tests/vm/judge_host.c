/* SPDX-License-Identifier: BSD-3-Clause */
#include "cases.h"

#include <stdio.h>

#include <pier/mr.h>

enum {
	WRITE = PIER_ACCESS_LOCAL_WRITE,
	SHARED = PIER_ACCESS_SHARED,
};

static const uint64_t two_32 = 1ull << 32, two_47 = 1ull << 47, two_63 = 1ull << 63;

enum {
	ADDRESSES = 23,
	LENGTHS = 28,
};

static void list_addresses(const struct court *court,
			   struct named ret_addresses[ADDRESSES])
{
	uint64_t page = court->page, start = court->memory;
	uint64_t end = start + court->memory_length;
	const struct named addresses[ADDRESSES] = {
		{ "start-page", start - page },
		{ "start-1", start - 1 },
		{ "start", start },
		{ "start+1", start + 1 },
		{ "start+page-1", start + page - 1 },
		{ "start+page", start + page },
		{ "start+page+1", start + page + 1 },
		{ "end-page", end - page },
		{ "end-1", end - 1 },
		{ "end", end },
		{ "0", 0 },
		{ "1", 1 },
		{ "2^32-1", two_32 - 1 },
		{ "2^32", two_32 },
		{ "2^47-page", two_47 - page },
		{ "2^47", two_47 },
		{ "2^63", two_63 },
		{ "2^64-2page-1", -2 * page - 1 },
		{ "2^64-2page", -2 * page },
		{ "2^64-page-1", -page - 1 },
		{ "2^64-page", -page },
		{ "2^64-page+1", -page + 1 },
		{ "2^64-1", -1ull },
	};

	memcpy(ret_addresses, addresses, sizeof(addresses));
}

static void list_lengths(const struct court *court, uint64_t address,
			 struct named ret_lengths[LENGTHS])
{
	uint64_t page = court->page;
	uint64_t rest = court->memory + court->memory_length - address;
	uint64_t most = page * UINT32_MAX - address % page; /* in UINT_MAX pages */
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
		{ "2^32-1", two_32 - 1 },
		{ "2^32", two_32 },
		{ "2^32+rest", two_32 + rest },
		{ "2^32-1 pages", most },
		{ "2^32-1 pages and 1", most + 1 },
		{ "2^32 pages", page << 32 },
		{ "2^32+1 pages", (page << 32) + page },
		{ "2^63", two_63 },
		{ "to 2^64-page-1", -page - 1 - address },
		{ "to 2^64-page", -page - address },
		{ "to 2^64-page+1", -page + 1 - address },
		{ "to 2^64-1", -1 - address },
		{ "to 2^64", -address },
		{ "past 2^64", -address + 1 },
		{ "2^64-2page", -2 * page },
		{ "2^64-page", -page },
		{ "2^64-page+1", -page + 1 },
		{ "2^64-1", -1ull },
	};

	memcpy(ret_lengths, lengths, sizeof(lengths));
}

static void judge_iovas(struct court *court, const struct named *address,
			const struct named *length)
{
	struct named iovas[IOVAS];
	char name[160];

	court_iovas(court, address->value, length->value, iovas);
	for (size_t i = 0; i < IOVAS; i++) {
		struct request request = {
			.host = true,
			.offset = address->value,
			.length = length->value,
			.iova = iovas[i].value,
			.fd = -1,
			.access = SHARED,
		};

		snprintf(name, sizeof(name), "address %s, length %s, iova %s",
			 address->name, length->name, iovas[i].name);
		court_judge(court, &request, name);
	}
}

/* Positions of a region in the address space, and its iovas. */
void judge_host_ranges(void **state)
{
	struct judge *judge = *state;
	struct named addresses[ADDRESSES], lengths[LENGTHS];

	list_addresses(&judge->court, addresses);
	for (size_t i = 0; i < ADDRESSES; i++) {
		list_lengths(&judge->court, addresses[i].value, lengths);
		for (size_t j = 0; j < LENGTHS; j++)
			judge_iovas(&judge->court, &addresses[i], &lengths[j]);
	}
	court_report(&judge->court, "ranges of host memory", ADDRESSES * LENGTHS * IOVAS,
		     300);
}

static void judge_access(struct court *court, int access)
{
	struct request request = {
		.host = true,
		.offset = court->memory,
		.length = 1,
		.iova = court->memory,
		.fd = -1,
		.access = access,
	};
	char name[80];

	snprintf(name, sizeof(name), "host memory, access 0x%x", (unsigned int)access);
	court_judge(court, &request, name);
}

/* The lowest four flags, and each other bit combined with them. */
void judge_host_access(void **state)
{
	struct judge *judge = *state;

	for (int low = 0; low < 16; low++) {
		judge_access(&judge->court, low);
		for (int bit = 4; bit < 32; bit++)
			judge_access(&judge->court, (int)((unsigned int)low | 1u << bit));
	}
	judge_access(&judge->court, -1);
	court_report(&judge->court, "access to host memory", 16 * 29 + 1, 20);
}

/* Mistakes of each kind; each is combined with each. */
static const struct {
	const char *name;
	uint64_t length;
} ranges[] = {
	{ "good range", 1 },
	{ "length 0", 0 },
	{ "sum past 2^64", UINT64_MAX },
	{ "too many pages", 1ull << 62 },
};

static const struct {
	const char *name;
	int access;
} accesses[] = {
	{ "good access", SHARED },
	{ "reading", 0 },
	{ "unknown flag", WRITE | 1 << 10 },
	{ "no local write", PIER_ACCESS_REMOTE_ATOMIC },
	{ "on demand", WRITE | PIER_ACCESS_ON_DEMAND },
};

static const struct {
	const char *name;
	uint64_t shift; /* added to the address */
} shifts[] = {
	{ "good iova", 0 },
	{ "iova one off", 1 },
	{ "iova 2^32 off", 1ull << 32 },
	{ "iova half a page off", 2048 },
};

enum {
	RANGES = sizeof(ranges) / sizeof(ranges[0]),
	ACCESSES = sizeof(accesses) / sizeof(accesses[0]),
	SHIFTS = sizeof(shifts) / sizeof(shifts[0]),
};

static void judge_mistakes(struct court *court, size_t range, size_t access, size_t shift)
{
	struct request request = {
		.host = true,
		.offset = court->memory,
		.length = ranges[range].length,
		.iova = court->memory + shifts[shift].shift,
		.fd = -1,
		.access = accesses[access].access,
	};
	char name[160];

	snprintf(name, sizeof(name), "host memory, %s, %s, %s", ranges[range].name,
		 accesses[access].name, shifts[shift].name);
	court_judge(court, &request, name);
}

void judge_host_mistakes(void **state)
{
	struct judge *judge = *state;

	for (size_t range = 0; range < RANGES; range++)
		for (size_t access = 0; access < ACCESSES; access++)
			for (size_t shift = 0; shift < SHIFTS; shift++)
				judge_mistakes(&judge->court, range, access, shift);
	court_report(&judge->court, "mistakes with host memory",
		     RANGES * ACCESSES * SHIFTS, 4);
}
