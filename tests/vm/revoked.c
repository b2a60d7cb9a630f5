/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"
#include "../support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <pier/pier.h>

#include "rxe/driver/exporter/faulty_exporter.h"

/*
 * An exporter takes the memory of a dma-buf away while channels use it. check_lifetime
 * runs this, because it has loaded the exporter.
 *
 * usage: vm_revoked DEVICE
 */

enum {
	PAGES = 16,
	LENGTH = PAGES * 4096,
	PATIENT = 30000,
};

static const char *device_name;

struct end {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_channel *channel;
};

static struct {
	struct end ends[2];
	struct pier_buffer *buffer;
	struct pier_mr *host; /* of the second end */
	int exporter, fd;
} fixture;

static int setup(void **state)
{
	struct faulty_export request = { .kind = FAULTY_REVOCABLE, .pages = PAGES };
	struct pier_endpoint endpoints[2];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct end *end = &fixture.ends[i];

		expect_ok(pier_device_open(device_name, &end->device));
		expect_ok(pier_pd_alloc(end->device, &end->pd));
		expect_ok(pier_channel_create(end->pd, NULL, &end->channel));
		expect_ok(pier_channel_endpoint(end->channel, &endpoints[i]));
	}
	for (size_t i = 0; i < 2; i++)
		expect_ok(
			pier_channel_connect(fixture.ends[i].channel, &endpoints[1 - i]));
	expect_ok(pier_buffer_alloc("host", LENGTH, &fixture.buffer));
	expect_ok(pier_mr_reg_buffer(fixture.ends[1].pd, fixture.buffer, 0, LENGTH,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT,
				     &fixture.host));
	fixture.exporter = open("/dev/faulty_exporter", O_RDWR | O_CLOEXEC);
	assert_true(fixture.exporter >= 0);
	fixture.fd = ioctl(fixture.exporter, FAULTY_EXPORT, &request);
	assert_true(fixture.fd >= 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	close(fixture.fd);
	close(fixture.exporter);
	expect_ok(pier_mr_dereg(fixture.host));
	expect_ok(pier_buffer_free(fixture.buffer));
	for (size_t i = 0; i < 2; i++) {
		expect_ok(pier_channel_destroy(fixture.ends[i].channel));
		expect_ok(pier_pd_dealloc(fixture.ends[i].pd));
		expect_ok(pier_device_close(fixture.ends[i].device));
	}
	return 0;
}

/* Not a write: rxe flushes one whose memory it cannot read, as if nothing was wrong. */
static int read_into(const struct pier_mr *mr)
{
	struct pier_scatter target;
	struct pier_remote source;

	expect_ok(pier_mr_scatter(mr, pier_mr_iova(mr), LENGTH, &target));
	expect_ok(pier_mr_remote(fixture.host, &source));
	return pier_channel_read(fixture.ends[0].channel, &target, 1, &source, PATIENT);
}

/* This end's: its sentence names the region, and its cache does not hand it out again. */
static void names_the_region(void **state)
{
	struct pier_mr_range range = pier_mr_range_dmabuf(fixture.fd, 0, LENGTH);
	struct pier_mr_cache *cache = NULL;
	struct pier_mr *mr = NULL, *again = NULL;
	char name[100];

	(void)state;
	expect_ok(pier_mr_cache_create(fixture.ends[0].pd, NULL, &cache));
	expect_ok(pier_mr_cache_get(cache, &range, PIER_ACCESS_LOCAL_WRITE, &mr));
	expect_ok(read_into(mr));
	expect_ok(pier_mr_cache_get(cache, &range, PIER_ACCESS_LOCAL_WRITE, &again));
	assert_ptr_equal(again, mr);
	expect_ok(pier_mr_cache_put(cache, again));

	assert_int_equal(ioctl(fixture.exporter, FAULTY_REVOKE, &fixture.fd), 0);
	expect_result(read_into(mr), -EFAULT);
	snprintf(name, sizeof(name), "; it used the region of %d bytes at %#" PRIx64,
		 LENGTH, pier_mr_iova(mr));
	test_assert_sentence(name);
	expect_result(pier_mr_cache_get(cache, &range, PIER_ACCESS_LOCAL_WRITE, &again),
		      -ENODEV);
	expect_ok(pier_mr_cache_put(cache, mr));
	expect_ok(pier_mr_cache_destroy(cache));
}

/* The other end's: the keys that it gave away are refused. */
static void refuses_the_peer(void **state)
{
	const struct pier_mr_range range = pier_mr_range_dmabuf(fixture.fd, 0, LENGTH);
	const struct pier_mr_attr attr = { .size = sizeof(attr),
					   .ranges = &range,
					   .range_count = 1,
					   .access = PIER_ACCESS_SHARED };
	struct pier_gather source;
	struct pier_remote target;
	struct pier_mr *mr = NULL, *local = NULL;

	(void)state;
	expect_ok(pier_mr_reg_attr(fixture.ends[1].pd, &attr, &mr));
	expect_ok(pier_mr_reg_buffer(fixture.ends[0].pd, fixture.buffer, 0, LENGTH,
				     PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &local));
	expect_ok(pier_mr_gather(local, pier_mr_iova(local), LENGTH, &source));
	expect_ok(pier_mr_remote(mr, &target));
	expect_ok(pier_channel_write(fixture.ends[0].channel, &source, 1, &target,
				     PATIENT));
	assert_int_equal(ioctl(fixture.exporter, FAULTY_REVOKE, &fixture.fd), 0);
	expect_result(
		pier_channel_write(fixture.ends[0].channel, &source, 1, &target, PATIENT),
		-EACCES);
	expect_ok(pier_mr_dereg(local));
	expect_ok(pier_mr_dereg(mr));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		CASE(names_the_region),
		CASE(refuses_the_peer),
	};

	device_name = argc > 1 ? argv[1] : "rxe0";
	return cmocka_run_group_tests_name("revoked memory", tests, NULL, NULL);
}
