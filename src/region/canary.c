/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "canary.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "device/loop.h"
#include "device/device.h"

enum {
	SENTENCE_SIZE = 768,
	/* Of waiting for the NIC, in all and for one request. */
	BUDGET_MS = 10000,
	REQUEST_MS = 5000,
};

struct canary {
	struct pier_pd *pd;
	struct pier_pair *pair;
	size_t page;
	int64_t left; /* of the budget, in nanoseconds: the device's time is not in it */
	struct pier_loop *loop;
	/* Host memory, a page each: what was sent, and where bytes arrive. */
	uint8_t *sent, *arrived;
	struct ibv_mr *host;
	/* Two pages of the device. The second is tested, so its offset counts, too. */
	struct pier_buffer *buffer;
	struct pier_mr_part part;
	char *refusal; /* of SENTENCE_SIZE bytes; "": the path is not refused */
	/* Only what the registration of a segment reads. Last: it has no fixed size. */
	struct pier_mr region;
};

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

	/* Shared: if the program forks meanwhile, no page is copied on write. */
	canary->sent = mmap(NULL, 2 * canary->page, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (canary->sent == MAP_FAILED) {
		canary->sent = NULL;
		return pier_fail_because(errno, "no memory for a pattern");
	}
	canary->arrived = canary->sent + canary->page;
	pier_clear_error();
	errno = 0;
	canary->host = provider->reg_mr(canary->pd->pd, canary->sent, 2 * canary->page,
					(uintptr_t)canary->sent,
					IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!canary->host)
		return pier_fail_because(pier_last_errno(), "register a pattern");
	return fill_pattern(canary);
}

static int register_device(struct canary *canary, enum pier_mapping mapping,
			   pier_path_function *take)
{
	struct pier_part_request segment = {
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

static int64_t next_deadline(const struct canary *canary, int64_t now)
{
	int64_t most = INT64_C(1000000) * REQUEST_MS;

	return now + (canary->left < most ? canary->left : most);
}

static int open_loop(struct canary *canary)
{
	int64_t start = pier_now();
	int error = pier_loop_create(canary->pd->device, canary->pd->pd,
				     next_deadline(canary, start), &canary->loop);

	canary->left -= pier_now() - start;
	return error;
}

/* The NIC reads from a remote address to the element. */
static int run_read(struct canary *canary, struct ibv_sge element, uint64_t remote,
		    uint32_t rkey)
{
	int64_t start = pier_now();
	int error = pier_loop_run(canary->loop, IBV_WR_RDMA_READ, &element, remote, rkey,
				  next_deadline(canary, start));

	canary->left -= pier_now() - start;
	return error;
}

/* The NIC reads from the device's memory. */
static int read_device(struct canary *canary)
{
	return run_read(canary, element_of(canary, canary->arrived), canary->part.iova,
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

	return run_read(canary, element, (uintptr_t)canary->sent, canary->host->rkey);
}

/* From host memory to host memory: does the loop itself work? */
static int try_loop(struct canary *canary)
{
	int error = run_read(canary, element_of(canary, canary->arrived),
			     (uintptr_t)canary->sent, canary->host->rkey);

	if (!error && memcmp(canary->sent, canary->arrived, canary->page) != 0)
		error = pier_fail(EIO, "its own host memory does not arrive");
	return error;
}

static void refuse_path(struct canary *canary, enum pier_mapping mapping,
			const char *finding)
{
	snprintf(
		canary->refusal, SENTENCE_SIZE,
		"%s and the device do not share the memory of %s (%s%s): %s. The NIC was "
		"given other pages, as amdgpu does without CONFIG_PCI_P2PDMA, or cannot "
		"reach them (IOMMU, PCIe ACS). PIER_CANARY=off skips this test",
		canary->pd->device->name, canary->pair->memory,
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
	error = open_loop(canary);
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

/* After the NIC has read its writes back: see <pier/sync.h>. */
static int flush_device(struct canary *canary, enum pier_mapping mapping)
{
	const struct pier_backend *backend = canary->buffer->backend;
	struct pier_backend_flush range = {
		.size = sizeof(range),
		.address = pier_buffer_address(canary->buffer) + canary->page,
		.length = canary->page,
		.device = canary->pd->device->name,
		.mapping = backend->mappings ? mapping : PIER_MAPPING_AUTO,
		.read_back = true,
	};
	int result;

	if (!backend->flush)
		return 0;
	pier_clear_error();
	result = backend->flush(&canary->buffer->memory, &range);
	return result ? pier_fail_because(pier_backend_errno(result), "flush a pattern")
		      : 0;
}

static int test_writing(struct canary *canary, enum pier_mapping mapping)
{
	int error = fill_pattern(canary);

	if (error)
		return error;
	if (write_device(canary) || read_device(canary))
		return refuse_request(canary, mapping, "write");
	memset(canary->arrived, ~canary->sent[0], canary->page);
	error = flush_device(canary, mapping);
	if (!error)
		error = pier_buffer_copy_from(canary->buffer, canary->page,
					      canary->arrived, canary->page);
	if (!error)
		compare_patterns(canary, mapping, "NIC", "device");
	return error;
}

/*
 * Two pages of the unit. They are kept until the device is closed: freeing them can wait
 * for kernels of the program, which may in turn wait for this registration. So can
 * allocating them again for the next canary.
 */
static int take_memory(struct canary *canary)
{
	pthread_mutex_t *lock = &canary->pd->device->pairs_lock;
	struct pier_list *spares = &canary->pair->spares, *spare;

	pthread_mutex_lock(lock);
	spare = spares->next;
	pier_list_remove(spare);
	pthread_mutex_unlock(lock);
	if (spare == spares)
		return pier_buffer_alloc(canary->pair->memory, 2 * canary->page,
					 &canary->buffer);
	canary->buffer = pier_container_of(spare, struct pier_buffer, object.link);
	pier_object_track(&canary->buffer->object, PIER_OBJECT_BUFFER, NULL);
	return 0;
}

static void free_spare(struct pier_list *spare)
{
	struct pier_buffer *buffer = pier_container_of(spare, struct pier_buffer,
						       object.link);

	pier_object_track(&buffer->object, PIER_OBJECT_BUFFER, NULL);
	pier_free_buffer_alone(buffer);
}

/* No object of the program, so none that is counted. */
static void keep_memory(struct canary *canary)
{
	pthread_mutex_t *lock = &canary->pd->device->pairs_lock;

	pier_object_untrack(&canary->buffer->object);
	pthread_mutex_lock(lock);
	canary->pair->free_spare = free_spare;
	pier_list_append(&canary->pair->spares, &canary->buffer->object.link);
	pthread_mutex_unlock(lock);
}

static int run_canary(struct canary *canary, enum pier_mapping mapping,
		      pier_path_function *take)
{
	/* Allocate first: this step is cheap, and fails if the GPU is full. */
	int error = take_memory(canary);

	if (!error)
		error = open_loop(canary);
	if (!error)
		error = make_host_memory(canary);
	if (!error)
		error = try_loop(canary);
	if (!error)
		error = register_device(canary, mapping, take);
	if (!error)
		error = test_reading(canary, mapping);
	if (!error && !canary->refusal[0])
		error = test_writing(canary, mapping);
	return error;
}

/* Memory that stays registered is never freed: the NIC may still write to it. */
static bool dereg_region(const struct canary *canary, struct ibv_mr *mr)
{
	int error = mr ? canary->pd->device->provider->dereg_mr(mr) : 0;

	if (error)
		pier_warning("%s does not deregister memory: error %d",
			     canary->pd->device->name, error);
	return !error;
}

static void end_canary(struct canary *canary)
{
	pier_loop_destroy(canary->loop);
	if (dereg_region(canary, canary->part.mr) && canary->buffer)
		keep_memory(canary);
	if (dereg_region(canary, canary->host) && canary->sent)
		munmap(canary->sent, 2 * canary->page);
}

/*
 * Send the canary once over one path, whatever is known about it. The time that it waits
 * for the NIC is limited.
 *
 * ret_reason  why the path does not lead to the device's memory; "": it does. After an
 *             error: why the canary could not be sent. It has SENTENCE_SIZE bytes.
 *
 * Errors: those of pier_buffer_alloc(), pier_buffer_copy_to(), pier_loop_create() and of
 * the registration; -EAGAIN the NIC fails at host memory, too.
 */
static int run_canary_once(struct pier_pd *pd, struct pier_pair *pair,
			   enum pier_mapping mapping, pier_path_function *take,
			   char *ret_reason)
{
	struct canary canary = {
		.pd = pd,
		.pair = pair,
		.page = pier_host_page(),
		.left = INT64_C(1000000) * BUDGET_MS,
		.refusal = ret_reason,
	};
	int error;

	ret_reason[0] = '\0';
	error = run_canary(&canary, mapping, take);
	if (error)
		snprintf(ret_reason, SENTENCE_SIZE, "%s", pier_error_message());
	end_canary(&canary);
	return error;
}

/* Of one unit, one kind of memory may be registered and reached, and another not. */
static struct pier_pair *find_pair(struct pier_device *device,
				   const struct pier_buffer *buffer)
{
	const struct pier_memory_facts *facts = &buffer->facts;

	return pier_find_pair(device, buffer->backend->name,
			      facts->alike[0] ? facts->alike : facts->unit);
}

struct pier_pair *pier_canary_pair(const struct pier_part_request *segment)
{
	const struct pier_buffer *buffer = segment->range.buffer;
	struct pier_device *device = segment->region->pd->device;

	if (segment->canary || buffer->memory.cpu ||
	    device->switches.canary == PIER_SWITCH_OFF)
		return NULL;
	return find_pair(device, buffer);
}

/* Errors that may be gone the next time. */
static bool is_passing(int error)
{
	return error == -ENOMEM || error == -EMFILE || error == -ENFILE ||
	       error == -EAGAIN || error == -ENETDOWN || error == -EBUSY;
}

/* Of two threads, the first one's stays. */
static void keep_text(_Atomic(char *) *kept, char *text)
{
	char *none = NULL;

	if (text && !atomic_compare_exchange_strong(kept, &none, text) &&
	    text != pier_canary_passed && text != pier_canary_impossible)
		free(text);
}

/*
 * After an error that may pass the canary is sent again at the second registration, the
 * fourth, the eighth and so on: a program that uses all of a GPU would otherwise ask for
 * more of its memory at each one.
 */
static bool is_due(struct pier_canary_answer *answer)
{
	unsigned int count = 0;

	if (atomic_load(&answer->untested))
		count = atomic_fetch_add(&answer->untested, 1) + 1;
	return (count & (count - 1)) == 0;
}

/*
 * The mapping is not tested. Of several ones the wrong one is no error: bytes would be
 * lost without a word.
 */
static int accept_untested(const struct pier_part_request *segment,
			   enum pier_mapping mapping, const struct pier_pair *pair)
{
	const char *obstacle = atomic_load(&pair->canary[mapping].obstacle);

	if (mapping == PIER_MAPPING_AUTO || !segment->range.buffer->facts.coherent)
		return 0;
	return pier_fail(EIO,
			 "whether %s reaches the memory of %s with this mapping is "
			 "unknown (the test was %s), and the wrong mapping loses bytes "
			 "without an error. PIER_CANARY=off accepts it untested",
			 segment->region->pd->device->name, pair->memory,
			 obstacle ? obstacle : "not run: no memory");
}

static void report_untested(const struct pier_pd *pd, const struct pier_pair *pair,
			    struct pier_canary_answer *answer, const char *reason)
{
	char *text = NULL;

	/* Once: the canary may be sent again and again. */
	if (atomic_load(&answer->obstacle))
		return;
	pier_warning("whether %s reaches the memory of %s was not tested: %s",
		     pd->device->name, pair->memory, reason);
	if (asprintf(&text, "not run: %s", reason) >= 0)
		keep_text(&answer->obstacle, text);
}

static int send_canary(struct pier_pd *pd, struct pier_pair *pair,
		       enum pier_mapping mapping, pier_path_function *take)
{
	struct pier_canary_answer *answer = &pair->canary[mapping];
	char reason[SENTENCE_SIZE];
	int error = run_canary_once(pd, pair, mapping, take, reason);
	unsigned int none = 0;

	if (!error && reason[0]) {
		keep_text(&answer->text, strdup(reason));
		return pier_fail(EIO, "%s", reason);
	}
	if (error)
		report_untested(pd, pair, answer, reason);
	/* The registrations from now on are counted: see is_due(). */
	if (is_passing(error))
		atomic_compare_exchange_strong(&answer->untested, &none, 1);
	else
		keep_text(&answer->text,
			  error ? pier_canary_impossible : pier_canary_passed);
	return 0;
}

int pier_check_canary(const struct pier_pair *pair, enum pier_mapping mapping)
{
	const char *text = pair ? atomic_load(&pair->canary[mapping].text) : NULL;

	if (!text || text == pier_canary_passed || text == pier_canary_impossible)
		return 0;
	return pier_fail(EIO, "%s", text);
}

int pier_send_canary(const struct pier_part_request *segment, struct pier_pair *pair,
		     enum pier_mapping mapping, pier_path_function *take)
{
	int error;

	if (!pair)
		return 0;
	if (!atomic_load(&pair->canary[mapping].text) && is_due(&pair->canary[mapping]))
		error = send_canary(segment->region->pd, pair, mapping, take);
	else
		error = pier_check_canary(pair, mapping);
	if (error || atomic_load(&pair->canary[mapping].text) == pier_canary_passed)
		return error;
	return accept_untested(segment, mapping, pair);
}

/* The dma-bufs of a backend without a choice have the mapping DEFAULT here. */
static const char *describe_answer(struct pier_device *device,
				   const struct pier_buffer *buffer,
				   const struct pier_mr_part *part)
{
	bool only = part->path == PIER_PATH_DMABUF && part->mapping == PIER_MAPPING_AUTO;
	enum pier_mapping mapping = only ? PIER_MAPPING_DEFAULT : part->mapping;
	const struct pier_pair *pair = find_pair(device, buffer);
	const char *text = pair ? atomic_load(&pair->canary[mapping].text) : NULL;

	if (text && text != pier_canary_impossible)
		return text;
	text = pair ? atomic_load(&pair->canary[mapping].obstacle) : NULL;
	return text ? text : "not run: the ranges have one key, or no memory was left";
}

const char *pier_describe_canary(const struct pier_mr *mr)
{
	const struct pier_mr_part *part = pier_mr_part_at(mr, 0);
	struct pier_device *device = mr->pd->device;
	const struct pier_mr_range *range;

	mr = pier_mr_beneath(mr);
	range = &mr->ranges[0].range;
	if (range->source != PIER_MR_BUFFER || range->buffer->memory.cpu ||
	    (part->path != PIER_PATH_DMABUF && part->path != PIER_PATH_PEERMEM))
		return "";
	if (device->switches.canary == PIER_SWITCH_OFF)
		return "off: PIER_CANARY";
	return describe_answer(device, range->buffer, part);
}
