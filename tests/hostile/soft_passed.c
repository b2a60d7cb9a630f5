/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/auth.h"
#include "provider/soft/link/grant.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/soft.h"

/* Fds that block the process to which a peer passes them, or are never used. */

enum {
	LINGER_SECONDS = 20,
	/* Long for one system call, short beside what blocks. */
	LIMIT_MS = 5000
};

struct fuse_request {
	struct fuse_in_header header;
	char rest[1 << 17];
};

static void reply(int device, const struct fuse_in_header *request, int error,
		  const void *body, size_t length)
{
	struct {
		struct fuse_out_header header;
		char body[256];
	} answer = { .header = {
			     .len = (uint32_t)(sizeof(answer.header) + length),
			     .error = error,
			     .unique = request->unique,
		     } };

	memcpy(answer.body, body, length);
	if (write(device, &answer, answer.header.len) < 0)
		_exit(1);
}

/* One file, of which it answers everything but STATFS and FLUSH. */
static void answer_fuse(int device, const struct fuse_in_header *request)
{
	const struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 4096 };
	const struct fuse_attr attr = {
		.ino = request->nodeid,
		.mode = (request->nodeid == 1 ? S_IFDIR : S_IFREG) | 0777,
		.nlink = 1,
	};
	const struct fuse_attr_out attr_out = { .attr_valid = 1000, .attr = attr };
	const struct fuse_open_out open_out = { 0 };
	struct fuse_entry_out entry = { .nodeid = 2, .entry_valid = 1000, .attr = attr };

	entry.attr.ino = 2;
	entry.attr.mode = S_IFREG | 0777;
	if (request->opcode == FUSE_INIT)
		reply(device, request, 0, &init, sizeof(init));
	else if (request->opcode == FUSE_LOOKUP)
		reply(device, request, 0, &entry, sizeof(entry));
	else if (request->opcode == FUSE_GETATTR)
		reply(device, request, 0, &attr_out, sizeof(attr_out));
	else if (request->opcode == FUSE_OPEN)
		reply(device, request, 0, &open_out, sizeof(open_out));
	else if (request->opcode != FUSE_STATFS && request->opcode != FUSE_FLUSH)
		reply(device, request, -ENOSYS, "", 0);
}

static void fuse_body(int device)
{
	static struct fuse_request request;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(device, &request, sizeof(request)) > 0)
		answer_fuse(device, &request.header);
	_exit(0);
}

/* In a child with mounts of its own. Sends the file, then serves it without end. */
static void fuse_file_body(int socket)
{
	int device = open("/dev/fuse", O_RDWR | O_CLOEXEC), fd;
	char options[96];
	pid_t server;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0",
		 device);
	if (device < 0 || unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("hostile", "/tmp", "fuse", 0, options) < 0)
		_exit(1);
	server = fork();
	if (server == 0)
		fuse_body(device);
	/* So the file system ends with its server, and whoever waits for it goes on. */
	close(device);
	fd = open("/tmp/file", O_RDWR | O_CLOEXEC);
	if (fd < 0 || peer_send(socket, &server, sizeof(server), fd, 1) < 0)
		_exit(1);
	for (;;)
		pause();
}

/* In a child that may hang; it leaves when the FUSE server is gone. */
static bool is_refused_within(int fd, int limit_ms, pid_t *ret_child)
{
	struct pollfd waited = { .events = POLLIN };
	int ends[2];
	char fixed = 1;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	*ret_child = fork();
	assert_true(*ret_child >= 0);
	if (*ret_child == 0) {
		fixed = pier_soft_is_fixed(fd);
		fixture_write_all(ends[1], &fixed, 1);
		_exit(0);
	}
	waited.fd = ends[0];
	if (poll(&waited, 1, limit_ms) == 1)
		fixture_read_all(ends[0], &fixed, 1);
	close(ends[0]);
	close(ends[1]);
	return !fixed;
}

/* Shared memory and grants both check a peer's fd with pier_soft_is_fixed() first. */
static void file_of_a_silent_fuse_server_is_refused_at_once(void **state)
{
	int sockets[2], fd = -1;
	pid_t child, server, victim;
	bool refused;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		fuse_file_body(sockets[1]);
	close(sockets[1]);
	if (peer_receive(sockets[0], &server, sizeof(server), &fd) <= 0) {
		assert_int_equal(waitpid(child, NULL, 0), child);
		close(sockets[0]);
		puts("skip: FUSE cannot be mounted here");
		skip();
	}
	refused = is_refused_within(fd, LIMIT_MS, &victim);
	kill(server, SIGKILL);
	assert_int_equal(waitpid(victim, NULL, 0), victim);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(fd);
	close(sockets[0]);
	assert_true(refused);
}

/* A TCP socket with unsent bytes, which takes LINGER_SECONDS to close. */
static int make_lingering_socket(int *ret_listener)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = LINGER_SECONDS };
	struct sockaddr_in name = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(name);
	char bytes[65536] = { 0 };

	*ret_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(*ret_listener, (struct sockaddr *)&name, size), 0);
	assert_int_equal(listen(*ret_listener, 1), 0);
	assert_int_equal(getsockname(*ret_listener, (struct sockaddr *)&name, &size), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&name, size), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)),
			 0);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	return fd;
}

static const struct fixture_options stepped = { .stepped = 1 };

/* Steps the victim, in whose hands the last copy of the socket is. */
static void expect_quick_steps(struct soft_fixture *fixture)
{
	uint64_t start = fixture_milliseconds();

	for (int i = 0; i < 20; i++)
		fixture_step(fixture, NULL);
	assert_in_range(fixture_milliseconds() - start, 0, LIMIT_MS);
}

/* A process of our own user that knows no secret. */
static void lingering_socket_with_a_false_proof(void **state)
{
	uint8_t transcript[SOFT_MAC_SIZE];
	const uint8_t junk[SOFT_PROOF_SIZE] = { 0 };
	int door, sent, listener, before;
	struct fake fake;
	uint64_t start;
	struct soft_fixture fixture;

	(void)state;
	fixture_open(&fixture, NULL);
	fake_make(&fake, &fixture);
	before = fixture_count_fds();
	door = fake_dial(&fixture);
	fake_say_hello(&fake, door, transcript);
	sent = make_lingering_socket(&listener);
	pier_soft_lock(&soft_context(fixture.context)->engine);
	assert_int_equal(peer_send(door, junk, sizeof(junk), sent, 1), sizeof(junk));
	close(sent); /* not the last copy any more: one is on its way */
	pier_soft_unlock(&soft_context(fixture.context)->engine);
	assert_true(fake_hangs_up(door));
	/* It hangs up before it closes the fd, with the engine locked until then. */
	start = fixture_milliseconds();
	pier_soft_lock(&soft_context(fixture.context)->engine);
	assert_in_range(fixture_milliseconds() - start, 0, LIMIT_MS);
	assert_int_equal(fixture_count_fds(), before + 2);
	pier_soft_unlock(&soft_context(fixture.context)->engine);
	close(door);
	close(listener);
	fixture_close(&fixture);
}

/* A peer that knows the secret, with messages and a grant that was not requested. */
static void lingering_socket_with_messages(void **state)
{
	const uint8_t wake[] = { 1 }, grant[40] = { 5, 1 };
	const struct {
		const uint8_t *bytes;
		size_t length;
	} messages[] = { { wake, 1 }, { grant, sizeof(grant) }, { grant, 2 } };

	(void)state;
	for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
		struct soft_fixture victim, peer;
		int sent, listener;
		uint64_t start;

		fixture_open_pair(&victim, &peer, &stepped);
		sent = make_lingering_socket(&listener);
		assert_int_equal(peer_send(peer_qp(&peer)->link.tx_fd, messages[i].bytes,
					   messages[i].length, sent, 1),
				 messages[i].length);
		close(sent);
		expect_quick_steps(&victim);
		start = fixture_milliseconds();
		fixture_close(&victim);
		assert_in_range(fixture_milliseconds() - start, 0, LIMIT_MS);
		fixture_close(&peer);
		close(listener);
	}
}

/* An incomplete grant, with more fds than it may have. */
static void grant_with_too_many_fds_ends_the_link(void **state)
{
	const uint8_t grant[] = { 5, 1 };
	struct soft_fixture victim, peer;
	int before;

	(void)state;
	fixture_open_pair(&victim, &peer, &stepped);
	expect_quick_steps(&victim);
	before = fixture_count_fds();
	assert_int_equal(peer_send(peer_qp(&peer)->link.tx_fd, grant, sizeof(grant),
				   STDIN_FILENO, SOFT_GRANT_SEGMENTS),
			 sizeof(grant));
	expect_quick_steps(&victim);
	assert_false(pier_soft_link_open(&peer_qp(&victim)->link));
	assert_in_range(fixture_count_fds(), 0, before);
	fixture_close(&victim);
	fixture_close(&peer);
}

/* A peer that returns a grant while it copies would stall the owner. */
static void returning_a_grant_in_use_ends_the_link(void **state)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ;
	int file = peer_memfd(FIXTURE_MEMORY, 0, SOFT_FINAL_SEALS);
	struct soft_fixture victim, peer;
	struct soft_given_grant *given;
	uint64_t start;
	struct ibv_mr *mr;

	(void)state;
	fixture_open_pair(&victim, &peer, &stepped);
	mr = pier_soft_provider.reg_dmabuf_mr(victim.pd, 0, FIXTURE_MEMORY, 0, file,
					      access);
	assert_non_null(mr);
	assert_true(pier_soft_send_grant_request(&peer_qp(&peer)->link, mr->rkey, false));
	expect_quick_steps(&victim);
	given = &peer_fifo(&victim)->given[0];
	assert_non_null(given->mr);
	atomic_store(&peer_fifo(&peer)->out->busy, 1);
	pier_soft_send_serial(&peer_qp(&peer)->link, SOFT_CONTROL_RETURNED, 0,
			      given->serial);
	start = fixture_milliseconds();
	for (int i = 0; i < 20; i++)
		fixture_step(&victim, NULL);
	atomic_store(&peer_fifo(&peer)->out->busy, 0);
	/* Less than the second that a copy which was stopped is waited for. */
	assert_in_range(fixture_milliseconds() - start, 0, 900);
	assert_false(pier_soft_link_open(&peer_qp(&victim)->link));
	assert_int_equal(pier_soft_provider.dereg_mr(mr), 0);
	fixture_close(&victim);
	fixture_close(&peer);
	close(file);
}

/* One read of an honest peer's socket can bring a denial and a grant with its fds. */
static void denial_before_a_grant_leaves_the_grant_its_fds(void **state)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ;
	int file = peer_memfd(FIXTURE_MEMORY, 0, SOFT_FINAL_SEALS);
	struct soft_received_grant *held;
	struct soft_fixture owner, asker;
	struct ibv_mr *mr;

	(void)state;
	fixture_open_pair(&owner, &asker, &stepped);
	mr = pier_soft_provider.reg_dmabuf_mr(owner.pd, 0, FIXTURE_MEMORY, 0, file,
					      access);
	assert_non_null(mr);
	held = peer_fifo(&asker)->received;
	for (int i = 0; i < 2; i++) {
		held[i].key = i == 0 ? owner.mr->rkey : mr->rkey;
		held[i].state = SOFT_GRANT_REQUESTED;
		assert_true(pier_soft_send_grant_request(&peer_qp(&asker)->link,
							 held[i].key, false));
	}
	expect_quick_steps(&owner);
	expect_quick_steps(&asker);
	assert_true(pier_soft_link_open(&peer_qp(&asker)->link));
	assert_int_equal(held[0].state, SOFT_GRANT_DENIED);
	assert_int_equal(held[1].state, SOFT_GRANT_RECEIVED);
	fixture_close(&asker);
	assert_int_equal(pier_soft_provider.dereg_mr(mr), 0);
	fixture_close(&owner);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file_of_a_silent_fuse_server_is_refused_at_once),
		cmocka_unit_test(lingering_socket_with_a_false_proof),
		cmocka_unit_test(lingering_socket_with_messages),
		cmocka_unit_test(grant_with_too_many_fds_ends_the_link),
		cmocka_unit_test(returning_a_grant_in_use_ends_the_link),
		cmocka_unit_test(denial_before_a_grant_leaves_the_grant_its_fds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
