/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Regions by attributes, of several ranges, in pieces, and sub-regions. They are on
 * soft0, whose provider the test wraps to take capabilities away.
 */
#include "tests/support/cmocka.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"
#include "tests/support/random.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <pier/element.h>
#include <pier/cache.h>
#include <pier/remote.h>

#include "region/mr.h"
#include "core/page.h"

enum {
	PAGES = 16,
};

static struct {
	struct pier_device *device;
	struct pier_pd *pd;
	const struct pier_provider *real;
	struct pier_provider provider; /* the device's own */
	struct test_census before;
	uint64_t page;
	char *memory;			    /* PAGES pages of host memory */
	struct pier_buffer *buffer, *other; /* the same length, from memfds */
	/* Longer registrations are refused with this errno. */
	uint64_t longest;
	int refusal;
	int failing; /* the registration with this number fails with EIO, counted from 1
		      */
	int handles; /* DMA handles that exist */
	int registrations; /* with one */
	struct pier_dmah_attr dmah_attr;
	uint64_t padding; /* arguments of the last call of the provider */
} fixture;

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     int access)
{
	if (length > fixture.longest)
		errno = fixture.refusal;
	else if (--fixture.failing == 0)
		errno = EIO;
	else
		return fixture.real->reg_mr(pd, addr, length, iova, access);
	return NULL;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	/* A full table of translations is that of host memory. */
	if (length <= fixture.longest || fixture.refusal == ENOMEM)
		return fixture.real->reg_dmabuf_mr(pd, offset, length, iova, fd, access);
	errno = fixture.refusal;
	return NULL;
}

static struct ibv_dmah *alloc_dmah(struct ibv_context *context,
				   struct pier_dmah_attr *attr)
{
	struct ibv_dmah *dmah;

	if (--fixture.failing == 0) {
		errno = EIO;
		return NULL;
	}
	dmah = fixture.real->alloc_dmah(context, attr);
	fixture.dmah_attr = *attr;
	fixture.handles += dmah != NULL;
	return dmah;
}

/* Fails while a region has the handle. */
static int dealloc_dmah(struct ibv_dmah *dmah)
{
	expect_result(fixture.real->dealloc_dmah(dmah), 0);
	fixture.handles--;
	return 0;
}

static struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct pier_reg_attr *attr)
{
	fixture.registrations++;
	assert_true(attr->comp_mask & PIER_REG_DMAH);
	return fixture.real->reg_mr_ex(pd, attr);
}

static void record_padding(struct ibv_mr *mr, uint64_t length)
{
	fixture.padding = length;
	fixture.real->set_padding(mr, length);
}

static int setup(void **state)
{
	(void)state;
	memset(&fixture, 0, sizeof(fixture));
	fixture.before = test_take_census();
	fixture.page = pier_host_page();
	fixture.longest = UINT64_MAX;
	fixture.refusal = ENOMEM;
	expect_ok(pier_device_open("soft0", &fixture.device));
	expect_ok(pier_pd_alloc(fixture.device, &fixture.pd));
	fixture.real = fixture.device->provider;
	fixture.provider = *fixture.real;
	fixture.provider.reg_mr = reg_mr;
	fixture.provider.reg_dmabuf_mr = reg_dmabuf_mr;
	fixture.provider.set_padding = record_padding;
	fixture.provider.alloc_dmah = alloc_dmah;
	fixture.provider.dealloc_dmah = dealloc_dmah;
	fixture.provider.reg_mr_ex = reg_mr_ex;
	fixture.provider.reg_parts = NULL;
	fixture.provider.max_parts = fixture.provider.max_key = 0;
	fixture.device->provider = &fixture.provider;
	fixture.memory = mmap(NULL, PAGES * fixture.page, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(fixture.memory, MAP_FAILED);
	expect_ok(pier_buffer_alloc("memfd", PAGES * fixture.page, &fixture.buffer));
	expect_ok(pier_buffer_alloc("memfd", PAGES * fixture.page, &fixture.other));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	expect_ok(pier_buffer_free(fixture.buffer));
	expect_ok(pier_buffer_free(fixture.other));
	munmap(fixture.memory, PAGES * fixture.page);
	expect_ok(pier_pd_dealloc(fixture.pd));
	fixture.device->provider = fixture.real;
	expect_ok(pier_device_close(fixture.device));
	test_assert_census(&fixture.before);
	return 0;
}

static struct pier_mr_attr attr_of(const struct pier_mr_range *ranges, uint32_t count)
{
	struct pier_mr_attr attr;

	pier_mr_attr_init(&attr);
	attr.ranges = ranges;
	attr.range_count = count;
	attr.access = PIER_ACCESS_SHARED;
	return attr;
}

static struct pier_mr *reg(const struct pier_mr_attr *attr)
{
	struct pier_mr *mr = NULL;

	expect_ok(pier_mr_reg_attr(fixture.pd, attr, &mr));
	return mr;
}

static void refuse(const struct pier_mr_attr *attr, int error, const char *sentence)
{
	struct pier_mr *mr = (void *)1;
	struct test_census before = test_take_census();

	expect_result(pier_mr_reg_attr(fixture.pd, attr, &mr), -error);
	test_assert_sentence(sentence);
	assert_ptr_equal(mr, (void *)1);
	test_assert_census(&before);
}

static void reads_structs_of_other_sizes(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory, 100);
	struct {
		struct pier_mr_attr attr;
		char tail[24];
	} newer = { .attr = attr_of(&range, 1) };
	struct pier_mr *mr = NULL;

	(void)state;
	newer.attr.size = sizeof(newer);
	expect_ok(pier_mr_reg_attr(fixture.pd, &newer.attr, &mr));
	expect_ok(pier_mr_dereg(mr));
	newer.tail[23] = 1;
	refuse(&newer.attr, EINVAL, " is set");
	newer.attr.size = sizeof(newer) - 1;
	mr = reg(&newer.attr);
	expect_ok(pier_mr_dereg(mr));
	/* The struct as it was before `mapping` was added. */
	newer.attr.size = offsetof(struct pier_mr_attr, mapping);
	mr = reg(&newer.attr);
	expect_ok(pier_mr_dereg(mr));
	newer.attr.size--;
	refuse(&newer.attr, EINVAL, "begin with pier_mr_attr_init()");
	expect_result(pier_mr_reg_attr(fixture.pd, NULL, &mr), -EINVAL);
}

#define REFUSE(field, value, error, sentence)                   \
	do {                                                    \
		struct pier_mr_attr wrong = attr_of(&range, 1); \
                                                                \
		wrong.field = (value);                          \
		refuse(&wrong, (error), (sentence));            \
	} while (0)

static void names_the_wrong_attribute(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory, 100);
	struct pier_mr_range none = pier_mr_range_host(fixture.memory, 0);
	struct pier_mr_range nowhere = { .source = 5, .fd = -1, .length = 1 };
	struct pier_mr_range no_buffer = pier_mr_range_buffer(NULL, 0, 1);
	struct pier_mr_range no_pointer = pier_mr_range_pointer(NULL, 1);
	struct pier_mr_range outside = pier_mr_range_buffer(fixture.buffer,
							    PAGES * fixture.page - 1, 2);
	struct pier_mr_range closed = pier_mr_range_dmabuf(-1, 0, 1);
	struct pier_mr_range endless = pier_mr_range_host(fixture.memory, UINT64_MAX);
	/* Each is possible alone: no rule of the numbers needs the fd. */
	struct pier_mr_range half[] = {
		pier_mr_range_dmabuf(-1, 0, UINT64_MAX / 2 + 1),
		pier_mr_range_dmabuf(-1, 0, UINT64_MAX / 2 + 1),
	};

	(void)state;
	REFUSE(ranges, NULL, EINVAL, "ranges");
	REFUSE(range_count, 0, EINVAL, "0 ranges");
	REFUSE(range_count, PIER_MR_PARTS_MAX + 1, EINVAL, "1025 ranges");
	REFUSE(addressing, 3, EINVAL, "addressing 3");
	REFUSE(policy, 4, EINVAL, "policy 4");
	REFUSE(policy, -1, EINVAL, "policy -1");
	REFUSE(split, 3, EINVAL, "split 3");
	REFUSE(page_size, fixture.page + 1, EINVAL, "page_size");
	REFUSE(page_size, fixture.page / 2, EINVAL, "page_size");
	REFUSE(access, PIER_ACCESS_REMOTE_WRITE, EINVAL, "need LOCAL_WRITE");
	REFUSE(access, 1 << 5, EINVAL, "not possible");
	fixture.device->lacking_access = PIER_ACCESS_MW_BIND;
	REFUSE(access, PIER_ACCESS_MW_BIND, EOPNOTSUPP, "soft0 has no MW_BIND");
	fixture.device->lacking_access = 0;
	REFUSE(requested_key, 1, EKEYREJECTED, "chooses all keys itself");
	REFUSE(ranges, &none, EINVAL, "length 0");
	REFUSE(ranges, &nowhere, EINVAL, "source 5");
	REFUSE(ranges, &no_buffer, EINVAL, "buffer is NULL");
	REFUSE(ranges, &no_pointer, EINVAL, "NULL");
	REFUSE(ranges, &outside, ERANGE, "leave the buffer");
	REFUSE(ranges, &closed, EBADF, "not open");
	refuse(&(struct pier_mr_attr){ .size = sizeof(struct pier_mr_attr),
				       .ranges = &endless,
				       .range_count = 1 },
	       EINVAL, "leave the address space");
	refuse(&(struct pier_mr_attr){ .size = sizeof(struct pier_mr_attr),
				       .ranges = half,
				       .range_count = 2 },
	       EINVAL, "ranges' lengths overflow 64 bits");
}

static void registers_every_kind_of_source(void **state)
{
	struct pier_dmabuf dmabuf;
	int context;

	(void)state;
	expect_ok(pier_dmabuf_export(fixture.buffer, fixture.page + 3, 500,
				     PIER_MAPPING_AUTO, &dmabuf));
	{
		void *mapped = NULL;
		struct {
			struct pier_mr_range range;
			enum pier_path path;
			uint64_t iova;
		} cases[] = {
			{ pier_mr_range_host(fixture.memory + 5, 500), PIER_PATH_HOST,
			  (uintptr_t)fixture.memory + 5 },
			{ pier_mr_range_pointer(fixture.memory + 5, 500), PIER_PATH_HOST,
			  (uintptr_t)fixture.memory + 5 },
			{ pier_mr_range_buffer(fixture.buffer, 7, 500), PIER_PATH_DMABUF,
			  pier_buffer_address(fixture.buffer) + 7 },
			{ pier_mr_range_dmabuf(dmabuf.fd, dmabuf.offset, 500),
			  PIER_PATH_DMABUF, dmabuf.offset },
			{ pier_mr_range_pointer(NULL, 500), PIER_PATH_DMABUF, 0 },
		};

		expect_ok(pier_buffer_map(fixture.other, &mapped));
		cases[4].range.addr = (char *)mapped + 9;
		cases[4].iova = (uintptr_t)mapped + 9;
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			struct pier_mr_attr attr = attr_of(&cases[i].range, 1);
			struct pier_mr *mr;

			attr.context = &context;
			mr = reg(&attr);
			assert_int_equal(pier_mr_path(mr), cases[i].path);
			assert_int_equal(pier_mr_iova(mr), cases[i].iova);
			assert_int_equal(pier_mr_length(mr), 500);
			assert_int_equal(pier_mr_parts(mr), 1);
			assert_ptr_equal(test_mr_info(mr).context, &context);
			assert_ptr_equal(test_mr_info(mr).pd, fixture.pd);
			expect_ok(pier_mr_dereg(mr));
		}
	}
	pier_dmabuf_close(&dmabuf);
}

/* A wrapped buffer owns the pointer; the region keeps it and releases it. */
static void keeps_the_buffer_that_a_pointer_is_in(void **state)
{
	struct pier_mr_range range = pier_mr_range_pointer(NULL, 100);
	struct pier_mr_attr attr = attr_of(&range, 1);
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	void *mapped = NULL;

	(void)state;
	expect_ok(pier_buffer_alloc("memfd", fixture.page, &buffer));
	expect_ok(pier_buffer_map(buffer, &mapped));
	range.addr = mapped;
	mr = reg(&attr);
	/* A memfd's memory outlives its buffer as long as a buffer wraps it. */
	expect_ok(pier_buffer_free(buffer));
	memset(mapped, 1, fixture.page);
	expect_ok(pier_mr_dereg(mr));
	range.length = 2 * fixture.page;
	range.addr = (void *)(uintptr_t)pier_buffer_address(fixture.other);
	range.addr = (char *)range.addr + (PAGES - 1) * fixture.page;
	refuse(&attr, ERANGE, "leave their allocation");
}

static void begins_at_the_requested_iova(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory + fixture.page + 5,
							100);
	struct pier_mr_attr attr = attr_of(&range, 1);
	struct pier_mr *mr;

	(void)state;
	attr.addressing = PIER_ADDRESSING_ZERO_BASED;
	mr = reg(&attr);
	assert_int_equal(pier_mr_iova(mr), 5);
	expect_ok(pier_mr_dereg(mr));
	attr.page_size = 4 * fixture.page;
	mr = reg(&attr);
	assert_int_equal(pier_mr_iova(mr), ((uintptr_t)fixture.memory + fixture.page +
					    5) % (4 * fixture.page));
	expect_ok(pier_mr_dereg(mr));
	attr.addressing = PIER_ADDRESSING_IOVA;
	attr.iova = 0x7000000000005;
	attr.page_size = 0;
	mr = reg(&attr);
	assert_int_equal(pier_mr_iova(mr), 0x7000000000005);
	expect_ok(pier_mr_dereg(mr));
	/* Aligned to the host's page, but not to the hinted one. */
	attr.page_size = 4 * fixture.page;
	attr.iova = ((uintptr_t)range.addr + fixture.page) % (4 * fixture.page);
	refuse(&attr, EINVAL, "modulo page_size");
	attr.page_size = 0;
	attr.iova = 4;
	refuse(&attr, EINVAL, "modulo the page");
	attr.iova = UINT64_MAX - fixture.page + 1 + 5;
	range.length = fixture.page;
	refuse(&attr, EINVAL, "overflow 64 bits");
}

static int own_cpu(void)
{
	cpu_set_t allowed;
	int cpu = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	while (!CPU_ISSET(cpu, &allowed))
		cpu++;
	return cpu;
}

/* All parts and sub-regions of a region have its handle. */
static void registers_with_a_hint(void **state)
{
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(fixture.memory + 5, 500),
		pier_mr_range_buffer(fixture.buffer, 7, 500),
	};
	struct pier_mr_attr attr = attr_of(ranges, 2);
	struct pier_mr *mr, *sub;
	const uint32_t all = PIER_DMAH_PH | PIER_DMAH_CPU_ID | PIER_DMAH_TPH_MEM_TYPE;

	(void)state;
	fixture.provider.reg_parts = fixture.real->reg_parts;
	fixture.provider.max_parts = fixture.real->max_parts;
	for (int tph = PIER_TPH_BIDIRECTIONAL; tph <= PIER_TPH_TARGET_PRIORITY; tph++) {
		attr.tph = (enum pier_tph)tph;
		attr.tph_cpu = tph % 2 ? own_cpu() : -1;
		fixture.registrations = 0;
		mr = reg(&attr);
		assert_int_equal(pier_mr_parts(mr), 2);
		assert_int_equal(fixture.registrations, 2);
		assert_int_equal(fixture.dmah_attr.comp_mask,
				 tph % 2 ? all : PIER_DMAH_PH);
		assert_int_equal(fixture.dmah_attr.ph, tph - 1);
		if (tph % 2)
			assert_int_equal(fixture.dmah_attr.cpu_id, own_cpu());
		expect_ok(pier_mr_reg_sub(mr, 100, 300, PIER_ACCESS_REMOTE_READ, &sub));
		assert_int_equal(fixture.registrations, 3);
		assert_int_equal(fixture.handles, 1);
		expect_ok(pier_mr_dereg(sub));
		assert_int_equal(fixture.handles, 1);
		expect_ok(pier_mr_dereg(mr));
		assert_int_equal(fixture.handles, 0);
	}
}

/* Regions that differ only in their hint are in caches of their own. */
static void caches_register_with_their_hint(void **state)
{
	struct pier_mr_range range = pier_mr_range_buffer(fixture.buffer, 7, 500);
	struct pier_mr *plain, *mrs[2];
	struct pier_mr_cache *caches[2];
	struct pier_mr_cache_attr attr;

	(void)state;
	pier_mr_cache_attr_init(&attr);
	attr.flags = PIER_MR_CACHE_UNWATCHED;
	expect_ok(pier_mr_cache_create(fixture.pd, &attr, &caches[0]));
	attr.tph = PIER_TPH_TARGET;
	attr.tph_cpu = -2;
	expect_result(pier_mr_cache_create(fixture.pd, &attr, &caches[1]), -EINVAL);
	test_assert_sentence("tph_cpu -2");
	attr.tph = PIER_TPH_TARGET_PRIORITY + 1;
	expect_result(pier_mr_cache_create(fixture.pd, &attr, &caches[1]), -EINVAL);
	test_assert_sentence("tph 5");
	attr.tph = PIER_TPH_TARGET;
	attr.tph_cpu = own_cpu();
	expect_ok(pier_mr_cache_create(fixture.pd, &attr, &caches[1]));
	expect_ok(pier_mr_cache_get(caches[0], &range, PIER_ACCESS_SHARED, &plain));
	fixture.registrations = 0;
	for (int i = 0; i < 2; i++)
		expect_ok(pier_mr_cache_get(caches[1], &range, PIER_ACCESS_SHARED,
					    &mrs[i]));
	assert_ptr_not_equal(plain, mrs[0]);
	assert_ptr_equal(mrs[0], mrs[1]);
	assert_int_equal(fixture.registrations, 1);
	assert_int_equal(fixture.handles, 1);
	assert_int_equal(fixture.dmah_attr.ph, PIER_TPH_TARGET - 1);
	assert_int_equal(fixture.dmah_attr.cpu_id, own_cpu());
	for (int i = 0; i < 2; i++)
		expect_ok(pier_mr_cache_put(caches[1], mrs[i]));
	expect_ok(pier_mr_cache_put(caches[0], plain));
	for (int i = 0; i < 2; i++)
		expect_ok(pier_mr_cache_destroy(caches[i]));
	assert_int_equal(fixture.handles, 0);
}

static void refuses_a_hint(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory, 100);
	struct pier_mr_attr attr = attr_of(&range, 1);

	(void)state;
	REFUSE(tph, PIER_TPH_TARGET_PRIORITY + 1, EINVAL, "tph 5");
	attr.tph = PIER_TPH_TARGET;
	attr.tph_cpu = -2;
	refuse(&attr, EINVAL, "tph_cpu -2");
	attr.tph_cpu = 1 << 20;
	refuse(&attr, EPERM, "may not run on CPU 1048576");
	attr.tph_cpu = -1;
	attr.requested_key = 1;
	refuse(&attr, EINVAL, "both a TPH hint and key 1");
	attr.requested_key = 0;
	fixture.failing = 1;
	refuse(&attr, EIO, "allocating a DMA handle for TPH hint 3");
	fixture.failing = 0;
	/* The handle ends with a failed registration. */
	range.addr = (void *)(uintptr_t)16;
	refuse(&attr, EFAULT, "not mapped");
	assert_int_equal(fixture.registrations, 1);
	assert_int_equal(fixture.handles, 0);
}

/* Elements of a range in one part have the address and key of the memory. */
static void expect_element(const struct pier_mr *mr, uint64_t offset, uint32_t part)
{
	struct pier_mr_part_info info;
	struct pier_gather gather;

	expect_ok(pier_mr_part(mr, part, &info, sizeof(info)));
	expect_ok(pier_mr_gather(mr, pier_mr_iova(mr) + offset, 1, &gather));
	assert_int_equal(gather.lkey, info.lkey);
	assert_int_equal(gather.addr, info.iova + offset - info.offset);
	assert_int_equal(gather.length, 1);
}

static void joins_ranges_as_parts(void **state)
{
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(fixture.memory + 100, 1000),
		pier_mr_range_buffer(fixture.buffer, 77, 3),
		pier_mr_range_host(fixture.memory + 5000, fixture.page),
	};
	struct pier_mr *mr = NULL;
	struct pier_mr_part_info info;
	struct pier_remote remote;
	struct pier_gather gather;

	(void)state;
	expect_ok(test_reg_mr_vec(fixture.pd, ranges, 3, PIER_ACCESS_SHARED, &mr));
	assert_int_equal(pier_mr_parts(mr), 3);
	assert_int_equal(pier_mr_length(mr), 1003 + fixture.page);
	assert_int_equal(pier_mr_path(mr), PIER_PATH_MIXED);
	assert_int_equal(pier_mr_iova(mr), (uintptr_t)fixture.memory + 100);
	expect_ok(pier_mr_part(mr, 1, &info, sizeof(info)));
	assert_int_equal(info.offset, 1000);
	assert_int_equal(info.length, 3);
	assert_int_equal(info.path, PIER_PATH_DMABUF);
	assert_int_equal(info.iova, pier_buffer_address(fixture.buffer) + 77);
	expect_result(pier_mr_part(mr, 3, &info, sizeof(info)), -ERANGE);
	expect_element(mr, 0, 0);
	expect_element(mr, 999, 0);
	expect_element(mr, 1000, 1);
	expect_element(mr, 1002, 1);
	expect_element(mr, 1003, 2);
	expect_element(mr, 1002 + fixture.page, 2);
	expect_result(pier_mr_gather(mr, pier_mr_iova(mr) + 999, 2, &gather), -EXDEV);
	expect_result(
		pier_mr_gather(mr, pier_mr_iova(mr) + 1003, fixture.page + 1, &gather),
		-ERANGE);
	expect_result(pier_mr_remote(mr, &remote), -EXDEV);
	assert_true(pier_mr_encloses(mr, pier_mr_iova(mr), 1003 + fixture.page));
	assert_false(pier_mr_encloses(mr, pier_mr_iova(mr), 1004 + fixture.page));
	expect_result(pier_buffer_free(fixture.buffer), -EBUSY);
	expect_ok(pier_mr_dereg(mr));
}

static void refuses_parts_if_forbidden(void **state)
{
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(fixture.memory, 10),
		pier_mr_range_host(fixture.memory, 10),
	};
	struct pier_mr_attr attr = attr_of(ranges, 2);

	(void)state;
	attr.split = PIER_SPLIT_NEVER;
	refuse(&attr, EOPNOTSUPP, "2 ranges under one key");
	attr.range_count = 1;
	expect_ok(pier_mr_dereg(reg(&attr)));
}

static void failed_vector_leaves_nothing_behind(void **state)
{
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(fixture.memory, 10),
		pier_mr_range_buffer(fixture.buffer, 0, 10),
		pier_mr_range_host(fixture.memory + 50, 10),
		pier_mr_range_pointer(fixture.memory + 70, 10),
	};
	struct pier_mr_attr attr = attr_of(ranges, 4);

	(void)state;
	for (int failing = 1; failing <= 3; failing++) {
		fixture.failing = failing;
		refuse(&attr, EIO, "as host memory on soft0");
	}
	/* The buffer and all keys are free again: everything can be registered anew. */
	expect_ok(pier_mr_dereg(reg(&attr)));
}

/* The parts must be consecutive and cover the memory from `address` on. */
static void expect_pieces(const struct pier_mr *mr, uint64_t longest)
{
	uint64_t offset = 0;

	for (uint32_t i = 0; i < pier_mr_parts(mr); i++) {
		struct pier_mr_part_info info;

		expect_ok(pier_mr_part(mr, i, &info, sizeof(info)));
		assert_int_equal(info.offset, offset);
		assert_true(info.length > 0 && info.length <= longest);
		assert_int_equal(info.iova, pier_mr_iova(mr) + offset);
		if (i > 0)
			assert_int_equal(info.iova % fixture.page, 0);
		expect_element(mr, offset, i);
		expect_element(mr, offset + info.length - 1, i);
		offset += info.length;
	}
	assert_int_equal(offset, pier_mr_length(mr));
}

/* The driver reports less than it takes, as ionic's. */
static void asks_the_driver_for_long_ranges(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory,
							PAGES * fixture.page);
	struct pier_mr_attr attr = attr_of(&range, 1);
	struct pier_mr *mr;

	(void)state;
	fixture.device->limits.max_mr_size = 4 * fixture.page;
	for (int split = 0; split <= PIER_SPLIT_PIECES; split++) {
		attr.split = (enum pier_split)split;
		mr = reg(&attr);
		assert_int_equal(pier_mr_parts(mr), 1);
		expect_ok(pier_mr_dereg(mr));
	}
}

static void registers_long_ranges_in_pieces(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory + 5,
							(PAGES - 1) * fixture.page);
	struct pier_mr_attr attr = attr_of(&range, 1);
	struct pier_mr *mr;

	(void)state;
	fixture.device->limits.max_mr_size = fixture.longest = 4 * fixture.page + 100;
	fixture.refusal = EINVAL;
	refuse(&attr, E2BIG, "its max_mr_size is");
	attr.split = PIER_SPLIT_NEVER;
	refuse(&attr, E2BIG, "its max_mr_size is");
	attr.split = PIER_SPLIT_PIECES;
	mr = reg(&attr);
	assert_int_equal(pier_mr_parts(mr), 4);
	expect_pieces(mr, 4 * fixture.page + 100);
	expect_ok(pier_mr_dereg(mr));
	/* A buffer exported in pieces, alone and followed by another range. */
	{
		struct pier_mr_range two[] = {
			pier_mr_range_buffer(fixture.buffer, 0, 9 * fixture.page),
			pier_mr_range_host(fixture.memory, 5),
		};

		attr.ranges = two;
		attr.range_count = 2;
		mr = reg(&attr);
		assert_int_equal(pier_mr_parts(mr), 4);
		expect_element(mr, 9 * fixture.page - 1, 2);
		expect_element(mr, 9 * fixture.page + 4, 3);
		assert_int_equal(pier_mr_path(mr), PIER_PATH_MIXED);
		expect_ok(pier_mr_dereg(mr));
	}
}

/* Some virtual functions of mlx5: see UMR_PAGES in path.c. */
static void names_what_long_dmabufs_need(void **state)
{
	uint64_t length = 65536 * fixture.page;
	struct pier_buffer *buffer = NULL;
	struct pier_mr_range range;
	struct pier_mr_attr attr;

	(void)state;
	expect_ok(pier_buffer_alloc("memfd", length, &buffer));
	range = pier_mr_range_buffer(buffer, 0, length);
	attr = attr_of(&range, 1);
	fixture.device->limits.vendor_id = 0x02c9;
	fixture.longest = 0;
	fixture.refusal = EINVAL;
	refuse(&attr, EINVAL, "takes only dma-bufs of less than");
	range.length -= fixture.page;
	refuse(&attr, EINVAL, "as amdgpu");
	fixture.device->limits.vendor_id = 0;
	range.length = length;
	refuse(&attr, EINVAL, "as amdgpu");
	expect_ok(pier_buffer_free(buffer));
}

static void tries_smaller_pieces_when_out_of_memory(void **state)
{
	struct pier_mr_range range = pier_mr_range_host(fixture.memory,
							PAGES * fixture.page);
	struct pier_mr_attr attr = attr_of(&range, 1);
	struct pier_mr *mr;

	(void)state;
	fixture.longest = 3 * fixture.page;
	refuse(&attr, ENOMEM, "as host memory");
	attr.split = PIER_SPLIT_PIECES;
	mr = reg(&attr);
	assert_int_equal(pier_mr_parts(mr), PAGES / 2);
	expect_pieces(mr, 2 * fixture.page);
	expect_ok(pier_mr_dereg(mr));
	fixture.longest = 0;
	refuse(&attr, ENOMEM, "as host memory");
}

static void has_a_limit_of_parts(void **state)
{
	uint64_t length = (PIER_MR_PARTS_MAX + 1) * fixture.page;
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct pier_mr_range range = pier_mr_range_host(memory, length);
	struct pier_mr_attr attr = attr_of(&range, 1);
	struct pier_mr *mr;

	(void)state;
	assert_ptr_not_equal(memory, MAP_FAILED);
	attr.split = PIER_SPLIT_PIECES;
	fixture.device->limits.max_mr_size = fixture.longest = fixture.page;
	fixture.refusal = EINVAL;
	refuse(&attr, E2BIG, "1024 parts");
	range.length -= fixture.page;
	mr = reg(&attr);
	assert_int_equal(pier_mr_parts(mr), PIER_MR_PARTS_MAX);
	expect_pieces(mr, fixture.page);
	expect_ok(pier_mr_dereg(mr));
	munmap(memory, length);
}

static void has_sub_regions(void **state)
{
	struct pier_mr *mr = NULL, *sub = NULL, *subsub = NULL, *none = NULL;
	struct pier_remote remote;

	(void)state;
	expect_ok(pier_mr_reg_buffer(fixture.pd, fixture.buffer, 3, 5000,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &mr));
	expect_result(pier_mr_reg_sub(mr, 5000, 1, 0, &none), -ERANGE);
	expect_result(pier_mr_reg_sub(mr, 1, UINT64_MAX, 0, &none), -ERANGE);
	expect_result(pier_mr_reg_sub(mr, 1, 0, 0, &none), -EINVAL);
	expect_result(pier_mr_reg_sub(mr, 1, 1, PIER_ACCESS_REMOTE_WRITE, &none),
		      -EINVAL);
	assert_null(none);
	expect_ok(pier_mr_reg_sub(mr, 100, 1000, PIER_ACCESS_REMOTE_READ, &sub));
	assert_int_equal(pier_mr_iova(sub), pier_mr_iova(mr) + 100);
	assert_int_equal(pier_mr_length(sub), 1000);
	assert_int_equal(test_mr_info(sub).access, PIER_ACCESS_REMOTE_READ);
	assert_int_equal(pier_mr_path(sub), PIER_PATH_DMABUF);
	assert_int_not_equal(test_mr_info(sub).rkey, test_mr_info(mr).rkey);
	expect_ok(pier_mr_remote(sub, &remote));
	assert_int_equal(remote.addr, pier_mr_iova(mr) + 100);
	assert_int_equal(remote.rkey, test_mr_info(sub).rkey);
	expect_result(pier_mr_dereg(mr), -EBUSY);
	test_assert_sentence("1 sub-region");
	expect_ok(pier_mr_reg_sub(sub, 999, 1, 0, &subsub));
	assert_int_equal(pier_mr_iova(subsub), pier_mr_iova(mr) + 1099);
	expect_result(pier_mr_dereg(sub), -EBUSY);
	expect_result(pier_mr_remote(subsub, &remote), -EACCES);
	expect_ok(pier_mr_dereg(subsub));
	expect_ok(pier_mr_dereg(sub));
	expect_ok(pier_mr_dereg(mr));
}

static void has_sub_regions_over_seams(void **state)
{
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(fixture.memory + 100, 1000),
		pier_mr_range_buffer(fixture.buffer, 77, 3),
		pier_mr_range_host(fixture.memory + 5000, 500),
	};
	struct pier_mr *mr = NULL, *sub = NULL;
	struct pier_mr_part_info info;

	(void)state;
	expect_ok(test_reg_mr_vec(fixture.pd, ranges, 3, PIER_ACCESS_SHARED, &mr));
	expect_ok(pier_mr_reg_sub(mr, 990, 300, PIER_ACCESS_LOCAL_WRITE, &sub));
	assert_int_equal(pier_mr_iova(sub), pier_mr_iova(mr) + 990);
	assert_int_equal(pier_mr_parts(sub), 3);
	expect_ok(pier_mr_part(sub, 1, &info, sizeof(info)));
	assert_int_equal(info.offset, 10);
	assert_int_equal(info.length, 3);
	expect_element(sub, 9, 0);
	expect_element(sub, 12, 1);
	expect_element(sub, 299, 2);
	expect_ok(pier_mr_dereg(sub));
	/* Within one range, memory whose offsets do not match the region's addresses. */
	expect_ok(pier_mr_reg_sub(mr, 1003, 500, PIER_ACCESS_SHARED, &sub));
	assert_int_equal(pier_mr_parts(sub), 1);
	assert_int_equal(pier_mr_iova(sub), pier_mr_iova(mr) + 1003);
	expect_element(sub, 0, 0);
	expect_element(sub, 499, 0);
	{
		struct pier_remote remote;

		expect_ok(pier_mr_remote(sub, &remote));
		assert_int_equal(remote.addr, (uintptr_t)fixture.memory + 5000);
	}
	expect_ok(pier_mr_dereg(sub));
	expect_ok(pier_mr_dereg(mr));
}

/* A region keeps no fd, so nothing can be registered from it again. */
static void has_no_sub_regions_of_an_fd(void **state)
{
	struct pier_mr *mr = NULL, *sub = NULL;
	struct pier_dmabuf dmabuf;
	struct pier_mr_range ranges[2] = { pier_mr_range_host(fixture.memory, 100) };

	(void)state;
	expect_ok(pier_dmabuf_export(fixture.buffer, 0, 100, PIER_MAPPING_AUTO, &dmabuf));
	ranges[1] = pier_mr_range_dmabuf(dmabuf.fd, 0, 100);
	expect_ok(test_reg_mr_vec(fixture.pd, ranges, 2, PIER_ACCESS_SHARED, &mr));
	pier_dmabuf_close(&dmabuf);
	expect_result(pier_mr_reg_sub(mr, 99, 2, 0, &sub), -EOPNOTSUPP);
	test_assert_sentence("register the part from the fd");
	expect_ok(pier_mr_reg_sub(mr, 0, 100, 0, &sub));
	expect_ok(pier_mr_dereg(sub));
	expect_ok(pier_mr_dereg(mr));
}

/* Random ranges and sub-regions, compared with a table of each byte's place. */
static void sub_regions_match_a_table_of_bytes(void **state)
{
	enum {
		RANGES = 12,
		ROUNDS = 60,
	};
	struct test_random random = test_random_start();

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct pier_mr_range ranges[RANGES];
		uint32_t count = 1 + (uint32_t)test_random_below(&random, RANGES);
		uint64_t total = 0, *where = calloc(RANGES * 300, sizeof(*where));
		struct pier_mr *mr = NULL, *sub = NULL;
		uint64_t offset, length;

		assert_non_null(where);
		for (uint32_t i = 0; i < count; i++) {
			uint64_t from = test_random_below(&random, 8 * fixture.page);
			uint64_t bytes = 1 + test_random_below(&random, 300);
			bool host = test_random_below(&random, 2);

			ranges[i] = (struct pier_mr_range){
				.source = host ? PIER_MR_HOST : PIER_MR_BUFFER,
				.fd = -1,
				.addr = host ? fixture.memory + from : NULL,
				.buffer = host ? NULL : fixture.buffer,
				.offset = host ? 0 : from,
				.length = bytes,
			};
			for (uint64_t k = 0; k < bytes; k++)
				where[total++] =
					(host ? (uintptr_t)fixture.memory
					      : pier_buffer_address(fixture.buffer)) +
					from + k;
		}
		expect_ok(test_reg_mr_vec(fixture.pd, ranges, count, PIER_ACCESS_SHARED,
					  &mr));
		offset = test_random_below(&random, total);
		length = 1 + test_random_below(&random, total - offset);
		expect_ok(pier_mr_reg_sub(mr, offset, length, PIER_ACCESS_SHARED, &sub));
		for (uint64_t k = 0; k < length; k++) {
			struct pier_gather one, same;

			expect_ok(pier_mr_gather(sub, pier_mr_iova(sub) + k, 1, &one));
			expect_ok(pier_mr_gather(mr, pier_mr_iova(sub) + k, 1, &same));
			/* An iova may differ from the address by whole pages. */
			assert_int_equal(one.addr % fixture.page,
					 where[offset + k] % fixture.page);
			assert_int_equal(same.addr % fixture.page,
					 where[offset + k] % fixture.page);
			assert_int_not_equal(one.lkey, same.lkey);
		}
		expect_ok(pier_mr_dereg(sub));
		expect_ok(pier_mr_dereg(mr));
		free(where);
	}
}

static void expect_padding(struct pier_buffer *buffer, size_t offset, size_t length,
			   uint64_t padding)
{
	struct pier_mr *mr;

	fixture.padding = 0;
	expect_ok(pier_mr_reg_buffer(fixture.pd, buffer, offset, length,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &mr));
	assert_int_equal(fixture.padding, padding);
	expect_ok(pier_mr_dereg(mr));
}

/* Only bytes that were allocated after the buffer, not those that the caller left out. */
static void reports_padding_behind_a_buffer(void **state)
{
	const size_t lengths[] = { 1, 100, fixture.page - 1, fixture.page,
				   2 * fixture.page + 7 };
	struct pier_buffer *buffer, *wrapped;
	void *memory;

	(void)state;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		size_t length = lengths[i];
		uint64_t rest = (fixture.page - length % fixture.page) % fixture.page;

		expect_ok(pier_buffer_alloc("memfd", length, &buffer));
		expect_ok(pier_buffer_map(buffer, &memory));
		expect_ok(pier_buffer_wrap(memory, length, &wrapped));
		expect_padding(buffer, 0, length, rest);
		expect_padding(wrapped, 0, length, 0);
		if (length > 1)
			expect_padding(buffer, 0, length - 1, 0);
		if (length > fixture.page)
			expect_padding(buffer, fixture.page, length - fixture.page, rest);
		expect_ok(pier_buffer_free(wrapped));
		expect_ok(pier_buffer_free(buffer));
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(reads_structs_of_other_sizes),
		CASE(names_the_wrong_attribute),
		CASE(registers_every_kind_of_source),
		CASE(keeps_the_buffer_that_a_pointer_is_in),
		CASE(begins_at_the_requested_iova),
		CASE(registers_with_a_hint),
		CASE(caches_register_with_their_hint),
		CASE(refuses_a_hint),
		CASE(joins_ranges_as_parts),
		CASE(refuses_parts_if_forbidden),
		CASE(failed_vector_leaves_nothing_behind),
		CASE(asks_the_driver_for_long_ranges),
		CASE(registers_long_ranges_in_pieces),
		CASE(names_what_long_dmabufs_need),
		CASE(tries_smaller_pieces_when_out_of_memory),
		CASE(has_a_limit_of_parts),
		CASE(has_sub_regions),
		CASE(has_sub_regions_over_seams),
		CASE(has_no_sub_regions_of_an_fd),
		CASE(reports_padding_behind_a_buffer),
		CASE(sub_regions_match_a_table_of_bytes),
	};

	return cmocka_run_group_tests_name("regions", tests, NULL, NULL);
}
