/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "canary.h"
#include "core/error.h"
#include "core/log.h"
#include "device/loop.h"
#include "device/pair.h"

enum {
	SENTENCE_SIZE = 768,
};

struct canary {
	struct pier_pd *pd;
	const char *memory; /* "cuda:0" */
	size_t page;
	struct pier_loop *loop;
	/* Host memory, a page each: what was sent, and where bytes arrive. */
	uint8_t *sent, *arrived;
	struct ibv_mr *host;
	/* Two pages of the device. The second is tested, so its offset counts, too. */
	struct pier_buffer *buffer;
	struct pier_mr_part part;
	char sentence[SENTENCE_SIZE]; /* why the path is refused; "": it is not */
	/* Only what the registration of a segment reads. Last: it has no fixed size. */
	struct pier_mr region;
};

static bool needs_canary(const struct pier_segment *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;

	return !segment->canary && !buffer->memory.cpu &&
	       segment->region->pd->device->switches.canary != PIER_SWITCH_OFF;
}

static struct pier_pair *find_pair(const struct pier_segment *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;
	struct pier_memory_facts facts = pier_facts_of(buffer);

	return pier_find_pair(segment->region->pd->device, buffer->backend->name,
			      facts.unit);
}

/* Not predictable: other pages may hold the bytes of an earlier canary. */
static int fill_pattern(struct canary *canary)
{
	uint64_t state;

	if (getrandom(&state, sizeof(state), 0) != (ssize_t)sizeof(state))
		return pier_fail(EIO, "getrandom() returned too few bytes");
	for (size_t i = 0; i < canary->page; i++) {
		state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
		canary->sent[i] = (uint8_t)(state >> 56);
		/* Bytes that do not arrive differ, too. */
		canary->arrived[i] = (uint8_t)~canary->sent[i];
	}
	return 0;
}

static int make_host_memory(struct canary *canary)
{
	const struct pier_provider *provider = canary->pd->device->provider;

	canary->sent = aligned_alloc(canary->page, 2 * canary->page);
	if (!canary->sent)
		return pier_fail(ENOMEM, "no memory for a pattern");
	canary->arrived = canary->sent + canary->page;
	pier_clear_error();
	errno = 0;
	canary->host = provider->reg_mr(canary->pd->pd, canary->sent, 2 * canary->page,
					(uintptr_t)canary->sent,
					IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!canary->host)
		return pier_fail_because(errno ? errno : EIO, "register a pattern");
	return fill_pattern(canary);
}

static int register_device(struct canary *canary, enum pier_mapping mapping,
			   int (*take)(const struct pier_segment *segment,
				       struct pier_mr_part *ret_part))
{
	struct pier_segment segment = {
		.region = &canary->region,
		.mapping = mapping,
		.canary = true,
	};

	canary->region.pd = canary->pd;
	canary->region.access = PIER_ACCESS_LOCAL_WRITE | PIER_ACCESS_REMOTE_READ;
	canary->region.split = PIER_SPLIT_NEVER;
	segment.range = pier_mr_range_buffer(canary->buffer, canary->page, canary->page);
	segment.iova = pier_buffer_address(canary->buffer) + canary->page;
	return take(&segment, &canary->part);
}

static struct ibv_sge element_of(const struct canary *canary, const void *host)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)host,
		.length = (uint32_t)canary->page,
		.lkey = canary->host->lkey,
	};
}

/* The NIC reads from the device's memory. */
static int read_device(struct canary *canary)
{
	struct ibv_sge element = element_of(canary, canary->arrived);

	return pier_loop_run(canary->loop, IBV_WR_RDMA_READ, &element, canary->part.iova,
			     canary->part.mr->rkey);
}

/*
 * The NIC writes to the device's memory what it reads from the host: unlike a write, a
 * read completes when its bytes are where they belong.
 */
static int write_device(struct canary *canary)
{
	struct ibv_sge element = {
		.addr = canary->part.iova,
		.length = (uint32_t)canary->page,
		.lkey = canary->part.mr->lkey,
	};

	return pier_loop_run(canary->loop, IBV_WR_RDMA_READ, &element,
			     (uintptr_t)canary->sent, canary->host->rkey);
}

/* From host memory to host memory: does the loop itself work? */
static int try_loop(struct canary *canary)
{
	struct ibv_sge element = element_of(canary, canary->arrived);
	int error = pier_loop_run(canary->loop, IBV_WR_RDMA_READ, &element,
				  (uintptr_t)canary->sent, canary->host->rkey);

	if (!error && memcmp(canary->sent, canary->arrived, canary->page) != 0)
		error = pier_fail(EIO, "its own host memory does not arrive");
	return error;
}

static void refuse_path(struct canary *canary, enum pier_mapping mapping,
			const char *finding)
{
	snprintf(
		canary->sentence, sizeof(canary->sentence),
		"%s and the device do not share the memory of %s (%s%s): %s. The NIC was "
		"given other pages, as amdgpu does without CONFIG_PCI_P2PDMA, or cannot "
		"reach them (IOMMU, PCIe ACS). PIER_CANARY=off skips this test",
		canary->pd->device->name, canary->memory,
		mapping ? "dma-buf, mapping " : "peer memory",
		mapping ? pier_mapping_name(mapping) : "", finding);
}

static void compare_patterns(struct canary *canary, enum pier_mapping mapping,
			     const char *writer, const char *reader)
{
	char finding[128];
	size_t offset = 0;

	while (offset < canary->page && canary->sent[offset] == canary->arrived[offset])
		offset++;
	if (offset == canary->page)
		return;
	snprintf(finding, sizeof(finding),
		 "at offset %zu the %s wrote 0x%02x, and the %s found 0x%02x", offset,
		 writer, canary->sent[offset], reader, canary->arrived[offset]);
	refuse_path(canary, mapping, finding);
}

/* After a failure: a port that went down says nothing about the device's memory. */
static int try_loop_again(struct canary *canary)
{
	int error;

	pier_loop_destroy(canary->loop);
	canary->loop = NULL;
	error = pier_loop_create(canary->pd->device, canary->pd->pd, &canary->loop);
	if (!error)
		error = try_loop(canary);
	return error ? pier_fail(EAGAIN, "%s", pier_error_message()) : 0;
}

static int refuse_request(struct canary *canary, enum pier_mapping mapping,
			  const char *request)
{
	char finding[320];
	int error;

	snprintf(finding, sizeof(finding), "the NIC's %s fails: %s", request,
		 pier_error_message());
	error = try_loop_again(canary);
	if (!error)
		refuse_path(canary, mapping, finding);
	return error;
}

static int test_reading(struct canary *canary, enum pier_mapping mapping)
{
	int error = fill_pattern(canary);

	if (!error)
		error = pier_buffer_copy_to(canary->buffer, canary->page, canary->sent,
					    canary->page);
	if (error)
		return error;
	if (read_device(canary))
		return refuse_request(canary, mapping, "read");
	compare_patterns(canary, mapping, "device", "NIC");
	return 0;
}

/* Reading back waits for the NIC's writes: see <pier/sync.h>. */
static int test_writing(struct canary *canary, enum pier_mapping mapping)
{
	int error = fill_pattern(canary);

	if (error)
		return error;
	if (write_device(canary) || read_device(canary))
		return refuse_request(canary, mapping, "write");
	memset(canary->arrived, ~canary->sent[0], canary->page);
	error = pier_buffer_copy_from(canary->buffer, canary->page, canary->arrived,
				      canary->page);
	if (!error)
		compare_patterns(canary, mapping, "NIC", "device");
	return error;
}

static int run_canary(struct canary *canary, enum pier_mapping mapping,
		      int (*take)(const struct pier_segment *segment,
				  struct pier_mr_part *ret_part))
{
	/* First what costs least where it fails: a program may use all of a GPU. */
	int error = pier_buffer_alloc(canary->memory, 2 * canary->page, &canary->buffer);

	if (!error)
		error = pier_loop_create(canary->pd->device, canary->pd->pd,
					 &canary->loop);
	if (!error)
		error = make_host_memory(canary);
	if (!error)
		error = try_loop(canary);
	if (!error)
		error = register_device(canary, mapping, take);
	if (!error)
		error = test_reading(canary, mapping);
	if (!error && !canary->sentence[0])
		error = test_writing(canary, mapping);
	return error;
}

static void end_canary(struct canary *canary)
{
	const struct pier_provider *provider = canary->pd->device->provider;

	pier_loop_destroy(canary->loop);
	if (canary->part.mr)
		provider->dereg_mr(canary->part.mr);
	if (canary->buffer)
		pier_free_buffer_alone(canary->buffer);
	if (canary->host)
		provider->dereg_mr(canary->host);
	free(canary->sent);
}

/* Errors that may be gone the next time. */
static bool is_passing(int error)
{
	return error == -ENOMEM || error == -EMFILE || error == -ENFILE ||
	       error == -EAGAIN || error == -ENETDOWN || error == -EBUSY;
}

/* Of two threads, the first one's answer stays. */
static void keep_answer(struct pier_pair *pair, enum pier_mapping mapping, char *answer)
{
	char *none = NULL;

	if (answer &&
	    !atomic_compare_exchange_strong(&pair->canary[mapping], &none, answer) &&
	    answer != pier_pair_passed)
		free(answer);
}

static int send_canary(struct pier_pd *pd, struct pier_pair *pair,
		       enum pier_mapping mapping,
		       int (*take)(const struct pier_segment *segment,
				   struct pier_mr_part *ret_part))
{
	struct canary canary = {
		.pd = pd,
		.memory = pair->memory,
		.page = pier_host_page(),
	};
	int error = run_canary(&canary, mapping, take);

	if (error)
		pier_info("whether %s reaches the memory of %s was not tested: %s",
			  pd->device->name, pair->memory, pier_error_message());
	end_canary(&canary);
	if (canary.sentence[0]) {
		keep_answer(pair, mapping, strdup(canary.sentence));
		return pier_fail(EIO, "%s", canary.sentence);
	}
	if (!is_passing(error))
		keep_answer(pair, mapping, pier_pair_passed);
	return 0;
}

int pier_check_canary(const struct pier_segment *segment, enum pier_mapping mapping)
{
	const struct pier_pair *pair = needs_canary(segment) ? find_pair(segment) : NULL;
	const char *answer = pair ? atomic_load(&pair->canary[mapping]) : NULL;

	return answer && answer[0] ? pier_fail(EIO, "%s", answer) : 0;
}

int pier_send_canary(const struct pier_segment *segment, enum pier_mapping mapping,
		     int (*take)(const struct pier_segment *segment,
				 struct pier_mr_part *ret_part))
{
	struct pier_pair *pair = needs_canary(segment) ? find_pair(segment) : NULL;

	if (!pair || atomic_load(&pair->canary[mapping]))
		return pier_check_canary(segment, mapping);
	return send_canary(segment->region->pd, pair, mapping, take);
}
