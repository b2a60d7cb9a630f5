/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A connected queue pair of the software NIC whose peer writes anything into the
 * memory that they share, and sends anything over the socket. It may write into the
 * region that it was given the key of, and into receives; not into a byte beside them.
 *
 * An input is a byte of flags, one that is the serial in all entries of `valid`, the
 * length of the messages (2 bytes), the messages, and the bytes of the fifo.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/provider/soft/soft_fixture.h"
#include "fuzz.h"
#include "provider/soft/link/attach.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/pass.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"

enum {
	FORMS = 4,	       /* bytes before the messages */
	LONGEST_INPUT = 65536, /* fits the socket and the FIFO, so nothing blocks */
	MAX_STEPS = 100000,
	GUARD = 4096,
	REGION = 4096,
	IOVA = 0x10000,
	RECEIVE = 256,
	LANDING = 3 * RECEIVE,
	PATTERN = 0x5a,
	/* Flags */
	WITH_FD = 1,	/* the messages carry a file as large as our region */
	FALSE_HEAD = 2, /* the FIFO's bytes begin with 8 bytes of position */
	MORE_FDS = 4,	/* the file is sent three times */
	LOOSE_FD = 8	/* a file without a final size (unsealed) */
};

/*
 * Marks in an input: replaced by the key of a region inside a file, and by that of a
 * whole file.
 */
static const uint8_t part_mark[4] = { 'r', 'k', 'e', 'y' };
static const uint8_t whole_mark[4] = { 'w', 'k', 'e', 'y' };

struct stage {
	struct soft_fixture fixture;
	struct ibv_mr *mr, *whole;
	int file, whole_file;
	int theirs, loose; /* memory of one of the peer's regions */
	uint8_t *guarded;
	struct soft_shared_memory *memory;
	int peer;
};

static int open_file(size_t size, int seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	FUZZ_CHECK(fd >= 0 && !ftruncate(fd, (off_t)size));
	FUZZ_CHECK(!fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static void open_stage(struct stage *stage)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ;
	const struct fixture_options options = { .stepped = 1 };
	struct fixture_endpoint self;

	fixture_open(&stage->fixture, &options);
	fixture_describe(&stage->fixture, &self);
	fixture_connect(&stage->fixture, &self);
	stage->file = open_file(GUARD + REGION + GUARD, SOFT_FINAL_SEALS);
	stage->whole_file = open_file(REGION, SOFT_FINAL_SEALS);
	stage->theirs = open_file(REGION, SOFT_FINAL_SEALS);
	stage->loose = open_file(REGION, F_SEAL_SHRINK);
	stage->guarded = mmap(NULL, GUARD + REGION + GUARD, PROT_READ | PROT_WRITE,
			      MAP_SHARED, stage->file, 0);
	FUZZ_CHECK(stage->guarded != MAP_FAILED);
	memset(stage->guarded, PATTERN, GUARD + REGION + GUARD);
	stage->mr = pier_soft_provider.reg_dmabuf_mr(stage->fixture.pd, GUARD, REGION,
						     IOVA, stage->file, access);
	stage->whole = pier_soft_provider.reg_dmabuf_mr(stage->fixture.pd, 0, REGION,
							IOVA, stage->whole_file, access);
	FUZZ_CHECK(stage->mr && stage->whole);
}

/* Replaces the queue pair's link to itself. Our side is that of the halves[1]. */
static void attach_peer(struct stage *stage)
{
	struct soft_context *context = soft_context(stage->fixture.context);
	struct soft_fifo *fifo;
	int fds[2];

	FUZZ_CHECK(
		!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
	stage->memory = pier_soft_create_shared_memory();
	FUZZ_CHECK(stage->memory);
	atomic_fetch_add(&stage->memory->users, 1);
	fifo = pier_soft_create_fifo(stage->memory, 0, 1);
	FUZZ_CHECK(fifo);
	pier_soft_lock(&context->engine);
	FUZZ_CHECK(!pier_soft_attach_link(&((struct soft_qp *)stage->fixture.qp)->link,
					  fds[0], fds[0], fifo, NULL));
	pier_soft_unlock(&context->engine);
	stage->peer = fds[1];
}

/* Post requests of our own, so that answers match something and keys are requested. */
static void post_requests(struct stage *stage)
{
	struct fixture_endpoint nowhere = { .rkey = 1, .address = IOVA };

	FUZZ_CHECK(!fixture_post_recv(&stage->fixture, 1, 0, RECEIVE));
	FUZZ_CHECK(!fixture_post_recv(&stage->fixture, 2, RECEIVE, RECEIVE));
	for (int i = 0; i < 2; i++)
		FUZZ_CHECK(!fixture_post(&stage->fixture, IBV_WR_RDMA_READ, 3,
					 2 * RECEIVE, RECEIVE, &nowhere, 0,
					 IBV_SEND_SIGNALED));
}

static void run(struct stage *stage)
{
	uint8_t sink[4096];

	for (int i = 0; i < MAX_STEPS; i++) {
		bool moved = pier_soft_step(soft_context(stage->fixture.context));

		while (read(stage->peer, sink, sizeof(sink)) > 0)
			moved = true;
		if (!moved)
			return;
	}
	FUZZ_CHECK(!"it comes to rest");
}

static void send_messages(struct stage *stage, uint8_t *messages, size_t length,
			  uint8_t flags)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = { 0 };
	const int fd = flags & LOOSE_FD ? stage->loose : stage->theirs;
	const int fds[3] = { fd, fd, fd };
	const size_t size = flags & MORE_FDS ? sizeof(fds) : sizeof(fd);
	struct iovec part = { .iov_base = messages, .iov_len = length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header = (struct cmsghdr *)control;

	if (flags & WITH_FD) {
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(size);
		memcpy(CMSG_DATA(header), fds, size);
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(size);
	}
	if (length > 0)
		sendmsg(stage->peer, &message, MSG_NOSIGNAL);
}

static void fill_fifo(struct stage *stage, const uint8_t *bytes, size_t length, bool at)
{
	struct soft_direction *direction = &stage->memory->layout->directions[1];
	uint64_t head = length;

	if (at && length >= sizeof(head)) {
		memcpy(&head, bytes, sizeof(head));
		bytes += sizeof(head);
		length -= sizeof(head);
	}
	memcpy((uint8_t *)stage->memory->layout + SOFT_FIFOS_OFFSET + SOFT_FIFO_SIZE,
	       bytes, length);
	atomic_store(&direction->head, head);
}

static void feed(struct stage *stage, const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size);
	size_t messages;

	FUZZ_CHECK(copy);
	memcpy(copy, data, size);
	for (size_t i = FORMS; i + sizeof(part_mark) <= size; i++) {
		if (!memcmp(copy + i, part_mark, sizeof(part_mark)))
			memcpy(copy + i, &stage->mr->rkey, sizeof(part_mark));
		else if (!memcmp(copy + i, whole_mark, sizeof(whole_mark)))
			memcpy(copy + i, &stage->whole->rkey, sizeof(whole_mark));
	}
	messages = copy[2] | (size_t)copy[3] << 8;
	if (messages > size - FORMS)
		messages = size - FORMS;
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		atomic_store(&stage->memory->layout->directions[0].valid[i], copy[1]);
	run(stage); /* the request asks for a grant */
	fill_fifo(stage, copy + FORMS + messages, size - FORMS - messages,
		  copy[0] & FALSE_HEAD);
	send_messages(stage, copy + FORMS, messages, copy[0]);
	free(copy);
	run(stage);
	/* The queue pair uses the grants that it has. */
	post_requests(stage);
	run(stage);
	close(stage->peer);
	stage->peer = open("/dev/null", O_RDONLY | O_CLOEXEC);
	run(stage);
}

static void check_guards(const struct stage *stage)
{
	for (int i = 0; i < GUARD; i++) {
		FUZZ_CHECK(stage->guarded[i] == PATTERN);
		FUZZ_CHECK(stage->guarded[GUARD + REGION + i] == PATTERN);
	}
	for (int i = LANDING; i < FIXTURE_MEMORY; i++)
		FUZZ_CHECK(!stage->fixture.memory[i]);
}

static void close_stage(struct stage *stage)
{
	FUZZ_CHECK(!pier_soft_provider.dereg_mr(stage->mr));
	FUZZ_CHECK(!pier_soft_provider.dereg_mr(stage->whole));
	fixture_close(&stage->fixture);
	pier_soft_release_shared_memory(stage->memory);
	munmap(stage->guarded, GUARD + REGION + GUARD);
	close(stage->file);
	close(stage->whole_file);
	close(stage->theirs);
	close(stage->loose);
	close(stage->peer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int before = fixture_count_fds();
	struct stage stage;

	if (size < FORMS || size > LONGEST_INPUT)
		return 0;
	open_stage(&stage);
	attach_peer(&stage);
	post_requests(&stage);
	feed(&stage, data, size);
	check_guards(&stage);
	close_stage(&stage);
	FUZZ_CHECK(fixture_count_fds() == before);
	return 0;
}
