/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "matrix.h"
#include "core/deadline.h"
#include "core/error.h"

static struct pier_channel *channel_of(const struct scene *scene)
{
	return scene->world->a.channel;
}

static int wait_work(struct scene *scene, int error, struct pier_work work)
{
	struct pier_result result;
	int returned;

	if (error)
		return error;
	returned = test_work_finish(channel_of(scene), work, scene->timeout_ms, &result);
	/* The result is the request's, unless the wait timed out or failed itself. */
	scene->cancelled = returned != result.error;
	if (scene->cancelled)
		assert_true(returned == -ETIMEDOUT || returned == -EIO);
	scene->used_up = true;
	scene->work = work;
	return returned;
}

static int poll_work(struct scene *scene, int error, struct pier_work work)
{
	int64_t deadline = pier_deadline(scene->timeout_ms);
	struct pier_result result = { 0 };
	int done = 0;

	if (error)
		return error;
	while (done == 0 && pier_now() < deadline)
		done = pier_work_poll(channel_of(scene), work, &result);
	if (done < 0)
		return done;
	scene->used_up = done;
	scene->work = work;
	return done ? result.error : -EINPROGRESS;
}

static int finish(struct scene *scene, int error, struct pier_work work)
{
	return scene->operation->traits & POLLS ? poll_work(scene, error, work)
						: wait_work(scene, error, work);
}

static int send_now(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);

	return pier_channel_send(channel_of(scene), &source, 1, scene->timeout_ms);
}

static int send_imm(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	int error = test_post_send_imm(channel_of(scene), &source, 1, NUMBER, &work);

	return wait_work(scene, error, work);
}

static int receive(struct scene *scene)
{
	struct pier_scatter receiver = scene_receiver(scene);
	struct pier_result result;

	return pier_channel_recv(channel_of(scene), &receiver, 1, scene->timeout_ms,
				 &result);
}

static int write_now(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);

	return pier_channel_write(channel_of(scene), &source, 1, &scene->target,
				  scene->timeout_ms);
}

static int write_imm(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	int error = test_post_write_imm(channel_of(scene), &source, 1, &scene->target,
					NUMBER, &work);

	return wait_work(scene, error, work);
}

static int read_now(struct scene *scene)
{
	struct pier_scatter receiver = scene_receiver(scene);

	return pier_channel_read(channel_of(scene), &receiver, 1, &scene->target,
				 scene->timeout_ms);
}

/* Two remote parts, so the write takes two requests. */
static void split_target(const struct scene *scene, struct pier_remote ret_parts[2])
{
	expect_ok(pier_remote_sub(&scene->target, 0, LENGTH / 2, &ret_parts[0]));
	expect_ok(pier_remote_sub(&scene->target, LENGTH / 2, LENGTH - LENGTH / 2,
				  &ret_parts[1]));
}

static int write_vec(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_remote parts[2];

	split_target(scene, parts);
	return test_channel_write_vec(channel_of(scene), &source, 1, parts, 2,
				      scene->timeout_ms);
}

static int read_vec(struct scene *scene)
{
	struct pier_scatter receiver = scene_receiver(scene);
	struct pier_remote parts[2];

	split_target(scene, parts);
	return test_channel_read_vec(channel_of(scene), &receiver, 1, parts, 2,
				     scene->timeout_ms);
}

static int post_send(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	int error = pier_channel_post_send(channel_of(scene), &source, 1, &work);

	return finish(scene, error, work);
}

static int post_send_imm(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	int error = test_post_send_imm(channel_of(scene), &source, 1, NUMBER, &work);

	return finish(scene, error, work);
}

static int post_recv(struct scene *scene)
{
	struct pier_scatter receiver = scene_receiver(scene);
	struct pier_work work = { 0 };
	int error = pier_channel_post_recv(channel_of(scene), &receiver, 1, &work);

	return finish(scene, error, work);
}

static int post_write(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	int error = pier_channel_post_write(channel_of(scene), &source, 1, &scene->target,
					    &work);

	return finish(scene, error, work);
}

static int post_write_imm(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	int error = test_post_write_imm(channel_of(scene), &source, 1, &scene->target,
					NUMBER, &work);

	return finish(scene, error, work);
}

static int post_read(struct scene *scene)
{
	struct pier_scatter receiver = scene_receiver(scene);
	struct pier_work work = { 0 };
	int error = pier_channel_post_read(channel_of(scene), &receiver, 1,
					   &scene->target, &work);

	return finish(scene, error, work);
}

static int post_write_vec(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_work work = { 0 };
	struct pier_remote parts[2];
	int error;

	split_target(scene, parts);
	error = test_post_write_vec(channel_of(scene), &source, 1, parts, 2, &work);
	return finish(scene, error, work);
}

static int post_read_vec(struct scene *scene)
{
	struct pier_scatter receiver = scene_receiver(scene);
	struct pier_work work = { 0 };
	struct pier_remote parts[2];
	int error;

	split_target(scene, parts);
	error = test_post_read_vec(channel_of(scene), &receiver, 1, parts, 2, &work);
	return finish(scene, error, work);
}

/* One doorbell, and one completion. */
static int post_writes(struct scene *scene)
{
	struct pier_gather source = scene_source(scene);
	struct pier_write_pair pairs[2] = { { .gather = source }, { .gather = source } };
	struct pier_remote parts[2];
	struct pier_work work = { 0 };
	int error;

	split_target(scene, parts);
	pairs[0].remote = parts[0];
	pairs[0].gather.length = LENGTH / 2;
	pairs[1].remote = parts[1];
	pairs[1].gather.addr += LENGTH / 2;
	pairs[1].gather.length -= LENGTH / 2;
	error = pier_channel_post_writes(channel_of(scene), pairs, 2, &work);
	return finish(scene, error, work);
}

/* The peer writes with immediate data. */
static int wait_for_arrivals(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	struct pier_counter *counter;
	int error;

	expect_ok(pier_counter_create(end->pd, &counter));
	expect_ok(pier_counter_bind_imm(counter, end->area.mr, end->channel, NUMBER));
	error = pier_channel_post_recv(end->channel, NULL, 0, NULL);
	if (!error)
		error = pier_counter_wait(counter, 1, scene->timeout_ms);
	if (error > 0)
		error = 0;
	assert_int_equal(pier_counter_read(counter), error == 0);
	expect_ok(pier_counter_unbind(counter, end->area.mr));
	expect_ok(pier_counter_destroy(counter));
	return error;
}

static int bind_counter(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	struct pier_counter *counter;
	int error;

	expect_ok(pier_counter_create(end->pd, &counter));
	error = pier_counter_bind(counter, end->area.mr);
	if (!error)
		expect_ok(pier_counter_unbind(counter, end->area.mr));
	expect_ok(pier_counter_destroy(counter));
	return error;
}

/*
 * Deregisters a region that was registered. After a failure the pointer must be
 * untouched.
 */
static int give_back(int error, struct pier_mr *const *mr)
{
	if (error)
		assert_null(*mr);
	else
		expect_ok(pier_mr_dereg(*mr));
	return error;
}

static int reg_mr(struct scene *scene)
{
	static uint8_t memory[LENGTH];
	struct pier_mr *mr = NULL;

	return give_back(
		pier_mr_reg(scene->world->a.pd, memory, LENGTH, PIER_ACCESS_SHARED, &mr),
		&mr);
}

static int reg_buffer_mr(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	struct pier_mr *mr = NULL;

	return give_back(pier_mr_reg_buffer(end->pd, end->area.buffer, FREE, LENGTH,
					    PIER_ACCESS_SHARED, PIER_POLICY_DIRECT, &mr),
			 &mr);
}

static int reg_dmabuf_mr(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	struct pier_dmabuf dmabuf;
	struct pier_mr *mr = NULL;
	int error;

	expect_ok(pier_dmabuf_export(end->area.buffer, FREE, LENGTH, PIER_MAPPING_AUTO,
				     &dmabuf));
	error = pier_mr_reg_dmabuf(end->pd, dmabuf.offset, LENGTH, dmabuf.iova, dmabuf.fd,
				   PIER_ACCESS_SHARED, &mr);
	pier_dmabuf_close(&dmabuf);
	return give_back(error, &mr);
}

static int reg_mr_vec(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	static uint8_t memory[LENGTH];
	struct pier_mr_range ranges[] = {
		pier_mr_range_host(memory, LENGTH),
		pier_mr_range_buffer(end->area.buffer, FREE, LENGTH),
	};
	struct pier_mr *mr = NULL;

	return give_back(test_reg_mr_vec(end->pd, ranges, 2, PIER_ACCESS_SHARED, &mr),
			 &mr);
}

static int reg_sub_mr(struct scene *scene)
{
	struct pier_mr *mr = NULL;

	return give_back(pier_mr_reg_sub(scene->world->a.area.mr, FREE, LENGTH,
					 PIER_ACCESS_REMOTE_READ, &mr),
			 &mr);
}

/* Needs a region of its own, because the area's region does not allow windows. */
static int bind_sub_mr(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	struct pier_mr *mr = NULL;

	return give_back(pier_mr_bind_sub(end->channel, end->area.mr, FREE, LENGTH,
					  PIER_ACCESS_REMOTE_READ, scene->timeout_ms,
					  &mr),
			 &mr);
}

static int reg_mr_async(struct scene *scene)
{
	static uint8_t memory[LENGTH];
	struct pier_mr_range range = pier_mr_range_host(memory, LENGTH);
	struct pier_mr_attr attr;
	struct pier_registration *registration;
	struct pier_event_queue *queue;
	struct pier_event event;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	expect_ok(pier_event_queue_create(NULL, &queue));
	expect_ok(pier_mr_reg_async(queue, scene->world->a.pd, &attr, &registration));
	expect_result(pier_event_queue_wait(queue, PATIENT, &event, sizeof(event)), 1);
	give_back(event.error, &event.mr);
	expect_ok(pier_registration_close(registration));
	expect_ok(pier_event_queue_destroy(queue));
	/* An event has its own sentence, with which the caller could fail. */
	if (event.error)
		pier_fail(-event.error, "%s", event.sentence);
	return event.error;
}

static int get_from_cache(struct scene *scene)
{
	const struct end *end = &scene->world->a;
	struct pier_mr_cache *cache;
	struct pier_mr *mr = NULL;
	int error;

	expect_ok(pier_mr_cache_create(end->pd, NULL, &cache));
	error = test_cache_get_buffer(cache, end->area.buffer, FREE, LENGTH,
				      PIER_ACCESS_SHARED, &mr);
	if (error)
		assert_null(mr);
	else
		expect_ok(pier_mr_cache_put(cache, mr));
	/* The cache does not keep a failed registration: the next get succeeds. */
	if (error)
		expect_ok(test_cache_get_buffer(cache, end->area.buffer, FREE, LENGTH,
						PIER_ACCESS_SHARED, &mr));
	if (error)
		expect_ok(pier_mr_cache_put(cache, mr));
	/* Keep the sentence of the failure. */
	expect_ok(pier_mr_cache_destroy(cache));
	return error;
}

static int prepare(struct scene *scene)
{
	struct pier_channel *channel = NULL;
	int error = pier_channel_create(scene->world->a.pd, NULL, &channel);

	if (error)
		assert_null(channel);
	else
		expect_ok(pier_channel_destroy(channel));
	return error;
}

/* Connects to an endpoint alone: its process may be gone already. */
static int connect_channel(struct scene *scene)
{
	struct pier_endpoint peer;
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX];
	ssize_t length;

	if (!scene->peer) {
		expect_ok(pier_channel_endpoint(scene->world->b.channel, &peer));
		return pier_channel_connect(channel_of(scene), &peer);
	}
	length = read(scene->stream, wire, sizeof(wire));
	assert_true(length > 0);
	expect_ok(pier_endpoint_unpack(wire, (size_t)length, &peer));
	stage_kill_peer(scene);
	return pier_channel_connect(channel_of(scene), &peer);
}

struct meeting {
	struct pier_channel *channel;
	int fd;
	int error;
};

static void *meet(void *argument)
{
	struct meeting *meeting = argument;

	meeting->error = pier_channel_handshake(meeting->channel, meeting->fd,
						meeting->fd, PATIENT);
	return NULL;
}

static int handshake(struct scene *scene)
{
	struct meeting peer = { .channel = scene->world->b.channel };
	pthread_t thread;
	int fds[2], error;

	if (scene->peer) {
		stage_kill_peer(scene);
		return pier_channel_handshake(channel_of(scene), scene->stream,
					      scene->stream, scene->timeout_ms);
	}
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	peer.fd = fds[1];
	assert_int_equal(pthread_create(&thread, NULL, meet, &peer), 0);
	error = pier_channel_handshake(channel_of(scene), fds[0], fds[0],
				       scene->timeout_ms);
	pthread_join(thread, NULL);
	close(fds[0]);
	close(fds[1]);
	/* Both ends know of the failure. */
	assert_int_equal(peer.error, error ? -ECONNREFUSED : 0);
	return error;
}

#define SENDING	   (SENDS | NEEDS_RECEIVE | INTO_PEER)
#define WRITING	   (SENDS | REMOTE | INTO_PEER)
#define ANNOUNCING (WRITING | NEEDS_RECEIVE)
#define READING	   (SENDS | REMOTE | INTO_US)
#define RECEIVING  (RECEIVES | INTO_US)

const struct operation operations[] = {
	{ "send", SENDING | WAITS, send_now },
	{ "send_imm", SENDING | WAITS, send_imm },
	{ "recv", RECEIVING | WAITS, receive },
	{ "write", WRITING | WAITS, write_now },
	{ "write_imm", ANNOUNCING | WAITS, write_imm },
	{ "read", READING | WAITS, read_now },
	{ "write_vec", WRITING | WAITS | SEVERAL, write_vec },
	{ "read_vec", READING | WAITS | SEVERAL, read_vec },
	{ "post_send + poll", SENDING | POLLS, post_send },
	{ "post_send_imm + poll", SENDING | POLLS, post_send_imm },
	{ "post_recv + poll", RECEIVING | POLLS, post_recv },
	{ "post_write + poll", WRITING | POLLS, post_write },
	{ "post_write_imm + poll", ANNOUNCING | POLLS, post_write_imm },
	{ "post_read + poll", READING | POLLS, post_read },
	{ "post_write_vec + poll", WRITING | POLLS | SEVERAL | LAST, post_write_vec },
	{ "post_read_vec + poll", READING | POLLS | SEVERAL | LAST, post_read_vec },
	{ "post_writes + poll", WRITING | POLLS | SEVERAL | LAST | ONCE, post_writes },
	{ "post_recv + wait", RECEIVING | WAITS, post_recv },
	{ "post_write + wait", WRITING | WAITS, post_write },
	{ "post_write_vec + wait", WRITING | WAITS | SEVERAL | LAST, post_write_vec },
	{ "wait_counter by immediates", INTO_US | WATCHES, wait_for_arrivals },
	{ "bind_counter", BINDS_COUNTER, bind_counter },
	{ "reg_mr", REGISTERS, reg_mr },
	{ "reg_buffer_mr", REGISTERS, reg_buffer_mr },
	{ "reg_dmabuf_mr", REGISTERS, reg_dmabuf_mr },
	{ "reg_mr_vec", REGISTERS, reg_mr_vec },
	{ "reg_sub_mr", REGISTERS, reg_sub_mr },
	{ "bind_sub_mr", REGISTERS, bind_sub_mr },
	{ "reg_mr_async", REGISTERS, reg_mr_async },
	{ "mr_cache_get", REGISTERS, get_from_cache },
	{ "prepare_channel", PREPARES, prepare },
	{ "connect_channel", CONNECTS, connect_channel },
	{ "handshake", CONNECTS | WAITS, handshake },
};
const size_t operation_count = sizeof(operations) / sizeof(operations[0]);
