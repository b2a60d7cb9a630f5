/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "watch.h"
#include "core/page.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/fd.h"
#include "core/thread.h"

/* In newer headers only; the kernel reports at run time what it supports. */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

enum {
	/*
	 * UNMAP reports the unmapped range; REMAP the old and new address of moved
	 * pages, also with MREMAP_DONTUNMAP; REMOVE pages emptied by madvise(2).
	 */
	EVENTS = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
		 UFFD_FEATURE_EVENT_REMAP,
	MESSAGES = 32,	 /* read at once */
	SETTLE_MS = 100, /* then a request bypasses the cache */
};

static struct {
	_Atomic(const struct pier_watch_handler *) handler; /* of the caches */
	pthread_mutex_t lock; /* guards `users`, and starting and ending the threads */
	unsigned int users;
	int fd;	  /* the userfaultfd; the listener closes it */
	int stop; /* an eventfd that ends the listener */
	pthread_t listener, reaper;
	sem_t dead; /* wakes the reaper, to reap or to end */
	atomic_bool ended;

	/* Odd while events are being passed to the handler. */
	atomic_uint sequence;
	pthread_mutex_t turn; /* held by the listener while it is odd */

	pthread_mutex_t ranges_lock;
	struct pier_tree ranges;
} watch = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.fd = -1,
	.stop = -1,
	.turn = PTHREAD_MUTEX_INITIALIZER,
	.ranges_lock = PTHREAD_MUTEX_INITIALIZER,
};

/*
 * The listener must not free, allocate or log: each may unmap watched memory and would
 * then wait for the listener itself. A thread that unmaps continues as soon as its event
 * has been read (userfaultfd_event_complete()), so the sequence becomes odd before that.
 */

static void unwatch_range(int fd, uint64_t start, uint64_t length)
{
	struct uffdio_range range = { .start = start, .len = length };

	/* It fails for pages that are no longer mapped, or mapped anew: no harm. */
	(void)ioctl(fd, UFFDIO_UNREGISTER, &range);
}

static bool pass_on_message(const struct uffd_msg *message)
{
	const struct pier_watch_handler *handler = atomic_load(&watch.handler);

	if (message->event == UFFD_EVENT_REMAP)
		return handler->unmapped(message->arg.remap.from,
					 message->arg.remap.from +
						 message->arg.remap.len);
	if (message->event == UFFD_EVENT_UNMAP || message->event == UFFD_EVENT_REMOVE)
		return handler->unmapped(message->arg.remove.start,
					 message->arg.remove.end);
	return false;
}

static void take_events(int fd)
{
	struct uffd_msg messages[MESSAGES];
	ssize_t length;
	size_t count;
	bool dead = false;

	pthread_mutex_lock(&watch.turn);
	atomic_fetch_add(&watch.sequence, 1);
	length = read(fd, messages, sizeof(messages));
	count = length > 0 ? (size_t)length / sizeof(messages[0]) : 0;
	for (size_t i = 0; i < count; i++)
		dead = pass_on_message(&messages[i]) || dead;
	atomic_fetch_add(&watch.sequence, 1);
	pthread_mutex_unlock(&watch.turn);
	/* Moved pages are still watched at their new address, where no cache needs it. */
	for (size_t i = 0; i < count; i++)
		if (messages[i].event == UFFD_EVENT_REMAP)
			unwatch_range(fd, messages[i].arg.remap.to,
				      messages[i].arg.remap.len);
	if (dead)
		sem_post(&watch.dead);
}

static void *listen_to_kernel(void *argument)
{
	int fd = watch.fd;
	struct pollfd waited[] = {
		{ .fd = fd, .events = POLLIN },
		{ .fd = watch.stop, .events = POLLIN },
	};

	(void)argument;
	while (!(waited[1].revents & POLLIN)) {
		if (poll(waited, 2, -1) > 0 && waited[0].revents)
			take_events(fd);
	}
	/* Here: when a thread ends, its stack is emptied, and may be watched. */
	close(fd);
	return NULL;
}

static void *run_reaper(void *argument)
{
	(void)argument;
	while (!atomic_load(&watch.ended)) {
		if (sem_wait(&watch.dead) == 0)
			atomic_load(&watch.handler)->reap();
	}
	return NULL;
}

static void end_reaper(void)
{
	atomic_store(&watch.ended, true);
	sem_post(&watch.dead);
	pthread_join(watch.reaper, NULL);
}

static int open_device(void)
{
	pier_auto_fd device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);

	return device < 0 ? -1
			  : ioctl(device, USERFAULTFD_IOC_NEW,
				  O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
}

/* Unprivileged since Linux 5.11; the device serves where the call is forbidden. */
static int open_userfaultfd(int *ret_fd)
{
	int fd = (int)syscall(SYS_userfaultfd,
			      O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	int error = errno;

	if (fd < 0 && error == EINVAL)
		fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		fd = open_device();
	if (fd < 0)
		return pier_fail(error == ENOSYS ? EOPNOTSUPP : error, "userfaultfd: %s",
				 strerror(error));
	*ret_fd = fd;
	return 0;
}

static int open_watch(int *ret_fd)
{
	struct uffdio_api api = { .api = UFFD_API, .features = EVENTS };
	int fd = -1, error = open_userfaultfd(&fd);

	if (error)
		return error;
	if (ioctl(fd, UFFDIO_API, &api) == 0 &&
	    (api.features & UFFD_FEATURE_PAGEFAULT_FLAG_WP)) {
		*ret_fd = fd;
		return 0;
	}
	pier_close_fd(fd);
	return pier_fail(EOPNOTSUPP, "userfaultfd of this kernel cannot report "
				     "unmapped memory without handling its page faults");
}

/* Signal handlers may free memory, so none may run on these threads. */
static int start_threads(void)
{
	int error = pier_start_thread(&watch.reaper, "pier-reap", run_reaper, NULL);

	if (error)
		return error;
	error = pier_start_thread(&watch.listener, "pier-watch", listen_to_kernel, NULL);
	if (error)
		end_reaper();
	return error;
}

/*
 * A child of fork(2) has no such threads, and what it unmaps is not reported. It must
 * close its copy of the userfaultfd: as long as that is open, closing the parent's ends
 * no watch, and a thread of the parent that unmaps such memory would block for ever.
 */
static void before_fork(void)
{
	pthread_mutex_lock(&watch.lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&watch.lock);
}

static void in_child(void)
{
	watch.fd = pier_close_fd(watch.fd);
	watch.stop = pier_close_fd(watch.stop);
	watch.users = 0;
	watch.ranges.root = NULL;
	atomic_store(&watch.sequence, 0);
	pthread_mutex_init(&watch.lock, NULL);
	pthread_mutex_init(&watch.turn, NULL);
	pthread_mutex_init(&watch.ranges_lock, NULL);
	atomic_load(&watch.handler)->forget();
}

static void prepare_for_forks(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

void pier_watch_init(const struct pier_watch_handler *handler)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	atomic_store(&watch.handler, handler);
	pthread_once(&once, prepare_for_forks);
}

/* With the lock held. */
static int start_watch(void)
{
	int error = open_watch(&watch.fd);

	if (error)
		return error;
	watch.stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (watch.stop < 0) {
		error = pier_fail(errno, "eventfd: %m");
		watch.fd = pier_close_fd(watch.fd);
		return error;
	}
	sem_init(&watch.dead, 0, 0);
	atomic_store(&watch.ended, false);
	error = start_threads();
	if (!error)
		return 0;
	sem_destroy(&watch.dead);
	watch.stop = pier_close_fd(watch.stop);
	watch.fd = pier_close_fd(watch.fd);
	return pier_fail(error, "starting a thread: %s", strerror(error));
}

int pier_watch_start(void)
{
	int error = 0;

	pthread_mutex_lock(&watch.lock);
	if (watch.users == 0)
		error = start_watch();
	if (!error)
		watch.users++;
	pthread_mutex_unlock(&watch.lock);
	return error;
}

/* Both threads end without waiting once they are told. */
static void end_watch(void)
{
	static const uint64_t one = 1;
	ssize_t written = write(watch.stop, &one, sizeof(one));

	(void)written; /* it fails only if the eventfd is full already */
	pthread_join(watch.listener, NULL);
	watch.fd = -1;
	end_reaper();
	sem_destroy(&watch.dead);
	watch.stop = pier_close_fd(watch.stop);
}

void pier_watch_stop(void)
{
	pthread_mutex_lock(&watch.lock);
	if (--watch.users == 0)
		end_watch();
	pthread_mutex_unlock(&watch.lock);
}

int pier_watch_arm(struct pier_watched *watched, uint64_t start_address,
		   uint64_t end_address)
{
	struct uffdio_register request = { .mode = UFFDIO_REGISTER_MODE_WP };
	struct pier_page_range pages;
	int error = 0;

	if (!pier_page_range(start_address, end_address - start_address, pier_host_page(),
			     &pages))
		return -EINVAL;
	request.range.start = watched->node.start = pages.base;
	request.range.len = pages.length;
	watched->node.end = pages.base + pages.length;
	pthread_mutex_lock(&watch.ranges_lock);
	if (ioctl(watch.fd, UFFDIO_REGISTER, &request) != 0)
		error = -errno;
	if (!error)
		pier_tree_insert(&watch.ranges, &watched->node);
	pthread_mutex_unlock(&watch.ranges_lock);
	watched->armed = !error;
	return error;
}

void pier_watch_disarm(struct pier_watched *watched)
{
	uint64_t start_address = watched->node.start, end_address = watched->node.end;

	if (!watched->armed)
		return;
	pthread_mutex_lock(&watch.ranges_lock);
	pier_tree_remove(&watch.ranges, &watched->node);
	/* Pages in other watched ranges stay watched. */
	while (start_address < end_address) {
		const struct pier_tree_node *next = pier_tree_overlap(
			&watch.ranges, start_address, end_address);
		uint64_t free_end = next ? next->start : end_address;

		if (free_end > start_address)
			unwatch_range(watch.fd, start_address, free_end - start_address);
		start_address = next ? next->end : end_address;
	}
	pthread_mutex_unlock(&watch.ranges_lock);
	watched->armed = false;
}

/*
 * The kernel counts a change of the mappings from before it takes effect until the
 * changing thread has seen that its event was read (mmap_changing in fs/userfaultfd.c).
 * Meanwhile it refuses UFFDIO_WRITEPROTECT with EAGAIN before it checks the range. The
 * range here is empty, which is EINVAL.
 */
static bool is_changing(void)
{
	struct uffdio_writeprotect nothing = { .mode = 0 };

	return ioctl(watch.fd, UFFDIO_WRITEPROTECT, &nothing) != 0 && errno == EAGAIN;
}

bool pier_watch_settled(void)
{
	int64_t deadline = 0;

	/* In this order: an event read before the first check is passed on after it. */
	while (is_changing() || atomic_load(&watch.sequence) % 2) {
		if (deadline == 0)
			deadline = pier_deadline(SETTLE_MS);
		else if (pier_now() > deadline)
			return false;
		sched_yield();
	}
	return true;
}

void pier_watch_pause(void)
{
	pthread_mutex_lock(&watch.turn);
}

void pier_watch_resume(void)
{
	pthread_mutex_unlock(&watch.turn);
}
