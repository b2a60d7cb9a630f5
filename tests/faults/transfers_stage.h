/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_TRANSFERS_STAGE_H
#define TESTS_FAULTS_TRANSFERS_STAGE_H

#include "tests/unit/transfer/bounce_fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pier/verbs.h>

#include "transfers.h"

/* Both ends of a case and their faults. Only transfers_play.c includes this file. */

enum {
	FORGED = 0x01010100, /* added to a key to get that of no region */
	MANY_RECEIVES = 64,  /* more than the chunks of all rounds */
	SALT_HERE = 0xaaaa,
	SALT_THERE = 0xbbbb0000,
};

static struct {
	const struct kind *kind;
	const struct transfer_fault *fault;
	struct test_random seed;
	pid_t peer;	     /* the end's process; 0: this one */
	int stream;	     /* to that process, or -1 */
	bool hit, hit_there; /* the failure after HIT chunks has happened */
	bool remade;	     /* the channels were made anew after that */
	sem_t gate;	     /* posted when HIT chunks have arrived at the receiver */
	struct pier_remote parts[2];
	uint32_t forged_lkey, forged_rkey;
	int error, receiver_error;
	int broken; /* result of the other request at the receiver */
	char sentence[1024], receiver_sentence[1024];
} stage = { .stream = -1 };

static bool is(unsigned int traits)
{
	return stage.kind->traits & traits;
}

static bool by(unsigned int means)
{
	return stage.fault->means & means;
}

static void kill_peer(void)
{
	kill(stage.peer, SIGKILL);
	while (waitpid(stage.peer, NULL, 0) < 0 && errno == EINTR)
		continue;
	stage.peer = 0;
}

/* Both processes know the bytes of both ends. */
static void fill(struct side *side, uint64_t salt)
{
	struct test_random random = { stage.seed.state ^ salt };

	for (size_t i = 0; i < AREA; i++)
		side->image[i] = (uint8_t)(test_random_next(&random) >> 24);
	if (side->buffer)
		expect_ok(pier_buffer_copy_to(side->buffer, 0, side->image, AREA));
}

static void open_end(struct side *side, const char *plan, bool bounced, uint64_t salt)
{
	char device[96];

	snprintf(device, sizeof(device), "fault:%s:soft0", plan);
	open_side(side, *plan ? device : "soft0");
	fill(side, salt);
	reg(side, 0, bounced);
}

static void open_here(void)
{
	open_end(&fixture.here, stage.fault->here, is(BOUNCED_HERE), SALT_HERE);
}

static void open_there(void)
{
	open_end(&fixture.there, stage.fault->there, is(BOUNCED_THERE), SALT_THERE);
}

/* The expected bytes of an end in another process. */
static void imagine(struct side *side, uint64_t salt)
{
	side->image = malloc(AREA);
	fill(side, salt);
}

/* Two parts, the second of which may have a wrong key. */
static void name_parts(const struct pier_remote *whole)
{
	expect_ok(pier_remote_sub(whole, GUARD, PARTED * CHUNK, &stage.parts[0]));
	expect_ok(pier_remote_sub(whole, GUARD + PARTED * CHUNK, LENGTH - PARTED * CHUNK,
				  &stage.parts[1]));
	stage.forged_rkey = by(FORGE_RKEY) ? FORGED : 0;
	stage.parts[1].rkey += stage.forged_rkey;
	fixture.rails[0] = (struct pier_rail){ .channel = fixture.here.channels[0],
					       .mr = fixture.here.mrs[0],
					       .parts = stage.parts,
					       .count = 2 };
	fixture.rails[0].offset = GUARD;
}

static void name_receiver(void)
{
	fixture.receiver_rails[0] =
		(struct pier_receiver_rail){ .channel = fixture.there.channels[0],
					     .mr = fixture.there.mrs[0],
					     .offset = GUARD };
}

static struct pier_channel_attr attr_here(void)
{
	struct pier_channel_attr attr = fixture.attr;

	if (by(GIVES_UP_RNR))
		attr.rnr_retry_count = 1;
	return attr;
}

static struct pier_channel_attr attr_there(void)
{
	struct pier_channel_attr attr = fixture.attr;

	if (by(FEW_RECEIVES))
		attr.max_recv_wr = RECEIVES;
	return attr;
}

static void begin_receiver(void)
{
	struct pier_receiver_attr attr;

	pier_receiver_attr_init(&attr);
	attr.rails = fixture.receiver_rails;
	attr.rail_count = 1;
	attr.length = LENGTH;
	if (by(STALLS_THERE))
		attr.stall_ms = STALL_MS;
	expect_ok(pier_receiver_create(&attr, &fixture.receiver));
}

static struct pier_receiver_status landed(void)
{
	struct pier_receiver_status now;

	pier_receiver_query(fixture.receiver, &now, sizeof(now));
	return now;
}

static struct pier_rail_status receiver_rail(void)
{
	struct pier_rail_status now;

	expect_ok(pier_receiver_query_rail(fixture.receiver, 0, &now, sizeof(now)));
	return now;
}

/* A write that the other end refuses. */
static int post_forged(struct pier_channel *channel, struct pier_mr *mr,
		       struct pier_work *ret_work)
{
	struct pier_remote target = { .addr = 0x1000, .length = 1, .rkey = FORGED };
	struct pier_gather source;

	return pier_mr_gather(mr, pier_mr_iova(mr), 1, &source) ||
	       pier_channel_post_write(channel, &source, 1, &target, ret_work);
}

static int wait_for_gate(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENT / 1000;
	return sem_timedwait(&stage.gate, &until);
}

/* The transfer's callback. 0 continues. */
static int hit(void *context, uint64_t done, uint64_t length)
{
	uint8_t byte;

	(void)context;
	(void)length;
	if (done < HIT * CHUNK || stage.hit)
		return 0;
	stage.hit = true;
	if (by(BREAK_HERE))
		return post_forged(fixture.here.channels[0], fixture.here.mrs[0], NULL);
	if (by(BREAK_THERE) && is(LANDS))
		return wait_for_gate();
	if (by(KILL_THERE))
		kill_peer();
	if (by(KILL_HERE))
		while (read(stage.stream, &byte, 1) > 0)
			continue;
	return 0;
}

static void begin_transfer(void)
{
	struct pier_transfer_attr attr = attr_of(1, LENGTH);

	if (is(READS))
		attr.direction = PIER_TRANSFER_READ;
	if (is(LANDS))
		attr.flags = PIER_TRANSFER_ANNOUNCE;
	if (by(STALLS_HERE))
		attr.stall_ms = STALL_MS;
	attr.window = 4;
	attr.progress = hit;
	begin(&attr);
}

/* Connects to a sender in another process. */
static void meet_sender(void)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_channel_attr attr = attr_there();
	struct pier_remote remote;

	open_there();
	expect_ok(
		pier_channel_create(fixture.there.pd, &attr, &fixture.there.channels[0]));
	name_receiver();
	if (is(LANDS))
		begin_receiver();
	expect_ok(pier_channel_handshake(fixture.there.channels[0], stage.stream,
					 stage.stream, PATIENT));
	expect_ok(pier_mr_remote(fixture.there.mrs[0], &remote));
	pier_remote_pack(&remote, wire);
	assert_int_equal(write(stage.stream, wire, sizeof(wire)), sizeof(wire));
}

static void meet_receiver(void)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_channel_attr attr = attr_here();
	struct pier_remote remote;

	expect_ok(pier_channel_create(fixture.here.pd, &attr, &fixture.here.channels[0]));
	expect_ok(pier_channel_handshake(fixture.here.channels[0], stage.stream,
					 stage.stream, PATIENT));
	assert_int_equal(recv(stage.stream, wire, sizeof(wire), MSG_WAITALL),
			 sizeof(wire));
	expect_ok(pier_remote_unpack(wire, sizeof(wire), &remote));
	name_parts(&remote);
}

/* The other process: runs until it is killed or its parent is gone. */
static void play_peer(void)
{
	uint8_t byte;

	if (by(KILL_HERE)) {
		open_here();
		meet_receiver();
		begin_transfer();
		pier_transfer_wait(fixture.transfer, PATIENT);
	} else {
		meet_sender();
		if (is(LANDS))
			pier_receiver_wait(fixture.receiver, PATIENT);
	}
	while (read(stage.stream, &byte, 1) > 0)
		continue;
}

/* Must be called before anything is opened here. A failed assertion aborts the child. */
static void start_peer(void)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	stage.peer = fork();
	assert_true(stage.peer >= 0);
	stage.stream = fds[stage.peer == 0];
	close(fds[stage.peer != 0]);
	if (stage.peer)
		return;
	setenv("CMOCKA_TEST_ABORT", "1", 1);
	play_peer();
	_exit(0);
}

static void connect_ends(void)
{
	struct pier_endpoint here, there;

	expect_ok(pier_channel_endpoint(fixture.here.channels[0], &here));
	expect_ok(pier_channel_endpoint(fixture.there.channels[0], &there));
	expect_ok(pier_channel_connect(fixture.here.channels[0], &there));
	expect_ok(pier_channel_connect(fixture.there.channels[0], &here));
}

static void make_channels(void)
{
	struct pier_channel_attr here = attr_here(), there = attr_there();

	expect_ok(pier_channel_create(fixture.here.pd, &here, &fixture.here.channels[0]));
	expect_ok(pier_channel_create(fixture.there.pd, &there,
				      &fixture.there.channels[0]));
	connect_ends();
	name_receiver();
}

static void name_ends(void)
{
	struct pier_remote whole;

	expect_ok(pier_mr_remote(fixture.there.mrs[0], &whole));
	name_parts(&whole);
}

static void begin_both(void)
{
	if (is(LANDS))
		begin_receiver();
	begin_transfer();
}

/* Forges the key of this end's elements. */
static void forge_lkey(void)
{
	stage.forged_lkey = by(FORGE_LKEY) ? FORGED : 0;
	pier_mr_verbs(fixture.here.mrs[0])->lkey += stage.forged_lkey;
}

static void lose_devices(void)
{
	fixture.gpu->copies_to = fixture.gpu->copies_from = 0;
	if (by(LOSE_DEVICE_HERE) && is(READS))
		fixture.gpu->lost_at_to = STRUCK;
	else if (by(LOSE_DEVICE_HERE))
		fixture.gpu->lost_at_from = STRUCK;
	if (by(LOSE_DEVICE_THERE))
		fixture.gpu->lost_at_to = STRUCK;
	if (by(NO_FLUSH_THERE))
		fixture.gpu->flush_error = EOPNOTSUPP;
}

static void open_stage(void)
{
	if (by(KILL_THERE | KILL_HERE))
		start_peer();
	if (by(KILL_HERE)) {
		imagine(&fixture.here, SALT_HERE);
		meet_sender();
		return;
	}
	open_here();
	if (by(KILL_THERE)) {
		imagine(&fixture.there, SALT_THERE);
		meet_receiver();
		begin_transfer();
		return;
	}
	open_there();
	make_channels();
	name_ends();
	forge_lkey();
	lose_devices();
	begin_both();
}

#endif
