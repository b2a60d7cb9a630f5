/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Children of fork(2): the calls they are refused, the calls they may make, and that
 * neither they nor their parents are harmed.
 */
#include "tests/support/cmocka.h"
#include "tests/support/requests.h"
#include "tests/support/census.h"
#include "tests/support/expect.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

#include "device/device.h"
#include "core/error.h"
#include "core/fork.h"

enum {
	LENGTH = 4096,
	TIME_MS = 30000,
	HANGS_AFTER_S = 60, /* in a child: far more than it needs */
};

/*
 * Limits of gcc 12's sanitizers. One cannot start threads in a child of a process with
 * several threads, as soft0 does; the other does not hold its malloc() locks over
 * fork(2).
 */
#ifdef __SANITIZE_THREAD__
static const bool children_have_threads = false;
#else
static const bool children_have_threads = true;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const bool children_have_malloc = false;
#else
static const bool children_have_malloc = true;
#endif

/* A device with two channels that are connected to each other. */
struct fixture {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *a, *b;
	struct pier_work work; /* an outstanding receive of b */
	/* In parents whose children make all calls. */
	struct pier_counter *counter;
	struct pier_mr_cache *cache;
	struct pier_mr *cached;
	struct pier_group *group;
	struct pier_event_queue *queue;
	struct pier_registration *registration;
	struct pier_transfer *transfer; /* with a request in flight, or complete */
	struct pier_receiver *receiver;
	struct pier_srq *srq;
	struct pier_cq *cq;
	struct pier_recv_pool *pool;
	struct pier_ring *ring;
};

/* Nothing here asserts, since it also runs in children. */
static int open_fixture(struct fixture *fixture)
{
	int error = pier_device_open("soft0", &fixture->device);

	if (!error)
		error = pier_pd_alloc(fixture->device, &fixture->pd);
	if (!error)
		error = pier_buffer_alloc("memfd", LENGTH, &fixture->buffer);
	if (!error)
		error = pier_mr_reg_buffer(fixture->pd, fixture->buffer, 0, LENGTH,
					   PIER_ACCESS_SHARED, PIER_POLICY_DIRECT,
					   &fixture->mr);
	if (!error)
		error = pier_channel_create(fixture->pd, NULL, &fixture->a);
	if (!error)
		error = pier_channel_create(fixture->pd, NULL, &fixture->b);
	return error;
}

static int connect_fixture(struct fixture *fixture)
{
	struct pier_endpoint of_a, of_b;
	int error = pier_channel_endpoint(fixture->a, &of_a);

	if (!error)
		error = pier_channel_endpoint(fixture->b, &of_b);
	if (!error)
		error = pier_channel_connect(fixture->a, &of_b);
	if (!error)
		error = pier_channel_connect(fixture->b, &of_a);
	return error;
}

static int post_receive(struct fixture *fixture)
{
	struct pier_scatter target;
	int error = pier_mr_scatter(fixture->mr, pier_mr_iova(fixture->mr), 8, &target);

	return error ? error
		     : pier_channel_post_recv(fixture->b, &target, 1, &fixture->work);
}

/* Write the text from the start of the buffer to its end, through the channel. */
static int move_bytes(struct fixture *fixture, const char *text)
{
	size_t length = strlen(text) + 1, last = LENGTH - length;
	char moved[64] = "";
	struct pier_remote whole, part;
	struct pier_gather source;
	int error = pier_buffer_copy_to(fixture->buffer, 0, text, length);

	if (!error)
		error = pier_mr_remote(fixture->mr, &whole);
	if (!error)
		error = pier_remote_sub(&whole, last, length, &part);
	if (!error)
		error = pier_mr_gather(fixture->mr, pier_mr_iova(fixture->mr), length,
				       &source);
	if (!error)
		error = pier_channel_write(fixture->a, &source, 1, &part, TIME_MS);
	if (!error)
		error = pier_buffer_copy_from(fixture->buffer, last, moved, length);
	return error ? error : strcmp(moved, text);
}

static int close_more(struct fixture *fixture)
{
	int error = pier_registration_close(fixture->registration);

	if (!error)
		error = pier_transfer_destroy(fixture->transfer);
	if (!error)
		error = pier_receiver_destroy(fixture->receiver);
	if (!error)
		error = pier_recv_pool_destroy(fixture->pool);
	if (!error)
		error = pier_ring_destroy(fixture->ring);
	if (!error)
		error = pier_srq_destroy(fixture->srq);
	if (!error)
		error = pier_cq_destroy(fixture->cq);
	if (!error)
		error = pier_event_queue_destroy(fixture->queue);
	if (!error && fixture->cache)
		error = pier_mr_cache_put(fixture->cache, fixture->cached);
	if (!error)
		error = pier_mr_cache_destroy(fixture->cache);
	if (!error)
		error = pier_group_destroy(fixture->group);
	return error ? error : pier_counter_destroy(fixture->counter);
}

static int close_fixture(struct fixture *fixture)
{
	int error = close_more(fixture);

	if (!error)
		error = pier_channel_destroy(fixture->a);

	if (!error)
		error = pier_channel_destroy(fixture->b);
	if (!error)
		error = pier_mr_dereg(fixture->mr);
	if (!error)
		error = pier_buffer_free(fixture->buffer);
	if (!error)
		error = pier_pd_dealloc(fixture->pd);
	return error ? error : pier_device_close(fixture->device);
}

static int register_by_queue(struct fixture *fixture)
{
	struct pier_mr_range range = pier_mr_range_buffer(fixture->buffer, 0, 1);
	struct pier_mr_attr attr;
	struct pier_event event;
	int error;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	error = pier_mr_reg_async(fixture->queue, fixture->pd, &attr,
				  &fixture->registration);
	if (!error)
		error = pier_event_queue_wait(fixture->queue, TIME_MS, &event,
					      sizeof(event));
	return error < 0 ? error : pier_mr_dereg(event.mr);
}

static uint8_t blobs[PIER_GROUP_BLOB_SIZE];

static int begin_transfer(struct fixture *fixture, struct pier_transfer **ret_transfer)
{
	struct pier_transfer_attr attr;
	struct pier_rail rail = { .channel = fixture->a, .mr = fixture->mr, .count = 1 };
	struct pier_remote whole;
	int error = pier_mr_remote(fixture->mr, &whole);

	pier_transfer_attr_init(&attr);
	rail.parts = &whole;
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = 1;
	return error ? error : pier_transfer_create(&attr, ret_transfer);
}

static int begin_receiver(struct fixture *fixture, struct pier_receiver **ret_receiver)
{
	struct pier_receiver_rail rail = { .channel = fixture->a, .mr = fixture->mr };
	struct pier_receiver_attr attr;

	pier_receiver_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = 1;
	return pier_receiver_create(&attr, ret_receiver);
}

/* One object of each kind. */
static int add_more(struct fixture *fixture)
{
	struct pier_mr_cache_attr unwatched;
	int error = pier_counter_create(fixture->pd, &fixture->counter);

	pier_mr_cache_attr_init(&unwatched);
	unwatched.flags = PIER_MR_CACHE_UNWATCHED;
	if (!error)
		error = pier_mr_cache_create(fixture->pd, &unwatched, &fixture->cache);
	if (!error)
		error = test_cache_get_buffer(fixture->cache, fixture->buffer, 0, 1, 0,
					      &fixture->cached);
	if (!error)
		error = pier_group_create(fixture->pd, 0, 1, NULL, &fixture->group);
	if (!error)
		error = pier_group_connect(fixture->group, blobs, sizeof(blobs), TIME_MS);
	if (!error)
		error = pier_event_queue_create(NULL, &fixture->queue);
	if (!error)
		error = begin_transfer(fixture, &fixture->transfer);
	if (!error)
		error = pier_transfer_wait(fixture->transfer, 0) < 0;
	if (!error)
		error = begin_receiver(fixture, &fixture->receiver);
	if (!error)
		error = pier_srq_create(fixture->pd, NULL, &fixture->srq);
	if (!error)
		error = pier_cq_create(fixture->pd, NULL, &fixture->cq);
	if (!error)
		error = pier_recv_pool_create(fixture->pd, NULL, &fixture->pool);
	if (!error)
		error = pier_ring_create(fixture->pd, NULL, &fixture->ring);
	return error ? error : register_by_queue(fixture);
}

static struct fixture made(void)
{
	struct fixture fixture = { 0 };

	expect_ok(open_fixture(&fixture));
	expect_ok(connect_fixture(&fixture));
	expect_ok(post_receive(&fixture));
	expect_ok(add_more(&fixture));
	return fixture;
}

/* Run the function in a child. It must return 0 in time. */
static void expect_child(int (*body)(struct fixture *fixture), struct fixture *fixture)
{
	int status = -1;
	pid_t child;

	fflush(NULL);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		alarm(HANGS_AFTER_S);
		_exit(body(fixture) != 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFSIGNALED(status))
		fail_msg("the child hung, or died: signal %d", WTERMSIG(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* Every call, as the child makes it with the objects of its parent. */
struct call {
	const char *name, *object;
	int (*make)(struct fixture *fixture);
};

static struct pier_gather source;
static struct pier_scatter target;
static struct pier_remote remote;
static struct pier_result result;
static struct pier_result message;
static struct pier_pool_message pooled;
static struct pier_ring_slot slot;

#define CALL(name, call)                         \
	static int name(struct fixture *fixture) \
	{                                        \
		return call;                     \
	}
CALL(close_device, pier_device_close(fixture->device))
CALL(query_device, pier_device_query(fixture->device, &(struct pier_device_attr){ 0 },
				     sizeof(struct pier_device_attr)))
CALL(device_location,
     pier_device_location(fixture->device, &(struct pier_location){ .numa_node = 0 }))
CALL(query_port, pier_device_query_port(fixture->device, 1, &(struct pier_port_attr){ 0 },
					sizeof(struct pier_port_attr)))
CALL(query_gid,
     pier_device_query_gid(fixture->device, 1, 0, &(struct pier_gid_entry){ 0 },
			   sizeof(struct pier_gid_entry)))
CALL(alloc_pd, pier_pd_alloc(fixture->device, &fixture->pd))
CALL(dealloc_pd, pier_pd_dealloc(fixture->pd))
CALL(reg_mr, pier_mr_reg(fixture->pd, fixture, 1, 0, &fixture->mr))
CALL(reg_dmabuf_mr, pier_mr_reg_dmabuf(fixture->pd, 0, 1, 0, 0, 0, &fixture->mr))
CALL(reg_buffer_mr, pier_mr_reg_buffer(fixture->pd, fixture->buffer, 0, 1, 0,
				       PIER_POLICY_ANY, &fixture->mr))
CALL(dereg_mr, pier_mr_dereg(fixture->mr))
CALL(prepare_channel, pier_channel_create(fixture->pd, NULL, &fixture->a))
CALL(endpoint, pier_channel_endpoint(fixture->a, &(struct pier_endpoint){ 0 }))
CALL(connect_channel, pier_channel_connect(fixture->a, &(struct pier_endpoint){ 0 }))
CALL(handshake, pier_channel_handshake(fixture->a, -1, -1, TIME_MS))
CALL(start_handshake, pier_channel_handshake_start(fixture->a, -1, -1, TIME_MS))
CALL(step_handshake,
     pier_channel_handshake_step(fixture->a, (struct pollfd[2]){ 0 }, &(int){ 0 }))
CALL(destroy_channel, pier_channel_destroy(fixture->a))
CALL(post_send, pier_channel_post_send(fixture->a, &source, 0, NULL))
CALL(post_send_imm, test_post_send_imm(fixture->a, &source, 0, 1, NULL))
CALL(post_write, pier_channel_post_write(fixture->a, &source, 0, &remote, NULL))
CALL(post_write_imm, test_post_write_imm(fixture->a, &source, 0, &remote, 1, NULL))
CALL(post_read, pier_channel_post_read(fixture->a, &target, 0, &remote, NULL))
CALL(post_recv, pier_channel_post_recv(fixture->b, &target, 0, NULL))
CALL(send_now, pier_channel_send(fixture->a, &source, 0, TIME_MS))
CALL(send_imm_now, test_channel_send_imm(fixture->a, &source, 0, 1, TIME_MS))
CALL(write_now, pier_channel_write(fixture->a, &source, 0, &remote, TIME_MS))
CALL(write_imm_now, test_channel_write_imm(fixture->a, &source, 0, &remote, 1, TIME_MS))
CALL(read_now, pier_channel_read(fixture->a, &target, 0, &remote, TIME_MS))
CALL(recv_now, pier_channel_recv(fixture->b, &target, 0, TIME_MS, &result))
CALL(poll_channel, pier_channel_poll(fixture->b))
CALL(reset_channel, pier_channel_reset(fixture->b))
CALL(poll_work, pier_work_poll(fixture->b, fixture->work, &result))
CALL(wait_work, test_work_wait(fixture->b, fixture->work, 0, &result))
CALL(arm_channel, pier_channel_arm(fixture->b))
CALL(reg_sub_mr, pier_mr_reg_sub(fixture->mr, 0, 1, 0, &fixture->mr))
CALL(bind_sub_mr, pier_mr_bind_sub(fixture->a, fixture->mr, 0, 1, PIER_ACCESS_REMOTE_READ,
				   TIME_MS, &fixture->mr))
CALL(post_vec, test_post_write_vec(fixture->a, &source, 0, &remote, 2, NULL))
CALL(run_request, test_channel_fetch_add(fixture->a, &target, &remote, 1, TIME_MS))
CALL(run_vec, test_channel_read_vec(fixture->a, &target, 0, &remote, 2, TIME_MS))
CALL(create_counter, pier_counter_create(fixture->pd, &fixture->counter))
CALL(bind_counter, pier_counter_bind(fixture->counter, fixture->mr))
CALL(bind_counter_imm,
     pier_counter_bind_imm(fixture->counter, fixture->mr, fixture->a, 1))
CALL(unbind_counter, pier_counter_unbind(fixture->counter, fixture->mr))
CALL(add_counter, pier_counter_add(fixture->counter, 1))
CALL(wait_counter, pier_counter_wait(fixture->counter, 1, TIME_MS))
CALL(destroy_counter, pier_counter_destroy(fixture->counter))
CALL(create_cache, pier_mr_cache_create(fixture->pd, NULL, &fixture->cache))
CALL(cache_get, test_cache_get(fixture->cache, fixture, 1, 0, &fixture->cached))
CALL(cache_get_buffer,
     test_cache_get_buffer(fixture->cache, fixture->buffer, 0, 1, 0, &fixture->cached))
CALL(cache_put, pier_mr_cache_put(fixture->cache, fixture->cached))
CALL(cache_invalidate, test_cache_invalidate(fixture->cache, fixture, 1))
CALL(cache_flush, pier_mr_cache_flush(fixture->cache))
CALL(destroy_cache, pier_mr_cache_destroy(fixture->cache))
CALL(create_group, pier_group_create(fixture->pd, 0, 1, NULL, &fixture->group))
CALL(group_endpoints, pier_group_endpoints(fixture->group, blobs, sizeof(blobs)))
CALL(connect_group, pier_group_connect(fixture->group, blobs, sizeof(blobs), TIME_MS))
CALL(group_handshake, pier_group_handshake(fixture->group, NULL, TIME_MS))
CALL(group_exchange, pier_group_exchange(fixture->group, NULL, 0, TIME_MS, NULL))
CALL(group_wait, pier_group_wait(fixture->group, NULL, 0, TIME_MS, NULL))
CALL(group_barrier, pier_group_barrier(fixture->group, TIME_MS))
CALL(group_barrier_of,
     pier_group_barrier_of(fixture->group, PIER_BARRIER_CENTRAL, NULL, 0, TIME_MS))
CALL(group_channel, pier_channel_destroy(pier_group_channel(fixture->group, 0)))
CALL(destroy_group, pier_group_destroy(fixture->group))
CALL(reg_mr_async, pier_mr_reg_async(fixture->queue, fixture->pd,
				     &(struct pier_mr_attr){ 0 }, &fixture->registration))
CALL(wait_event, pier_event_queue_wait(fixture->queue, TIME_MS, &(struct pier_event){ 0 },
				       sizeof(struct pier_event)))
CALL(cancel, pier_registration_cancel(fixture->registration))
CALL(close_registration, pier_registration_close(fixture->registration))
CALL(destroy_queue, pier_event_queue_destroy(fixture->queue))
CALL(begin_a_transfer, begin_transfer(fixture, &fixture->transfer))
CALL(progress_transfer, pier_transfer_progress(fixture->transfer))
CALL(wait_transfer, pier_transfer_wait(fixture->transfer, TIME_MS))
CALL(cancel_transfer, pier_transfer_cancel(fixture->transfer))
CALL(resume_transfer, pier_transfer_resume(fixture->transfer, NULL, 0))
CALL(pack_transfer, pier_transfer_pack(fixture->transfer, NULL, 0))
CALL(destroy_transfer, pier_transfer_destroy(fixture->transfer))
CALL(begin_a_receiver, begin_receiver(fixture, &fixture->receiver))
CALL(progress_receiver, pier_receiver_progress(fixture->receiver))
CALL(wait_receiver, pier_receiver_wait(fixture->receiver, TIME_MS))
CALL(cancel_receiver, pier_receiver_cancel(fixture->receiver))
CALL(resume_receiver, pier_receiver_resume(fixture->receiver, NULL, 0))
CALL(next_receiver, pier_receiver_next(fixture->receiver, NULL, 0, 0))
CALL(destroy_receiver, pier_receiver_destroy(fixture->receiver))
CALL(create_cq, pier_cq_create(fixture->pd, NULL, &fixture->cq))
CALL(destroy_cq, pier_cq_destroy(fixture->cq))
CALL(poll_cq, pier_cq_poll(fixture->cq, &fixture->a, 1))
CALL(arm_cq, pier_cq_arm(fixture->cq))
CALL(create_srq, pier_srq_create(fixture->pd, NULL, &fixture->srq))
CALL(destroy_srq, pier_srq_destroy(fixture->srq))
CALL(post_srq_recv, pier_srq_post_recv(fixture->srq, &target, 0, NULL))
CALL(wait_message, pier_message_wait(fixture->b, TIME_MS, &message))
CALL(create_recv_pool, pier_recv_pool_create(fixture->pd, NULL, &fixture->pool))
CALL(destroy_recv_pool, pier_recv_pool_destroy(fixture->pool))
CALL(wait_pool_message, pier_recv_pool_wait(fixture->pool, TIME_MS, &pooled))
CALL(release_message, pier_recv_pool_release(fixture->pool, &pooled))
CALL(create_ring, pier_ring_create(fixture->pd, NULL, &fixture->ring))
CALL(destroy_ring, pier_ring_destroy(fixture->ring))
CALL(begin_fill, pier_ring_fill(fixture->ring, NULL, 0, NULL, 0, NULL))
CALL(retry_fill, pier_ring_retry(fixture->ring, 0, NULL, 0))
CALL(list_missing, pier_ring_missing(fixture->ring, 0, NULL, 0))
CALL(progress_ring, pier_ring_progress(fixture->ring))
CALL(next_slot, pier_ring_next(fixture->ring, TIME_MS, &slot))
CALL(wait_ring, pier_ring_wait(fixture->ring, TIME_MS))
CALL(wake_ring, pier_ring_wake(fixture->ring))
CALL(cancel_ring, pier_ring_cancel(fixture->ring))
CALL(release_slot, pier_ring_release(fixture->ring, &slot))

#define ENTRY(function, object)             \
	{                                   \
#function, object, function \
	}
static const struct call calls[] = {
	ENTRY(close_device, "device soft0"),
	ENTRY(query_device, "device soft0"),
	ENTRY(device_location, "device soft0"),
	ENTRY(query_port, "device soft0"),
	ENTRY(query_gid, "device soft0"),
	ENTRY(alloc_pd, "device soft0"),
	ENTRY(dealloc_pd, "protection domain on soft0"),
	ENTRY(reg_mr, "protection domain on soft0"),
	ENTRY(reg_dmabuf_mr, "protection domain on soft0"),
	ENTRY(reg_buffer_mr, "protection domain on soft0"),
	ENTRY(dereg_mr, "region of 4096 bytes (dma-buf) on soft0"),
	ENTRY(prepare_channel, "protection domain on soft0"),
	ENTRY(endpoint, "channel of queue pair"),
	ENTRY(connect_channel, "channel of queue pair"),
	ENTRY(handshake, "channel of queue pair"),
	ENTRY(start_handshake, "channel of queue pair"),
	ENTRY(step_handshake, "channel of queue pair"),
	ENTRY(destroy_channel, "channel of queue pair"),
	ENTRY(post_send, "channel of queue pair"),
	ENTRY(post_send_imm, "channel of queue pair"),
	ENTRY(post_write, "channel of queue pair"),
	ENTRY(post_write_imm, "channel of queue pair"),
	ENTRY(post_read, "channel of queue pair"),
	ENTRY(post_recv, "channel of queue pair"),
	ENTRY(send_now, "channel of queue pair"),
	ENTRY(send_imm_now, "channel of queue pair"),
	ENTRY(write_now, "channel of queue pair"),
	ENTRY(write_imm_now, "channel of queue pair"),
	ENTRY(read_now, "channel of queue pair"),
	ENTRY(recv_now, "channel of queue pair"),
	ENTRY(poll_channel, "channel of queue pair"),
	ENTRY(reset_channel, "channel of queue pair"),
	ENTRY(poll_work, "channel of queue pair"),
	ENTRY(wait_work, "channel of queue pair"),
	ENTRY(arm_channel, "channel of queue pair"),
	ENTRY(reg_sub_mr, "region of 4096 bytes"),
	ENTRY(bind_sub_mr, "channel of queue pair"),
	ENTRY(post_vec, "channel of queue pair"),
	ENTRY(run_request, "channel of queue pair"),
	ENTRY(run_vec, "channel of queue pair"),
	ENTRY(create_counter, "protection domain on soft0"),
	ENTRY(bind_counter, "counter on soft0"),
	ENTRY(bind_counter_imm, "counter on soft0"),
	ENTRY(unbind_counter, "counter on soft0"),
	ENTRY(add_counter, "counter on soft0"),
	ENTRY(wait_counter, "counter on soft0"),
	ENTRY(destroy_counter, "counter on soft0"),
	ENTRY(create_cache, "protection domain on soft0"),
	ENTRY(cache_get, "registration cache on soft0"),
	ENTRY(cache_get_buffer, "registration cache on soft0"),
	ENTRY(cache_put, "registration cache on soft0"),
	ENTRY(cache_invalidate, "registration cache on soft0"),
	ENTRY(cache_flush, "registration cache on soft0"),
	ENTRY(destroy_cache, "registration cache on soft0"),
	ENTRY(create_group, "protection domain on soft0"),
	ENTRY(group_endpoints, "group of 1, rank 0, on soft0"),
	ENTRY(connect_group, "group of 1, rank 0, on soft0"),
	ENTRY(group_handshake, "group of 1, rank 0, on soft0"),
	ENTRY(group_exchange, "group of 1, rank 0, on soft0"),
	ENTRY(group_wait, "group of 1, rank 0, on soft0"),
	ENTRY(group_barrier, "group of 1, rank 0, on soft0"),
	ENTRY(group_barrier_of, "group of 1, rank 0, on soft0"),
	ENTRY(group_channel, "channel of queue pair"),
	ENTRY(destroy_group, "group of 1, rank 0, on soft0"),
	ENTRY(reg_mr_async, "event queue of 2 threads"),
	ENTRY(wait_event, "event queue of 2 threads"),
	ENTRY(cancel, "event queue of 2 threads"),
	ENTRY(close_registration, "event queue of 2 threads"),
	ENTRY(destroy_queue, "event queue of 2 threads"),
	ENTRY(begin_a_transfer, "channel of queue pair"),
	ENTRY(progress_transfer, "transfer of 1 bytes"),
	ENTRY(wait_transfer, "transfer of 1 bytes"),
	ENTRY(cancel_transfer, "transfer of 1 bytes"),
	ENTRY(resume_transfer, "transfer of 1 bytes"),
	ENTRY(pack_transfer, "transfer of 1 bytes"),
	ENTRY(destroy_transfer, "transfer of 1 bytes"),
	ENTRY(begin_a_receiver, "channel of queue pair"),
	ENTRY(progress_receiver, "receiver of 1 bytes"),
	ENTRY(wait_receiver, "receiver of 1 bytes"),
	ENTRY(cancel_receiver, "receiver of 1 bytes"),
	ENTRY(resume_receiver, "receiver of 1 bytes"),
	ENTRY(next_receiver, "receiver of 1 bytes"),
	ENTRY(destroy_receiver, "receiver of 1 bytes"),
	ENTRY(create_cq, "protection domain on soft0"),
	ENTRY(destroy_cq, "completion queue of 1024 on soft0"),
	ENTRY(poll_cq, "completion queue of 1024 on soft0"),
	ENTRY(arm_cq, "completion queue of 1024 on soft0"),
	ENTRY(create_srq, "protection domain on soft0"),
	ENTRY(destroy_srq, "shared receive queue of 256 on soft0"),
	ENTRY(post_srq_recv, "shared receive queue of 256 on soft0"),
	ENTRY(wait_message, "channel of queue pair"),
	ENTRY(create_recv_pool, "protection domain on soft0"),
	ENTRY(destroy_recv_pool, "receive pool of 16 times 4096 bytes on soft0"),
	ENTRY(wait_pool_message, "receive pool of 16 times 4096 bytes on soft0"),
	ENTRY(release_message, "receive pool of 16 times 4096 bytes on soft0"),
	ENTRY(create_ring, "protection domain on soft0"),
	ENTRY(destroy_ring, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(begin_fill, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(retry_fill, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(list_missing, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(progress_ring, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(next_slot, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(wait_ring, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(wake_ring, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(cancel_ring, "ring of 4 times 1048576 bytes on soft0"),
	ENTRY(release_slot, "ring of 4 times 1048576 bytes on soft0"),
};

static int make_call(const struct call *call, struct fixture *fixture)
{
	struct fixture before = *fixture;
	int error;

	pier_fail(EIO, "an old sentence");
	error = call->make(fixture);
	if (error == -ECHILD && strstr(pier_error_message(), call->object) &&
	    strstr(pier_error_message(), "fork(2)") &&
	    memcmp(&before, fixture, sizeof(before)) == 0)
		return 0;
	fprintf(stderr, "%s: %d: %s\n", call->name, error, pier_error_message());
	return 1;
}

static int make_all_calls(struct fixture *fixture)
{
	struct pier_ring_status ring;
	int failures = 0;

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		failures += make_call(&calls[i], fixture);
	/* Queries work. */
	failures += pier_mr_length(fixture->mr) != LENGTH;
	failures += strcmp(pier_device_name(fixture->device), "soft0") != 0;
	failures += pier_channel_outstanding(fixture->b) != 1;
	failures += pier_cq_next_ms(fixture->cq) != -1;
	pier_ring_query(fixture->ring, &ring, sizeof(ring));
	failures += ring.free != 4 || pier_ring_uses(fixture->ring, fixture->a) != 0;
	failures += pier_device_close(NULL) != 0 || pier_mr_dereg(NULL) != 0;
	return failures;
}

static void refuses_objects_of_the_parent(void **state)
{
	struct test_census before = test_take_census();
	struct fixture fixture = made();

	(void)state;
	expect_child(make_all_calls, &fixture);
	/* The channel of the parent still works. */
	expect_ok(move_bytes(&fixture, "after the child"));
	expect_result(pier_work_poll(fixture.b, fixture.work, &result), 0);
	expect_ok(close_fixture(&fixture));
	test_assert_census(&before);
}

/* A mutex that another thread of the parent may hold is never taken. */
static void refuses_while_the_parent_holds_locks(void **state)
{
	struct fixture fixture = made();

	(void)state;
	pthread_mutex_lock(&fixture.pd->lock);
	expect_child(make_all_calls, &fixture);
	pthread_mutex_unlock(&fixture.pd->lock);
	expect_ok(close_fixture(&fixture));
}

static int use_pier_anew(struct fixture *inherited)
{
	struct fixture fixture = { 0 };
	int error = open_fixture(&fixture);

	(void)inherited;
	if (!error)
		error = connect_fixture(&fixture);
	if (!error)
		error = move_bytes(&fixture, "in the child");
	if (!error)
		error = close_fixture(&fixture);
	if (error)
		fprintf(stderr, "%d: %s\n", error, pier_error_message());
	return error;
}

static int have_a_child(struct fixture *inherited)
{
	struct fixture fixture = { 0 };
	int error = open_fixture(&fixture), status = -1;
	pid_t child;

	(void)inherited;
	if (!error)
		error = connect_fixture(&fixture);
	if (!error)
		error = post_receive(&fixture);
	if (!error)
		error = add_more(&fixture);
	if (error)
		return error;
	child = fork();
	if (child == 0)
		_exit(make_all_calls(&fixture) != 0);
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		return 1;
	return move_bytes(&fixture, "above the grandchild") || close_fixture(&fixture);
}

static void child_can_create_its_own_objects(void **state)
{
	struct test_census before = test_take_census();
	struct fixture fixture;

	(void)state;
	if (!children_have_threads) {
		print_message("skipped: the thread sanitizer starts none in a child\n");
		skip();
	}
	fixture = made();
	expect_child(use_pier_anew, &fixture);
	expect_child(have_a_child, &fixture);
	expect_ok(move_bytes(&fixture, "after both"));
	expect_ok(close_fixture(&fixture));
	test_assert_census(&before);
}

/* Of two buffers: a is private to each process, b is shared by them. */
static struct pier_buffer *private_buffer, *shared_buffer;

static int use_and_free_buffers(struct fixture *fixture)
{
	char text[8] = "";
	size_t buffers = pier_object_count(PIER_OBJECT_BUFFER);
	int error = pier_buffer_copy_from(private_buffer, 0, text, 7);

	if (error || strcmp(text, "parent") != 0)
		return 1;
	error = pier_buffer_copy_to(private_buffer, 0, "child", 6);
	if (!error)
		error = pier_buffer_copy_to(shared_buffer, 0, "child", 6);
	if (!error)
		error = pier_buffer_free(private_buffer);
	if (!error)
		error = pier_buffer_free(shared_buffer);
	/* Copy-on-write of this one would leave a region of the parent without memory. */
	if (pier_buffer_free(fixture->buffer) != -EBUSY)
		return 1;
	return error || pier_object_count(PIER_OBJECT_BUFFER) != buffers - 2;
}

static void child_can_use_and_free_buffers(void **state)
{
	struct test_census before = test_take_census();
	struct fixture fixture = made();
	char text[8] = "";

	(void)state;
	expect_ok(pier_buffer_alloc("host", 100, &private_buffer));
	expect_ok(pier_buffer_alloc("memfd", 100, &shared_buffer));
	expect_ok(pier_buffer_copy_to(private_buffer, 0, "parent", 7));
	expect_ok(pier_buffer_copy_to(shared_buffer, 0, "parent", 7));
	expect_child(use_and_free_buffers, &fixture);
	expect_ok(pier_buffer_copy_from(private_buffer, 0, text, 7));
	assert_string_equal(text, "parent");
	expect_ok(pier_buffer_copy_from(shared_buffer, 0, text, 6));
	assert_string_equal(text, "child");
	expect_ok(pier_buffer_free(private_buffer));
	expect_ok(pier_buffer_free(shared_buffer));
	expect_ok(close_fixture(&fixture));
	test_assert_census(&before);
}

/* A mutex of the process, and the data it guards: two equal numbers. */
static struct pier_fork_mutex mutex = PIER_FORK_MUTEX;
static volatile unsigned int first, second;
static atomic_bool stop;

static void *hold_again_and_again(void *argument)
{
	(void)argument;
	while (!atomic_load(&stop)) {
		pier_fork_lock(&mutex);
		first++;
		for (volatile int i = 0; i < 1000; i++)
			continue;
		second++;
		pier_fork_unlock(&mutex);
	}
	return NULL;
}

static int take_mutex(struct fixture *fixture)
{
	bool equal;

	(void)fixture;
	pier_fork_lock(&mutex);
	equal = first == second;
	pier_fork_unlock(&mutex);
	return !equal;
}

static void child_finds_mutexes_unlocked(void **state)
{
	pthread_t thread;

	(void)state;
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, hold_again_and_again, NULL), 0);
	for (int i = 0; i < 50; i++)
		expect_child(take_mutex, NULL);
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Call functions that take the mutexes of the process, until told to stop. */
static void *use_pier_again_and_again(void *argument)
{
	bool *failed = argument;

	while (!atomic_load(&stop) && !*failed)
		*failed = use_pier_anew(NULL) != 0;
	return NULL;
}

static void can_fork_while_threads_call_pier(void **state)
{
	pthread_t threads[2];
	bool failed[2] = { false, false };
	struct fixture fixture = made();

	(void)state;
	atomic_store(&stop, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL,
						use_pier_again_and_again, &failed[i]),
				 0);
	for (int i = 0; i < 20; i++) {
		expect_child(make_all_calls, &fixture);
		if (children_have_malloc)
			expect_child(use_pier_anew, &fixture);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_false(failed[i]);
	}
	expect_ok(close_fixture(&fixture));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_objects_of_the_parent),
		cmocka_unit_test(refuses_while_the_parent_holds_locks),
		cmocka_unit_test(child_can_create_its_own_objects),
		cmocka_unit_test(child_can_use_and_free_buffers),
		cmocka_unit_test(child_finds_mutexes_unlocked),
		cmocka_unit_test(can_fork_while_threads_call_pier),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
