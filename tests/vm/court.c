/* SPDX-License-Identifier: BSD-3-Clause */
#include "court.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <pier/mr.h>

#include "core/page.h"
#include "provider/provider.h"
#include "core/checked.h"
#include "uverbs.h"

enum {
	MEMORY_PAGES = 8,
	MAX_PRINTED = 40,  /* maximum number of disagreements printed for one case */
	EXIT_SKIPPED = 77, /* meson's exit status for a skipped test */
};

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (size_t i = 0; list && list[i]; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return context;
}

/* Maps at the same address in every run, so a seed reproduces the same requests. */
static uint64_t map_memory(uint64_t page)
{
	size_t length = (size_t)page * MEMORY_PAGES;
	char *area = mmap((void *)(1ull << 44), length + 2 * page, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(area != MAP_FAILED);
	assert_int_equal(mprotect(area + page, length, PROT_READ | PROT_WRITE), 0);
	return (uintptr_t)area + page;
}

static void unmap_memory(const struct court *court)
{
	uint64_t page = court->page;

	munmap((void *)(uintptr_t)(court->memory - page),
	       (size_t)(court->memory_length + 2 * page));
}

/* Registering fd -1 fails with EBADF if the driver has the operation. */
static bool has_operation(struct ibv_pd *pd, int *ret_error)
{
	struct uverbs_mr mr;

	*ret_error = -uverbs_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0, &mr);
	return *ret_error == EBADF;
}

bool court_open(struct court *court, const char *device, char *ret_reason, size_t size)
{
	struct ibv_device_attr attr;
	bool on_demand = false;
	int error;

	*court = (struct court){ .context = open_device(device) };
	if (!court->context) {
		snprintf(ret_reason, size, "no RDMA device %s", device);
		return false;
	}
	if (!uverbs_is_rxe(court->context) || ibv_query_device(court->context, &attr)) {
		snprintf(ret_reason, size, "%s is no device of the rxe driver", device);
		ibv_close_device(court->context);
		return false;
	}
	pier_verbs_provider.query_on_demand(court->context, &on_demand);
	court->device = (struct pier_device){
		.provider = &pier_verbs_provider,
		.lacking_access = on_demand ? 0 : PIER_ACCESS_ON_DEMAND,
		.dmabuf = true,
	};
	snprintf(court->device.name, sizeof(court->device.name), "%s", device);
	court->page = pier_host_page();
	court->pd = ibv_alloc_pd(court->context);
	assert_non_null(court->pd);
	court->memory = map_memory(court->page);
	court->memory_length = MEMORY_PAGES * court->page;
	if (has_operation(court->pd, &error))
		return true;
	snprintf(ret_reason, size, "the driver of %s cannot register dma-bufs: %s",
		 device, strerror(error));
	court_close(court);
	return false;
}

/* The kernel refuses to deallocate the PD of a leaked region. */
void court_close(struct court *court)
{
	unmap_memory(court);
	assert_int_equal(ibv_dealloc_pd(court->pd), 0);
	assert_int_equal(ibv_close_device(court->context), 0);
}

int court_hold(struct court *court, struct targets *targets, const char *device,
	       int (*run_cases)(void *argument), void *argument)
{
	char reason[256];
	int failed;

	if (!court_open(court, device, reason, sizeof(reason))) {
		printf("skip: %s\n", reason);
		return EXIT_SKIPPED;
	}
	if (!targets_open(targets, court->page, reason, sizeof(reason))) {
		court_close(court);
		printf("skip: %s\n", reason);
		return EXIT_SKIPPED;
	}
	failed = run_cases(argument);
	targets_close(targets);
	court_close(court);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int ask_pier(const struct court *court, const struct request *request)
{
	if (request->host)
		return -pier_check_host(&court->device, request->offset, request->length,
					request->iova, request->access);
	return -pier_check_dmabuf(&court->device, request->offset, request->length,
				  request->iova, request->fd, request->access);
}

/* Uses libibverbs, as pier does. It refuses what is_all_of_memory() tells of, itself. */
static int ask_kernel_host(const struct court *court, const struct request *request)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr_iova(court->pd, (void *)(uintptr_t)request->offset,
			     request->length, request->iova, request->access);
	if (!mr) {
		assert_int_not_equal(errno, 0);
		return errno;
	}
	assert_int_equal(ibv_dereg_mr(mr), 0);
	return 0;
}

static int ask_kernel(struct court *court, const struct request *request)
{
	struct uverbs_mr mr;
	int error;

	if (request->host)
		return ask_kernel_host(court, request);
	error = uverbs_reg_dmabuf_mr(court->pd, request->offset, request->length,
				     request->iova, request->fd, request->access, &mr);
	if (error)
		return -error;
	court->dmabufs++;
	assert_int_equal(uverbs_dereg_mr(court->context, &mr), 0);
	return 0;
}

/* Both verdicts on one request. */
struct verdicts {
	int pier, kernel;
};

/* Only the kernel checks whether memory is mapped: pier does not read page tables. */
static bool memory_is_missing(const struct court *court, const struct request *request)
{
	uint64_t end;

	return !pier_add_u64(request->offset, request->length, &end) ||
	       request->offset < court->memory ||
	       end > court->memory + court->memory_length;
}

static bool may_be_accepted(const struct court *court, const struct request *request,
			    int kernel)
{
	return kernel == 0 ||
	       (request->host && kernel == EFAULT && memory_is_missing(court, request));
}

static bool is_unmapped(const struct court *court, const struct request *request,
			struct verdicts verdicts)
{
	return request->host && verdicts.pier == 0 && verdicts.kernel == EFAULT &&
	       memory_is_missing(court, request);
}

/*
 * pier promises EINVAL for every access flag that it does not define. For host memory the
 * kernel has more flags: rxe accepts all optional ones, and returns EOPNOTSUPP for known
 * flags that it does not support.
 */
static bool has_foreign_flag(const struct court *court, const struct request *request,
			     struct verdicts verdicts)
{
	const int known = PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC |
			  PIER_ACCESS_MW_BIND | PIER_ACCESS_ON_DEMAND |
			  PIER_ACCESS_RELAXED_ORDERING;

	return request->host && verdicts.pier == EINVAL && (request->access & ~known) &&
	       (verdicts.kernel == EOPNOTSUPP ||
		may_be_accepted(court, request, verdicts.kernel));
}

/*
 * ib_umem_num_pages() counts the pages that a range touches: none for length 0 at the
 * start of a page, which is EINVAL, but one for length 0 in the middle of a page. Such a
 * region is useless, and pier refuses both. (For a dma-buf the kernel counts from iova 0,
 * and so refuses both, too.)
 */
static bool is_empty(const struct court *court, const struct request *request,
		     struct verdicts verdicts)
{
	return request->host && verdicts.pier == EINVAL && request->length == 0 &&
	       request->offset % court->page != 0 &&
	       may_be_accepted(court, request, verdicts.kernel);
}

/* See check_iova() in pier's plan.c: for host memory rxe does not check this. */
static bool wraps(const struct court *court, const struct request *request,
		  struct verdicts verdicts)
{
	uint64_t end;

	return request->host && verdicts.pier == EINVAL &&
	       !pier_add_u64(request->iova, request->length, &end) &&
	       may_be_accepted(court, request, verdicts.kernel);
}

/*
 * ibv_cmd_reg_mr() of libibverbs refuses it before the kernel sees the flag: with
 * ON_DEMAND this length stands for all of memory, which has no address.
 */
static bool is_all_of_memory(const struct court *court, const struct request *request,
			     struct verdicts verdicts)
{
	(void)court;
	return request->host && (request->access & PIER_ACCESS_ON_DEMAND) &&
	       request->length == SIZE_MAX && request->offset &&
	       verdicts.pier == EOPNOTSUPP && verdicts.kernel == EINVAL;
}

/* For dma-bufs the guest's rxe checks the last byte, pier the end. */
static bool ends_at_2_64(const struct court *court, const struct request *request,
			 struct verdicts verdicts)
{
	(void)court;
	return !request->host && verdicts.pier == EINVAL && verdicts.kernel == 0 &&
	       request->iova + request->length == 0;
}

/* The only points in which pier and the test guest's kernel may differ. */
static const struct {
	const char *what;
	bool (*applies)(const struct court *court, const struct request *request,
			struct verdicts verdicts);
} exemptions[] = {
	{ "memory that is not mapped", is_unmapped },
	{ "access flags that pier does not have", has_foreign_flag },
	{ "length 0 in the middle of a page of host memory", is_empty },
	{ "iovas of host memory that wrap", wraps },
	{ "all of memory on demand, at an address", is_all_of_memory },
	{ "iovas of a dma-buf that end at 2^64", ends_at_2_64 },
};

enum {
	EXEMPTIONS = sizeof(exemptions) / sizeof(exemptions[0]),
};

static bool is_exempt(struct court *court, const struct request *request,
		      struct verdicts verdicts)
{
	for (size_t i = 0; i < EXEMPTIONS; i++)
		if (exemptions[i].applies(court, request, verdicts)) {
			court->tally.exempt[i]++;
			court->exemption_used[i] = true;
			return true;
		}
	return false;
}

static const char *verdict_name(int error)
{
	return error ? strerror(error) : "accepted";
}

static void print_disagreement(const struct request *request, struct verdicts verdicts,
			       const char *name)
{
	printf("# disagreement: %s\n"
	       "#   %s 0x%" PRIx64 ", length 0x%" PRIx64 ", iova 0x%" PRIx64
	       ", fd %d, access 0x%x\n",
	       name, request->host ? "address" : "offset", request->offset,
	       request->length, request->iova, request->fd,
	       (unsigned int)request->access);
	printf("#   the kernel: %s\n", verdict_name(verdicts.kernel));
	printf("#   pier: %s%s%s\n", verdict_name(verdicts.pier),
	       verdicts.pier ? ": " : "", verdicts.pier ? pier_error_message() : "");
}

void court_judge(struct court *court, const struct request *request, const char *name)
{
	struct verdicts verdicts = { .pier = ask_pier(court, request) };
	struct tally *tally = &court->tally;

	verdicts.kernel = ask_kernel(court, request);
	tally->rows++;
	if (verdicts.pier == verdicts.kernel) {
		tally->accepted += verdicts.kernel == 0;
		tally->refused += verdicts.kernel != 0;
		return;
	}
	if (is_exempt(court, request, verdicts))
		return;
	if (tally->disagreements++ < MAX_PRINTED)
		print_disagreement(request, verdicts, name);
}

void court_report(struct court *court, const char *what, size_t rows, size_t accepted)
{
	struct tally tally = court->tally;

	court->tally = (struct tally){ 0 };
	printf("# %s: %zu rows judged, %zu accepted and %zu refused by both\n", what,
	       tally.rows, tally.accepted, tally.refused);
	for (size_t i = 0; i < EXEMPTIONS; i++)
		if (tally.exempt[i])
			printf("#   %zu exempt: %s\n", tally.exempt[i],
			       exemptions[i].what);
	if (tally.disagreements)
		fail_msg("%s: pier and the kernel disagree on %zu of %zu rows", what,
			 tally.disagreements, tally.rows);
	assert_true(tally.rows >= rows);
	assert_true(tally.accepted >= accepted);
}

void court_check_exemptions(const struct court *court)
{
	for (size_t i = 0; i < EXEMPTIONS; i++)
		if (!court->exemption_used[i])
			fail_msg("never needed: the exemption for %s",
				 exemptions[i].what);
}

void court_iovas(const struct court *court, uint64_t offset, uint64_t length,
		 struct named ret_iovas[IOVAS])
{
	uint64_t page = court->page;
	uint64_t residue = offset % page;
	/* The highest iova with this residue for which the region ends below 2^64. */
	uint64_t last = UINT64_MAX - length - (UINT64_MAX - length - residue) % page;
	const struct named iovas[IOVAS] = {
		{ "the same", offset },
		{ "a page on", offset + page },
		{ "in page 0", residue },
		{ "below 2^32", (1ull << 32) - page + residue },
		{ "above 2^63", (1ull << 63) + residue },
		{ "in the last page", -page + residue },
		{ "last that fits", last },
		{ "first that wraps", last + page },
		{ "ends at 2^64", -length },
		{ "one off", offset + 1 },
		{ "one back", offset - 1 },
		{ "half a page off", offset ^ (page / 2) },
		{ "at the end", offset + length },
	};

	memcpy(ret_iovas, iovas, sizeof(iovas));
}
