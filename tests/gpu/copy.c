/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Between the device memory of two processes, each on a NIC: by dma-bufs where the CPU
 * can map them, and otherwise by bounce buffers. What is written, and what has come, is
 * made and judged by kernels on the device, with everything around it.
 *
 * The second process is this program once more, which CUDA wants: gpu_copy --peer FD
 * SPEC. It may use another NIC, PIER_GPU_PEER_NIC, on another host, PIER_GPU_PEER.
 */
#include "../support/cmocka.h"
#include "../support/requests.h"
#include "../support/expect.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels.h"

enum {
	BEFORE = 4096 + 61, /* bytes around the region in the buffer */
	BEHIND = 12345,
	REGION = 5 * GPU_MIB + 17, /* crosses seams of segments */
	PARTS = 8,		   /* more than a region of several segments has */
	STEPS = 3,		   /* at most this many per side */
	PART = 70001, /* a range that is synchronised and written alone, and its offset */
	PART_AT = 2 * GPU_BLOCK - BEFORE - 1000,

	/* Seeds: of the old bytes, of the two directions, and of the part. */
	OLD = 1000000007,
	THERE = 2000000011,
	BACK = 300000007,
	ALONE = 1400000023,
};

struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channel;
	struct pier_remote remote[PARTS]; /* the other side's region */
	uint32_t remote_count;
	struct pier_work steps[STEPS]; /* receives, for await() */
	int told;
};

/*
 * Compares everything around the region, and the region, of which a part may have another
 * seed.
 */
static int64_t count_wrong(const struct side *side, uint64_t seed, uint64_t part_seed)
{
	static const struct {
		size_t offset, length;
	} pieces[] = {
		{ 0, BEFORE },
		{ BEFORE, PART_AT },
		{ BEFORE + PART_AT, PART },
		{ BEFORE + PART_AT + PART, REGION - PART_AT - PART },
		{ BEFORE + REGION, BEHIND },
	};
	const uint64_t seeds[] = { OLD, seed, part_seed, seed, OLD };
	int64_t wrong = 0;

	for (int i = 0; i < 5; i++) {
		uint64_t first = 0;
		int64_t count = gpu_count_wrong(side->buffer, pieces[i].offset,
						pieces[i].length, seeds[i],
						pieces[i].offset, &first);

		if (count)
			fprintf(stderr, "%lld bytes are wrong, the first at %llu\n",
				(long long)count,
				(unsigned long long)(pieces[i].offset + first));
		if (count < 0)
			return -1;
		wrong += count;
	}
	return wrong;
}

static int fill(const struct side *side, size_t offset, size_t length, uint64_t seed)
{
	return gpu_fill(side->buffer, BEFORE + offset, length, seed, BEFORE + offset);
}

static int open_side(struct side *side, const char *spec, bool peer)
{
	if (gpu_open_device(peer, &side->device) ||
	    pier_pd_alloc(side->device, &side->pd) ||
	    pier_buffer_alloc(spec, BEFORE + REGION + BEHIND, &side->buffer) ||
	    pier_mr_reg_buffer(side->pd, side->buffer, BEFORE, REGION, PIER_ACCESS_SHARED,
			       PIER_POLICY_BOUNCE, &side->mr) ||
	    pier_channel_create(side->pd, NULL, &side->channel))
		return -1;
	for (int i = 0; i < STEPS; i++) {
		if (pier_channel_post_recv(side->channel, NULL, 0, &side->steps[i]))
			return -1;
	}
	return gpu_fill(side->buffer, 0, BEFORE + REGION + BEHIND, OLD, 0);
}

static int close_side(struct side *side)
{
	return pier_channel_destroy(side->channel) || pier_mr_dereg(side->mr) ||
	       pier_buffer_free(side->buffer) || pier_pd_dealloc(side->pd) ||
	       pier_device_close(side->device);
}

/* Has a deadline, because the other process may hang. */
static int receive(int socket, void *ret_bytes, size_t length)
{
	struct pollfd wait = { .fd = socket, .events = POLLIN };

	return poll(&wait, 1, GPU_PATIENT) == 1 && recv(socket, ret_bytes, length,
							MSG_WAITALL) == (ssize_t)length
		       ? 0
		       : -1;
}

static int send_all(int socket, const void *bytes, size_t length)
{
	return send(socket, bytes, length, MSG_NOSIGNAL) == (ssize_t)length ? 0 : -1;
}

/*
 * One side reports the end of a step, and the other waits for it. Both use messages on
 * the channel, because pier_mr_sync_for_device() is called after their completion.
 */
static int tell(struct side *side, char step)
{
	return test_channel_send_imm(side->channel, NULL, 0, (uint32_t)step, GPU_PATIENT);
}

static int await(struct side *side, char step)
{
	struct pier_result result = { 0 };

	if (side->told == STEPS ||
	    test_work_wait(side->channel, side->steps[side->told++], GPU_PATIENT,
			   &result))
		return -1;
	return result.error || result.immediate != (uint32_t)step ? -1 : 0;
}

static int meet(struct side *side, int socket)
{
	uint8_t wire[PIER_REMOTE_VEC_WIRE_SIZE(PARTS)];
	struct pier_remote mine[PARTS];
	uint32_t count, theirs;
	int size;

	if (pier_channel_handshake(side->channel, socket, socket, GPU_PATIENT) ||
	    pier_mr_remote_vec(side->mr, mine, PARTS, &count))
		return -1;
	size = pier_remote_vec_pack(mine, count, wire, sizeof(wire));
	if (size < 0 || send_all(socket, &count, sizeof(count)) ||
	    send_all(socket, wire, (size_t)size) ||
	    receive(socket, &theirs, sizeof(theirs)) || theirs == 0 || theirs > PARTS ||
	    receive(socket, wire, PIER_REMOTE_VEC_WIRE_SIZE(theirs)))
		return -1;
	return pier_remote_vec_unpack(wire, PIER_REMOTE_VEC_WIRE_SIZE(theirs),
				      side->remote, PARTS, &side->remote_count);
}

static int complain(const char *step)
{
	fprintf(stderr, "peer: %s: %s\n", step, pier_error_message());
	return 1;
}

/* The peer checks the received bytes, and then provides its own. */
static int play(struct side *side)
{
	if (await(side, 'w') || pier_mr_sync_for_device(side->mr, 0, REGION))
		return complain("the write of all");
	if (count_wrong(side, THERE, THERE))
		return complain("what was written");
	if (tell(side, 'k') || await(side, 'p') ||
	    pier_mr_sync_for_device(side->mr, PART_AT, PART))
		return complain("the write of a part");
	if (count_wrong(side, THERE, ALONE))
		return complain("what was written to a part");
	if (fill(side, 0, REGION, BACK) || pier_mr_sync_for_nic(side->mr, 0, REGION) ||
	    tell(side, 'r') || await(side, 'e'))
		return complain("the read");
	return 0;
}

static int play_peer(int socket, const char *spec)
{
	struct side side = { 0 };
	char why[160];

	gpu_open();
	gpu_load_kernels(why, sizeof(why));
	if (open_side(&side, spec, true) || meet(&side, socket))
		return complain("open");
	if (play(&side))
		return 1;
	return close_side(&side) ? complain("close") : 0;
}

/* Writes [offset, offset + length) of the region to the same offset of the peer's. */
static void write_range(struct side *side, uint64_t offset, uint64_t length)
{
	struct pier_gather elements[PARTS];
	struct pier_remote parts[PARTS];
	uint32_t element_count, count;

	expect_ok(pier_mr_sync_for_nic(side->mr, offset, length));
	expect_ok(pier_mr_gather_list(side->mr, pier_mr_iova(side->mr) + offset, length,
				      elements, PARTS, &element_count));
	expect_ok(pier_remote_vec_sub(side->remote, side->remote_count, offset, length,
				      parts, PARTS, &count));
	expect_ok(test_channel_write_vec(side->channel, elements, element_count, parts,
					 count, GPU_PATIENT));
}

static void read_all(struct side *side)
{
	struct pier_scatter elements[PARTS];
	uint32_t count;

	expect_ok(pier_mr_scatter_list(side->mr, pier_mr_iova(side->mr), REGION, elements,
				       PARTS, &count));
	expect_ok(test_channel_read_vec(side->channel, elements, count, side->remote,
					side->remote_count, GPU_PATIENT));
	expect_ok(pier_mr_sync_for_device(side->mr, 0, REGION));
}

/*
 * The same by transfers, which synchronise this end's memory themselves: chunks, several
 * in flight.
 */
static void transfer_all(struct side *side, enum pier_transfer_direction direction)
{
	struct pier_rail rail = { .channel = side->channel,
				  .mr = side->mr,
				  .parts = side->remote,
				  .count = side->remote_count };
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.direction = direction;
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = REGION;
	attr.chunk = 300000;
	expect_ok(pier_transfer_run(&attr, GPU_PATIENT));
}

struct way {
	const char *name;
	const char *vendor; /* the only one that has it, or NULL */
	const char *spec;
	bool transfer;
};

static void drive(struct side *side, const struct way *way)
{
	assert_int_equal(fill(side, 0, REGION, THERE), 0);
	if (way->transfer)
		transfer_all(side, PIER_TRANSFER_WRITE);
	else
		write_range(side, 0, REGION);
	assert_int_equal(tell(side, 'w') || await(side, 'k'), 0);
	assert_int_equal(fill(side, PART_AT, PART, ALONE), 0);
	write_range(side, PART_AT, PART);
	assert_int_equal(tell(side, 'p') || await(side, 'r'), 0);
	assert_int_equal(count_wrong(side, THERE, ALONE), 0);
	if (way->transfer)
		transfer_all(side, PIER_TRANSFER_READ);
	else
		read_all(side);
	assert_int_equal(count_wrong(side, BACK, BACK), 0);
	assert_int_equal(tell(side, 'e'), 0);
}

static pid_t start_peer(const char *spec, int *ret_socket)
{
	char number[12], name[] = "gpu_copy", option[] = "--peer", copy[64];
	char sh[] = "sh", command[] = "-c";
	/* Of sh(1), which starts it on another host: tests/carry/hosts.py. */
	char *elsewhere = getenv("PIER_GPU_PEER");
	char *argv[] = { sh, command, elsewhere, name, option, number, copy, NULL };
	int sockets[2];
	pid_t peer;

	snprintf(copy, sizeof(copy), "%s", spec);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	snprintf(number, sizeof(number), "%d", sockets[1]);
	assert_int_equal(posix_spawn(&peer, elsewhere ? "/bin/sh" : "/proc/self/exe",
				     NULL, NULL, elsewhere ? argv : argv + 3, environ),
			 0);
	close(sockets[1]);
	*ret_socket = sockets[0];
	return peer;
}

static struct {
	pid_t peer;
	int socket;
} rig = { .socket = -1 };

static void copies(void **state)
{
	const struct way *way = *state;
	struct side side = { 0 };
	int status = -1;

	rig.peer = start_peer(gpu_spec(way->spec), &rig.socket);
	if (open_side(&side, gpu_spec(way->spec), false) || meet(&side, rig.socket))
		fail_msg("open: %s", pier_error_message());
	gpu_say("%s on %s, mapping %s, %u parts%s%s",
		pier_path_name(pier_mr_path(side.mr)), pier_device_name(side.device),
		pier_mapping_name(test_mr_info(side.mr).mapping), pier_mr_parts(side.mr),
		pier_mr_reason(side.mr)[0] ? "; not better: " : "",
		pier_mr_reason(side.mr));
	drive(&side, way);
	assert_int_equal(waitpid(rig.peer, &status, 0), rig.peer);
	rig.peer = 0;
	assert_int_equal(status, 0);
	expect_ok(close_side(&side));
}

/* Ends the peer of a test that failed. */
static int end_peer(void **state)
{
	close(rig.socket);
	if (rig.peer > 0) {
		/* hosts.py then asks the other host how its process ended. */
		kill(rig.peer, getenv("PIER_GPU_PEER") ? SIGTERM : SIGKILL);
		waitpid(rig.peer, NULL, 0);
		rig.peer = 0;
	}
	return gpu_teardown(state);
}

int main(int argc, char **argv)
{
	static const struct way ways[] = {
		{ "device memory", NULL, "", false },
		{ "VMM of segments", "cuda", ":vmm:2M", false },
		{ "fine-grained memory", "hip", ":fine", false },
		{ "page-locked host memory", NULL, ":host", false },
		{ "device memory, by transfers", NULL, "", true },
		{ "VMM of segments, by transfers", "cuda", ":vmm:2M", true },
	};
	enum {
		WAYS = sizeof(ways) / sizeof(ways[0]),
	};
	struct CMUnitTest tests[WAYS];
	size_t count = 0;
	char why[160];

	if (argc == 4 && strcmp(argv[1], "--peer") == 0)
		return play_peer(atoi(argv[2]), argv[3]);
	gpu_open();
	if (gpu_load_kernels(why, sizeof(why)))
		gpu_say("made and judged by kernels on the device");
	else
		gpu_say("made and judged by copies: %s", why);
	for (int i = 0; i < WAYS; i++) {
		if (ways[i].vendor && strcmp(ways[i].vendor, gpu.vendor->name) != 0)
			continue;
		tests[count++] = (struct CMUnitTest){ ways[i].name, copies, gpu_setup,
						      end_peer, (void *)&ways[i] };
	}
	return _cmocka_run_group_tests("gpu_copy", tests, count, NULL, NULL);
}
