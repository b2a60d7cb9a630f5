/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "soft_grants.h"

/* Files that change after they were granted. */

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
	assert_false(has_grant(&pair, 0));
	close_pair(&pair);
	close(fd);
	close(ours);
}

/* What the peer does when the victim reads the seals of a file for the nth time. */
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

/* The peer wins the race every time, wherever it is in the victim's code. */
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
		assert_false(has_grant(&pair, 0));
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
	assert_false(has_grant(&pair, 0));
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
	assert_true(has_grant(&pair, 0));
	assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
	assert_int_equal(write_all(&pair, 0), IBV_WC_SUCCESS);
	assert_false(has_grant(&pair, 0));
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
	assert_false(has_grant(&pair, 0));
	close_pair(&pair);
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
