/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cp.h"
#include "workers.h"

struct queue {
	struct job *first, **last;
};

struct worker {
	pthread_t thread;
	struct workers *workers;
	void *scratch;
};

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wanted;
	struct queue todo, done;
	bool stopping;
	int event;
	unsigned int busy; /* accessed by the owner's thread only */
	unsigned int count;
	struct worker all[CP_THREADS_MAX];
};

static void append_job(struct queue *queue, struct job *job)
{
	job->next = NULL;
	*queue->last = job;
	queue->last = &job->next;
}

static struct job *take_first_job(struct queue *queue)
{
	struct job *job = queue->first;

	if (!job)
		return NULL;
	queue->first = job->next;
	if (!queue->first)
		queue->last = &queue->first;
	return job;
}

static void *run_worker(void *argument)
{
	struct worker *worker = argument;
	struct workers *workers = worker->workers;
	struct job *job;

	pthread_mutex_lock(&workers->lock);
	for (;;) {
		while (!workers->stopping && !workers->todo.first)
			pthread_cond_wait(&workers->wanted, &workers->lock);
		if (workers->stopping)
			break;
		job = take_first_job(&workers->todo);
		assert(job);
		pthread_mutex_unlock(&workers->lock);
		job->run(job, worker->scratch);
		pthread_mutex_lock(&workers->lock);
		append_job(&workers->done, job);
		eventfd_write(workers->event, 1);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

static int start_worker(struct workers *workers, size_t scratch_size)
{
	struct worker *worker = &workers->all[workers->count];
	int error;

	worker->workers = workers;
	worker->scratch = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), scratch_size);
	if (!worker->scratch)
		return ENOMEM;
	error = pthread_create(&worker->thread, NULL, run_worker, worker);
	if (error)
		free(worker->scratch);
	else
		workers->count++;
	return error;
}

int start_workers(unsigned int count, size_t scratch_size, struct workers **ret_workers,
		  struct failure *failure)
{
	struct workers *workers = calloc(1, sizeof(*workers));
	int error = 0;

	if (!workers)
		return fail(failure, EXIT_FILE, "out of memory");
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->wanted, NULL);
	workers->todo.last = &workers->todo.first;
	workers->done.last = &workers->done.first;
	workers->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (workers->event < 0)
		error = errno;
	while (!error && workers->count < count)
		error = start_worker(workers, scratch_size);
	if (!error) {
		*ret_workers = workers;
		return 0;
	}
	stop_workers(workers);
	return fail(failure, EXIT_FILE, "cannot start threads: %s", strerror(error));
}

void stop_workers(struct workers *workers)
{
	unsigned int i;

	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	workers->stopping = true;
	pthread_cond_broadcast(&workers->wanted);
	pthread_mutex_unlock(&workers->lock);
	for (i = 0; i < workers->count; i++) {
		pthread_join(workers->all[i].thread, NULL);
		free(workers->all[i].scratch);
	}
	if (workers->event >= 0)
		close(workers->event);
	pthread_cond_destroy(&workers->wanted);
	pthread_mutex_destroy(&workers->lock);
	free(workers);
}

void submit_job(struct workers *workers, struct job *job)
{
	workers->busy++;
	pthread_mutex_lock(&workers->lock);
	append_job(&workers->todo, job);
	pthread_cond_signal(&workers->wanted);
	pthread_mutex_unlock(&workers->lock);
}

struct job *take_finished_job(struct workers *workers)
{
	struct job *job;
	eventfd_t count;

	pthread_mutex_lock(&workers->lock);
	job = take_first_job(&workers->done);
	/* Under the lock, so that the event is set only while a finished job is queued.
	 */
	if (!job)
		eventfd_read(workers->event, &count);
	pthread_mutex_unlock(&workers->lock);
	if (job)
		workers->busy--;
	return job;
}

void wake_owner(struct workers *workers)
{
	eventfd_write(workers->event, 1);
}

unsigned int workers_busy(const struct workers *workers)
{
	return workers->busy;
}

int workers_fd(const struct workers *workers)
{
	return workers->event;
}
