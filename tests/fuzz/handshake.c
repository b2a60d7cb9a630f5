/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pier_channel_handshake() with a peer that sends arbitrary bytes and then closes.
 * Nothing may be left open.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

#include <pier/pier.h>

#include "fuzz.h"

enum {
	PIPE_CAPACITY = 65536, /* Linux's default, pipe(7) */
	TIMEOUT_MS = 100
};

static struct pier_device *device;
static struct pier_pd *pd;

static int count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	FUZZ_CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/*
 * An endpoint may contain any address, and fuzzing must not connect to one that it found.
 * The kept inputs contain only this host's.
 */
static void leave_network(void)
{
#ifdef PIER_FUZZ
	if (!unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET))
		return;
	printf("skip: no network namespace of its own can be made here\n");
	fflush(stdout);
	_exit(77); /* libFuzzer reports exit() as a crash */
#endif
}

static void set_up(void)
{
	leave_network();
	FUZZ_CHECK(!pier_device_open(PIER_SOFT_DEVICE, &device));
	FUZZ_CHECK(!pier_pd_alloc(device, &pd));
}

static void shake_hands(int read_fd, int write_fd)
{
	struct pier_channel *channel;

	FUZZ_CHECK(!pier_channel_create(pd, NULL, &channel));
	pier_channel_handshake(channel, read_fd, write_fd, TIMEOUT_MS);
	FUZZ_CHECK(!pier_channel_destroy(channel));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int from_peer[2], to_peer[2], before;

	if (!device)
		set_up();
	if (size > PIPE_CAPACITY)
		return 0;
	FUZZ_CHECK(!pipe2(from_peer, O_CLOEXEC) && !pipe2(to_peer, O_CLOEXEC));
	FUZZ_CHECK(write(from_peer[1], data, size) == (ssize_t)size);
	close(from_peer[1]);
	before = count_fds();
	shake_hands(from_peer[0], to_peer[1]);
	FUZZ_CHECK(count_fds() == before);
	FUZZ_CHECK(!pier_object_count(PIER_OBJECT_CHANNEL));
	close(from_peer[0]);
	close(to_peer[0]);
	close(to_peer[1]);
	return 0;
}
