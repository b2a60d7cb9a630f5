/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <pier/channel.h>

#include "completions.h"
#include "core/error.h"
#include "core/fd.h"

/* Taking events must not block in read(2). */
static int create_events(struct pier_device *device, struct pier_completions *completions)
{
	int flags;

	errno = 0;
	pier_clear_error();
	completions->events = device->provider->create_comp_channel(device->context);
	if (!completions->events)
		return pier_fail_because(pier_last_errno(),
					 "create a completion channel");
	flags = fcntl(completions->events->fd, F_GETFL);
	if (flags < 0 || fcntl(completions->events->fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return pier_fail_because(errno,
					 "make the completion channel non-blocking");
	return 0;
}

/* In turn. The process id is for machines where many processes have few queues each. */
static uint32_t next_vector(struct pier_device *device, uint32_t vectors)
{
	return ((uint32_t)getpid() + atomic_fetch_add(&device->queues, 1)) % vectors;
}

static int create_cq(const char *what, struct pier_device *device, uint32_t entries,
		     void *cq_context, struct pier_completions *completions)
{
	int limit = device->context->num_comp_vectors;
	uint32_t vectors = limit > 1 ? (uint32_t)limit : 1;

	if (completions->comp_vector == PIER_UNSET)
		completions->comp_vector = next_vector(device, vectors);
	if (completions->comp_vector >= vectors)
		return pier_fail(EINVAL,
				 "%s: comp_vector %u is not one of the device's %u", what,
				 completions->comp_vector, vectors);
	errno = 0;
	pier_clear_error();
	completions->cq = device->provider->create_cq(device->context, (int)entries,
						      cq_context, completions->events,
						      (int)completions->comp_vector);
	if (!completions->cq)
		return pier_fail_because(pier_last_errno(),
					 "create a completion queue of %u on vector %u",
					 entries, completions->comp_vector);
	pier_forget_cq_events(device, completions->cq);
	return 0;
}

int pier_open_completions(const char *what, struct pier_device *device, uint32_t entries,
			  void *cq_context, struct pier_completions *completions)
{
	int error = create_events(device, completions);

	return error ? error : create_cq(what, device, entries, cq_context, completions);
}

/*
 * ibv_destroy_cq() waits until all events are acknowledged; they were, as they were
 * taken.
 */
int pier_close_completions(const struct pier_provider *provider,
			   struct pier_completions *completions)
{
	int error;

	pier_clear_error();
	error = completions->cq ? provider->destroy_cq(completions->cq) : 0;
	if (error)
		return pier_fail_because(error, "destroy a completion queue");
	completions->cq = NULL;
	error = completions->events ? provider->destroy_comp_channel(completions->events)
				    : 0;
	if (error)
		return pier_fail_because(error, "destroy a completion channel");
	completions->events = NULL;
	return 0;
}

/*
 * Acknowledge each event at once: ibv_destroy_cq() waits for all acknowledgements. After
 * the device was removed, poll(2) reports POLLERR for ever and read(2) fails with EIO:
 * ib_uverbs_event_poll() and ib_uverbs_event_read() in uverbs_main.c.
 */
static int take_cq_events(const struct pier_provider *provider,
			  const struct pier_completions *completions)
{
	struct ibv_cq *cq;
	void *context;

	errno = 0;
	while (provider->get_cq_event(completions->events, &cq, &context) == 0)
		provider->ack_cq_events(cq, 1);
	if (pier_is_transient(errno))
		return 0;
	return pier_fail_because(errno, "take the events of the completion channel: the "
					"device may have been removed");
}

int pier_request_event(const struct pier_provider *provider,
		       const struct pier_completions *completions)
{
	int error;

	pier_clear_error();
	error = take_cq_events(provider, completions);
	if (error)
		return error;
	error = ibv_req_notify_cq(completions->cq, 0);
	return error ? pier_fail_because(error, "ask the completion queue for an event")
		     : 0;
}
