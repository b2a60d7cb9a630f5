/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "matrix.h"

enum {
	FORGED = 0x01010100, /* added to a key to get that of no region */
};

static bool is(const struct scene *scene, unsigned int traits)
{
	return scene->operation->traits & traits;
}

static bool by(const struct scene *scene, unsigned int means)
{
	return scene->fault->means & means;
}

struct pier_gather scene_source(const struct scene *scene)
{
	struct pier_gather source = gather_at(&scene->world->a.area, SOURCE, LENGTH);

	if (by(scene, FORGE_LKEY))
		source.lkey += FORGED;
	return source;
}

struct pier_scatter scene_receiver(const struct scene *scene)
{
	struct pier_scatter receiver = scatter_at(&scene->world->a.area, RECEIVER,
						  LENGTH);

	if (by(scene, FORGE_LKEY))
		receiver.lkey += FORGED;
	return receiver;
}

/*
 * Prepares the end where the fault happens, or the patient other one. The bystander in
 * the send queue waits for a receive without limit.
 */
static int prepare_end(const struct scene *scene, struct end *end, bool patient)
{
	struct pier_channel_attr attr = test_attr();

	attr.rnr_retry_count = patient || is(scene, RECEIVES) ? 7 : 1;
	attr.min_rnr_timer = 1;
	return end_prepare(end, &attr);
}

/* The other process: runs until it is killed or its parent is gone. */
static int play_victim(const struct scene *scene, int stream)
{
	uint8_t wire[PIER_ENDPOINT_WIRE_MAX + PIER_REMOTE_WIRE_SIZE];
	struct end end = { 0 };
	struct pier_endpoint endpoint;
	struct pier_remote remote;
	int length = PIER_REMOTE_WIRE_SIZE;

	if (end_open(&end, test_peer_device) || prepare_end(scene, &end, true))
		return 1;
	if (!is(scene, CONNECTS)) {
		if (pier_channel_handshake(end.channel, stream, stream, PATIENT) ||
		    pier_mr_remote(end.area.mr, &remote))
			return 1;
		pier_remote_pack(&remote, wire);
	} else if (!is(scene, WAITS)) {
		if (pier_channel_endpoint(end.channel, &endpoint))
			return 1;
		length = pier_endpoint_pack(&endpoint, wire, sizeof(wire));
	}
	if (length < 0 || (!(is(scene, CONNECTS) && is(scene, WAITS)) &&
			   write(stream, wire, (size_t)length) != length))
		return 1;
	while (read(stream, wire, 1) > 0)
		continue;
	return 0;
}

/* Must be called before anything is opened in this process. */
static void start_victim(struct scene *scene)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	scene->peer = fork();
	assert_true(scene->peer >= 0);
	if (scene->peer == 0) {
		close(fds[0]);
		_exit(play_victim(scene, fds[1]));
	}
	close(fds[1]);
	scene->stream = fds[0];
}

void stage_kill_peer(struct scene *scene)
{
	int status;

	assert_int_equal(kill(scene->peer, SIGKILL), 0);
	assert_int_equal(waitpid(scene->peer, &status, 0), scene->peer);
	assert_true(WIFSIGNALED(status));
}

static struct pier_remote meet_victim(struct scene *scene)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;

	expect_ok(pier_channel_handshake(scene->world->a.channel, scene->stream,
					 scene->stream, PATIENT));
	assert_int_equal(recv(scene->stream, wire, sizeof(wire), MSG_WAITALL),
			 sizeof(wire));
	expect_ok(pier_remote_unpack(wire, sizeof(wire), &remote));
	return remote;
}

static void open_ends(struct scene *scene)
{
	struct world *world = scene->world;

	expect_ok(end_open(&world->a, test_device));
	expect_ok(prepare_end(scene, &world->a, false));
	area_shuffle(world, &world->a.area);
	if (scene->peer)
		return;
	expect_ok(end_open(&world->b, test_peer_device));
	expect_ok(prepare_end(scene, &world->b, true));
	area_shuffle(world, &world->b.area);
}

/* The remote region: the target or the source of the bytes. */
static void choose_target(struct scene *scene, const struct pier_remote *whole)
{
	expect_ok(pier_remote_sub(whole, is(scene, INTO_US) ? SOURCE : RECEIVER, LENGTH,
				  &scene->target));
	if (by(scene, FORGE_RKEY))
		scene->target.rkey += FORGED;
}

static void connect_ends(struct scene *scene)
{
	struct pier_remote whole;

	if (scene->peer) {
		whole = meet_victim(scene);
	} else {
		expect_ok(pier_mr_remote(scene->world->b.area.mr, &whole));
		expect_ok(ends_connect(&scene->world->a, &scene->world->b));
	}
	choose_target(scene, &whole);
}

/* Posts to the queue that the operation does not use. */
static void post_bystander(struct scene *scene)
{
	struct pier_channel *channel = scene->world->a.channel;

	if (by(scene, is(scene, RECEIVES) ? HITS_SENDS | BREAK_BEFORE : HITS_RECEIVES) ||
	    !is(scene, POSTS))
		return;
	if (is(scene, RECEIVES))
		expect_ok(pier_channel_post_send(channel, NULL, 0, &scene->bystander));
	else
		expect_ok(pier_channel_post_recv(channel, NULL, 0, &scene->bystander));
	scene->has_bystander = true;
}

/* When the event is there, so is the completion, which has not been polled yet. */
static void break_channel(struct scene *scene)
{
	const struct area *area = &scene->world->a.area;
	struct pier_channel *channel = scene->world->a.channel;
	struct pollfd fd = { .fd = pier_channel_fd(channel), .events = POLLIN };
	struct pier_gather source = gather_at(area, FREE, 1);
	struct pier_remote target = scene->target;

	target.rkey += FORGED;
	expect_ok(pier_channel_arm(channel));
	expect_ok(pier_channel_post_write(channel, &source, 1, &target, NULL));
	assert_int_equal(poll(&fd, 1, PATIENT), 1);
}

static void play_peer(struct scene *scene)
{
	const struct world *world = scene->world;
	struct pier_channel *channel = world->b.channel;
	struct pier_gather source = gather_at(&world->b.area, SOURCE, LENGTH);
	struct pier_scatter receiver = scatter_at(&world->b.area, RECEIVER, LENGTH);
	struct pier_remote target = remote_at(&world->a.area, RECEIVER, LENGTH);

	if (is(scene, NEEDS_RECEIVE) && !by(scene, NO_RECEIVE))
		expect_ok(pier_channel_post_recv(channel, &receiver, 1, NULL));
	if (is(scene, RECEIVES))
		expect_ok(pier_channel_post_send(channel, &source, 1, NULL));
	if (is(scene, WATCHES))
		expect_ok(
			test_post_write_imm(channel, &source, 1, &target, NUMBER, NULL));
}

void stage_open(struct scene *scene, void **state)
{
	scene->world = world_empty(state);
	scene->timeout_ms = by(scene, IMPATIENT) ? IMPATIENT_MS : PATIENT;
	if (by(scene, KILL_PEER))
		start_victim(scene);
	open_ends(scene);
	if (is(scene, CONNECTS))
		return;
	connect_ends(scene);
	post_bystander(scene);
	if (by(scene, BREAK_BEFORE))
		break_channel(scene);
	if (scene->peer)
		stage_kill_peer(scene);
	else
		play_peer(scene);
}

/* Later calls return the first cause, and everything is flushed. */
static void expect_broken(struct scene *scene, const char *cause)
{
	struct pier_channel *channel = scene->world->a.channel;
	struct pier_result result;

	if (scene->cancelled)
		cause = "the channel was cancelled";
	if (scene->has_bystander) {
		int error = test_work_finish(channel, scene->bystander, PATIENT, &result);

		assert_int_equal(error, result.error);
		/*
		 * A bystander in the send queue is the request that detected the dead
		 * peer.
		 */
		if (!scene->peer || !is(scene, RECEIVES))
			assert_int_equal(error, -ECANCELED);
		assert_true(error < 0);
	}
	expect_result(pier_channel_post_recv(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence(cause);
	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -EPIPE);
	test_assert_sentence(cause);
	/*
	 * Requests without a handle end as well, as soon as the device has flushed them.
	 */
	while (pier_channel_outstanding(channel) > 0)
		assert_true(pier_channel_poll(channel) >= 0);
}

static void expect_deaf(struct scene *scene, const char *cause)
{
	struct pier_channel *channel = scene->world->a.channel;
	struct pier_result result;
	struct pier_work work = scene->bystander;

	if (!scene->has_bystander)
		expect_ok(pier_channel_post_recv(channel, NULL, 0, &work));
	expect_result(test_work_finish(channel, work, PATIENT, &result), -EIO);
	assert_int_equal(result.error, -ECANCELED);
	scene->has_bystander = false;
	scene->cancelled = true;
	expect_broken(scene, cause);
}

/* True if the send queue is empty and no fault is pending. */
static bool can_move_bytes(const struct scene *scene)
{
	if (scene->peer || is(scene, RECEIVES) || by(scene, LOSES_ALL | HITS_SECOND_SEND))
		return false;
	if (by(scene, HITS_COMPLETIONS | BREAK_BEFORE) && !is(scene, POSTS | WATCHES))
		return false;
	return !by(scene, HITS_SENDS) || is(scene, SENDS);
}

/* Polls, because a plan may refuse the second event. */
static void move_bytes(struct scene *scene)
{
	struct world *world = scene->world;
	struct pier_gather source = gather_at(&world->a.area, SOURCE, LENGTH);
	struct pier_remote target = remote_at(&world->b.area, FREE, LENGTH);
	struct pier_result result;
	struct pier_work work;
	int done = 0;

	expect_ok(pier_channel_post_write(world->a.channel, &source, 1, &target, &work));
	while (done == 0)
		done = pier_work_poll(world->a.channel, work, &result);
	expect_result(done, 1);
	assert_int_equal(result.error, 0);
	image_copy(&world->b.area, FREE, &world->a.area, SOURCE, LENGTH);
}

static void expect_works(struct scene *scene)
{
	struct pier_channel *channel = scene->world->a.channel;
	struct pier_result result;

	if (scene->has_bystander)
		expect_result(pier_work_poll(channel, scene->bystander, &result), 0);
	if (can_move_bytes(scene))
		move_bytes(scene);
	if (!by(scene, HITS_RECEIVES) || is(scene, RECEIVES | WATCHES))
		expect_ok(pier_channel_post_recv(channel, NULL, 0, NULL));
}

static void expect_useless(const struct scene *scene)
{
	struct pier_channel *channel = scene->world->a.channel;
	const struct pier_endpoint nobody = { 0 };

	expect_result(pier_channel_post_send(channel, NULL, 0, NULL), -ENOTCONN);
	expect_result(pier_channel_post_recv(channel, NULL, 0, NULL), -ENOTCONN);
	expect_result(pier_channel_connect(channel, &nobody), -EISCONN);
}

static void expect_aftermath(struct scene *scene, const struct outcome *outcome)
{
	if (outcome->aftermath == BROKEN)
		expect_broken(scene, outcome->sentence);
	else if (outcome->aftermath == DEAF)
		expect_deaf(scene, outcome->sentence);
	else if (outcome->aftermath == USELESS)
		expect_useless(scene);
	else if (!is(scene, CONNECTS))
		expect_works(scene);
}

/*
 * The target range has the old or the new bytes, and only the new ones after success. All
 * other bytes are unchanged.
 */
static void expect_landed(const struct scene *scene, bool all)
{
	struct world *world = scene->world;
	struct area *to = is(scene, INTO_PEER) ? &world->b.area : &world->a.area;
	const struct area *from = is(scene, INTO_PEER) ? &world->a.area : &world->b.area;
	uint8_t now[LENGTH];

	expect_ok(pier_buffer_copy_from(to->buffer, RECEIVER, now, LENGTH));
	for (size_t i = 0; i < LENGTH; i++) {
		uint8_t new = from->image[SOURCE + i];

		if (now[i] != new && (all || now[i] != to->image[RECEIVER + i]))
			fail_msg("byte %zu is neither old nor new", i);
	}
	memcpy(to->image + RECEIVER, now, LENGTH);
}

void stage_expect(struct scene *scene, const struct outcome *outcome, int error)
{
	struct world *world = scene->world;

	struct pier_result result;

	if (error || !outcome->error)
		expect_aftermath(scene, outcome);
	if (scene->used_up)
		expect_result(pier_work_poll(world->a.channel, scene->work, &result),
			      -ESTALE);
	/* No byte moves after this. */
	expect_ok(pier_channel_destroy(world->a.channel));
	world->a.channel = NULL;
	if (scene->peer) {
		close(scene->stream);
		area_expect(&world->a.area);
		return;
	}
	expect_ok(pier_channel_destroy(world->b.channel));
	world->b.channel = NULL;
	if (is(scene, INTO_PEER | INTO_US))
		expect_landed(scene, outcome->error == 0);
	world_expect(world);
}
