/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_peer.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/control.h"
#include "provider/soft/link/grant_received.h"
#include "provider/soft/link/ring.h"
#include "provider/soft/regions/rlimits.h"

/*
 * A target that gives leave to copy into memory which it then takes away, or which is
 * more than the initiator can bear. The initiator has to survive, and its requests
 * succeed by the ring.
 */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct rig_options stepped = { .stepped = 1 };

enum {
	LENGTH = RIG_MEMORY, /* at its first use a key of that much is asked for */
	FINAL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	KEYS = 16
};

struct pair {
	struct rig victim, peer;
	struct ibv_mr *mrs[KEYS]; /* of the peer: what the ring reaches */
};

static void open_pair(struct pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	rig_open_pair(&pair->victim, &pair->peer, &stepped);
	for (int i = 0; i < KEYS; i++) {
		pair->mrs[i] = soft->reg_mr(pair->peer.pd, pair->peer.memory, LENGTH, 0,
					    IBV_ACCESS_LOCAL_WRITE |
						    IBV_ACCESS_REMOTE_WRITE |
						    IBV_ACCESS_REMOTE_READ);
		assert_non_null(pair->mrs[i]);
	}
}

static void close_pair(struct pair *pair)
{
	for (int i = 0; i < KEYS; i++)
		assert_int_equal(soft->dereg_mr(pair->mrs[i]), 0);
	rig_close(&pair->victim);
	rig_close(&pair->peer);
}

static enum ibv_wc_status write_all(struct pair *pair, int key)
{
	return peer_transfer(&pair->victim, &pair->peer, IBV_WR_RDMA_WRITE,
			     pair->mrs[key]->rkey, 0, LENGTH);
}

/* Waits until the victim asks for the key, and takes the word from the peer's engine. */
static void intercept_ask(struct pair *pair)
{
	struct pollfd waited = { .fd = peer_qp(&pair->peer)->link.rx_fd,
				 .events = POLLIN };
	uint64_t deadline = rig_milliseconds() + RIG_DEADLINE_MS;
	char words[256];

	do {
		assert_true(rig_milliseconds() < deadline);
		rig_step(&pair->victim, NULL);
	} while (poll(&waited, 1, 0) == 0);
	assert_true(recv(waited.fd, words, sizeof(words), MSG_DONTWAIT) > 0);
}

/*
 * The victim writes to a key for the first time, and the peer answers its question with
 * a leave that an honest one would not give.
 */
static void give_leave(struct pair *pair, int key, const int *fds, uint32_t fd_count,
		       uint64_t offset, uint64_t length, uint32_t pieces)
{
	struct rig_endpoint remote = { .rkey = pair->mrs[key]->rkey };
	struct soft_grant_message word = {
		.key = remote.rkey,
		.slot = (uint32_t)key,
		.serial = 1000 + (uint32_t)key,
		.count = pieces,
		.fd_count = fd_count,
	};

	for (uint32_t i = 0; i < pieces; i++) {
		word.pieces[i].offset = offset;
		word.pieces[i].length = length;
		word.pieces[i].fd = i % fd_count;
	}
	assert_int_equal(rig_post(&pair->victim, IBV_WR_RDMA_WRITE, 1, 0, LENGTH, &remote,
				  0, IBV_SEND_SIGNALED),
			 0);
	intercept_ask(pair);
	atomic_store(&peer_lane(&pair->peer)->in->valid[word.slot], word.serial);
	assert_true(pier_soft_send_grant(peer_qp(&pair->peer), &word, fds));
	rig_expect(&pair->victim, pair->victim.send_cq, &pair->peer, 1, IBV_WC_SUCCESS);
	for (int i = 0; i < 20; i++)
		rig_step(&pair->victim, &pair->peer);
}

static void give_file(struct pair *pair, int key, int fd)
{
	give_leave(pair, key, &fd, 1, 0, LENGTH, 1);
}

static bool has_leave(struct pair *pair, int key)
{
	const struct soft_received_grant *held = peer_lane(&pair->victim)->received;

	for (int i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (held[i].key == pair->mrs[key]->rkey)
			return held[i].state == SOFT_GRANT_RECEIVED;
	}
	return false;
}

/* Elements that the victim copies itself, because its own memory cannot vanish. */
static int use_steady_elements(struct pair *pair)
{
	int fd = peer_memfd(LENGTH, 0, FINAL);

	assert_int_equal(soft->dereg_mr(pair->victim.mr), 0);
	pair->victim.mr = soft->reg_dmabuf_mr(pair->victim.pd, 0, LENGTH,
					      (uintptr_t)pair->victim.memory, fd,
					      IBV_ACCESS_LOCAL_WRITE);
	assert_non_null(pair->victim.mr);
	return fd;
}

static bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return written;
}

static bool enter_mount_namespace(void)
{
	char users[32], groups[32];

	snprintf(users, sizeof(users), "0 %u 1", geteuid());
	snprintf(groups, sizeof(groups), "0 %u 1", getegid());
	if (unshare(CLONE_NEWNS) == 0)
		return true;
	return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
	       write_text("/proc/self/uid_map", users) &&
	       write_text("/proc/self/setgroups", "deny") &&
	       write_text("/proc/self/gid_map", groups);
}

/*
 * In a child with mounts of its own: a file of a tmpfs, of which the link in /proc reads
 * "/dmabuf:". Users without rights need a user namespace for that.
 */
static void false_dmabuf_body(int socket)
{
	int fd;

	if (!enter_mount_namespace() ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("false", "/tmp", "tmpfs", 0, NULL) < 0)
		_exit(1);
	fd = open("/tmp/dmabuf:", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, LENGTH) < 0 || umount2("/tmp", MNT_DETACH) < 0)
		_exit(1);
	_exit(peer_send(socket, "f", 1, fd, 1) != 1);
}

/* -1: mounts are not allowed here. */
static int make_false_dmabuf(void)
{
	int sockets[2], status, fd = -1;
	pid_t child;
	char byte;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		false_dmabuf_body(sockets[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		assert_int_equal(peer_receive(sockets[0], &byte, 1, &fd), 1);
	close(sockets[0]);
	close(sockets[1]);
	return fd;
}

static void false_dmabuf_that_shrinks(void **state)
{
	int fd = make_false_dmabuf(), ours;
	struct pair pair;

	(void)state;
	if (fd < 0) {
		puts("skip: no mounts in a namespace of its own");
		skip();
	}
	open_pair(&pair);
	ours = use_steady_elements(&pair);
	give_file(&pair, 0, fd);
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_false(has_leave(&pair, 0));
	close_pair(&pair);
	close(fd);
	close(ours);
}

/* What the peer does when the victim looks at the seals of a file for the nth time. */
static struct {
	int fd; /* -1: nothing */
	int looks;
} at_look = { .fd = -1 };

int __real_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);

int __wrap_fcntl64(int fd, int command, ...)
{
	va_list list;
	long argument;

	va_start(list, command);
	argument = va_arg(list, long);
	va_end(list);
	if (command == F_GET_SEALS && at_look.fd >= 0 && --at_look.looks == 0) {
		int file = at_look.fd;

		at_look.fd = -1;
		assert_int_equal(ftruncate(file, 0), 0);
		assert_int_equal(__real_fcntl64(file, F_ADD_SEALS, FINAL), 0);
	}
	return __real_fcntl64(fd, command, argument);
}

/* It wins the race every time, wherever that is in the victim's code. */
static void file_that_shrinks_while_it_is_looked_at(void **state)
{
	(void)state;
	for (int looks = 1; looks <= 5; looks++) {
		int fd = peer_memfd(LENGTH, 0, F_SEAL_GROW), ours;
		struct pair pair;

		open_pair(&pair);
		ours = use_steady_elements(&pair);
		at_look.fd = fd;
		at_look.looks = looks;
		give_file(&pair, 0, fd);
		at_look.fd = -1;
		assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
		assert_false(has_leave(&pair, 0));
		close_pair(&pair);
		close(fd);
		close(ours);
	}
}

enum {
	HUGE_PAGE = 2 << 20
};

static bool can_map_huge(int fd)
{
	void *memory = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, HUGE_PAGE) == 0)
		memory = mmap(NULL, HUGE_PAGE, PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return false;
	munmap(memory, HUGE_PAGE);
	return true;
}

/* A hole in huge pages, for which there may be no free page when it is touched. */
static void hole_in_huge_pages(void **state)
{
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	struct pair pair;
	int ours;

	(void)state;
	if (!can_map_huge(fd)) {
		puts("skip: no free huge pages of 2 MiB (/proc/sys/vm/nr_hugepages)");
		if (fd >= 0)
			close(fd);
		skip();
	}
	assert_int_equal(fcntl(fd, F_ADD_SEALS, FINAL), 0);
	open_pair(&pair);
	ours = use_steady_elements(&pair);
	give_file(&pair, 0, fd);
	assert_false(has_leave(&pair, 0));
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGE_PAGE);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	close_pair(&pair);
	close(fd);
	close(ours);
}

/* A flag of the open file, which the peer shares: writes go to the end instead. */
static void file_that_only_appends(void **state)
{
	int fd = peer_memfd(LENGTH, 0, FINAL);
	struct pair pair;

	(void)state;
	open_pair(&pair);
	give_file(&pair, 0, fd);
	assert_true(has_leave(&pair, 0));
	assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_false(has_leave(&pair, 0));
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	close_pair(&pair);
	close(fd);
}

/* A file that refuses writes later on, though it is mapped for them. */
static void file_that_is_sealed_later(void **state)
{
	int fd = peer_memfd(LENGTH, 0, F_SEAL_SHRINK | F_SEAL_GROW);
	struct pair pair;

	(void)state;
	open_pair(&pair);
	give_file(&pair, 0, fd);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_false(has_leave(&pair, 0));
	close_pair(&pair);
	close(fd);
}

/* Writes there are a SIGXFSZ for a process with such a limit. */
static void file_beyond_the_file_size_limit(void **state)
{
	const uint64_t far = UINT64_C(1) << 30;
	int fd = peer_memfd(far + LENGTH, 0, FINAL);
	struct rlimit before, limit;
	struct pair pair;

	(void)state;
	open_pair(&pair);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	limit = before;
	limit.rlim_cur = 1 << 20;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	give_leave(&pair, 0, &fd, 1, far, LENGTH, 1);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_false(has_leave(&pair, 0));
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	close_pair(&pair);
	close(fd);
}

static uint64_t count_mapped_bytes(int *ret_mappings)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uint64_t sum = 0;
	char line[512];

	assert_non_null(maps);
	*ret_mappings = 0;
	while (fgets(line, sizeof(line), maps)) {
		unsigned long long first, last;

		if (!strstr(line, "/memfd:hostile") ||
		    sscanf(line, "%llx-%llx", &first, &last) != 2)
			continue;
		sum += last - first;
		++*ret_mappings;
	}
	fclose(maps);
	return sum;
}

/* Sparse files that would use up the address space. */
static void regions_larger_than_the_address_space(void **state)
{
	const uint64_t sizes[] = { UINT64_C(1) << 46, UINT64_C(1) << 39,
				   UINT64_C(1) << 41 };
	struct pair pair;
	int mappings;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int fd = peer_memfd(sizes[i], 0, FINAL);

		open_pair(&pair);
		for (int key = 0; key < KEYS; key++)
			give_leave(&pair, key, &fd, 1, 0, sizes[i], 1);
		assert_in_range(count_mapped_bytes(&mappings), 0, UINT64_C(1) << 40);
		assert_int_equal(write_all(&pair, KEYS - 1), IBV_WC_SUCCESS);
		close_pair(&pair);
		close(fd);
	}
	/* Nothing is left, and nothing is counted any more. */
	assert_int_equal(count_mapped_bytes(&mappings), 0);
	assert_true(pier_soft_reserve_mapping(UINT64_C(1) << 42, 0));
	pier_soft_release_mapping(UINT64_C(1) << 42, 0);
}

/* Several links to one process add up. */
static void many_links_share_one_bound(void **state)
{
	enum {
		PAIRS = 10
	};
	const uint64_t size = UINT64_C(1) << 39;
	int fd = peer_memfd(size, 0, FINAL), mappings;
	struct pair pairs[PAIRS];

	(void)state;
	for (int i = 0; i < PAIRS; i++) {
		open_pair(&pairs[i]);
		for (int key = 0; key < 2; key++)
			give_leave(&pairs[i], key, &fd, 1, 0, size, 1);
	}
	assert_in_range(count_mapped_bytes(&mappings), size, UINT64_C(1) << 42);
	for (int i = 0; i < PAIRS; i++)
		close_pair(&pairs[i]);
	close(fd);
	assert_int_equal(count_mapped_bytes(&mappings), 0);
}

/* The kernel limits mappings in number, too. */
static void regions_of_many_pieces(void **state)
{
	int fd = peer_memfd(LENGTH, 0, FINAL), mappings;
	int before = rig_count_fds(), fds[SOFT_GRANT_PIECES];
	struct pair pairs[2];

	(void)state;
	for (int i = 0; i < SOFT_GRANT_PIECES; i++)
		fds[i] = fd;
	for (int i = 0; i < 2; i++) {
		open_pair(&pairs[i]);
		for (int key = 0; key < KEYS; key++)
			give_leave(&pairs[i], key, fds, SOFT_GRANT_PIECES, 0, 4096,
				   SOFT_GRANT_PIECES);
	}
	count_mapped_bytes(&mappings);
	assert_in_range(mappings, 1, 2 * 1024);
	for (int i = 0; i < 2; i++)
		close_pair(&pairs[i]);
	assert_int_equal(rig_count_fds(), before);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(false_dmabuf_that_shrinks),
		cmocka_unit_test(file_that_shrinks_while_it_is_looked_at),
		cmocka_unit_test(hole_in_huge_pages),
		cmocka_unit_test(file_that_only_appends),
		cmocka_unit_test(file_that_is_sealed_later),
		cmocka_unit_test(regions_larger_than_the_address_space),
		cmocka_unit_test(many_links_share_one_bound),
		cmocka_unit_test(regions_of_many_pieces),
		cmocka_unit_test(file_beyond_the_file_size_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
