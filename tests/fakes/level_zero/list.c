/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/level_zero/api.h"
#include "fake.h"

/* Immediate, synchronous command lists. */
struct fake_list {
	uint32_t ordinal;
	bool busy;
};

FAKE_API unsigned int zeCommandListCreateImmediate(
	struct _ze_context_handle_t *context, struct _ze_device_handle_t *device,
	const struct pier_ze_command_queue_desc *desc,
	struct _ze_command_list_handle_t **ret_list)
{
	unsigned int error = fake_begin("zeCommandListCreateImmediate");
	struct fake_list *list;

	fake_check_type(desc, 0xe);
	fake.misuses += desc->mode != 1 || ((struct fake_context *)context)->driver !=
						   ((struct fake_device *)device)->driver;
	if (error == SUCCESS) {
		list = calloc(1, sizeof(*list));
		if (!list)
			abort();
		list->ordinal = desc->ordinal;
		*ret_list = (struct _ze_command_list_handle_t *)list;
		fake.lists++;
	}
	return fake_end(error);
}

FAKE_API unsigned int zeCommandListDestroy(struct _ze_command_list_handle_t *list)
{
	unsigned int error = fake_begin("zeCommandListDestroy");

	if (error == SUCCESS) {
		fake.misuses += ((struct fake_list *)list)->busy;
		free(list);
		fake.lists--;
	}
	return fake_end(error);
}

static pthread_cond_t met = PTHREAD_COND_INITIALIZER;
static unsigned int working;

static void wait_for_others(void)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 10;
	working++;
	if (working >= fake.meet)
		fake.meet = 0;
	pthread_cond_broadcast(&met);
	while (fake.meet > 0) {
		if (pthread_cond_timedwait(&met, &fake_lock, &end) != 0) {
			fake.misuses++;
			fake.meet = 0;
		}
	}
}

/* Works without the lock, so that threads can collide. */
static void begin_work(struct fake_list *list)
{
	fake.misuses += list->busy;
	fake.compute_copies += list->ordinal == 0;
	list->busy = true;
	wait_for_others();
	pthread_mutex_unlock(&fake_lock);
}

static unsigned int end_work(struct fake_list *list)
{
	pthread_mutex_lock(&fake_lock);
	working--;
	list->busy = false;
	return fake_end(SUCCESS);
}

FAKE_API unsigned int zeCommandListAppendMemoryCopy(
	struct _ze_command_list_handle_t *handle, void *destination, const void *source,
	size_t size, struct _ze_event_handle_t *signal, uint32_t waits,
	struct _ze_event_handle_t **wait)
{
	unsigned int error = fake_begin("zeCommandListAppendMemoryCopy");
	struct fake_list *list = (struct fake_list *)handle;
	const void *from;
	void *to;

	if (error != SUCCESS || signal || waits || wait)
		return fake_end(error != SUCCESS ? error : INVALID_ARGUMENT);
	to = fake_translate(destination);
	from = fake_translate(source);
	begin_work(list);
	memcpy(to, from, size);
	return end_work(list);
}

FAKE_API unsigned int zeCommandListAppendMemoryFill(
	struct _ze_command_list_handle_t *handle, void *pointer, const void *pattern,
	size_t pattern_size, size_t size, struct _ze_event_handle_t *signal,
	uint32_t waits, struct _ze_event_handle_t **wait)
{
	unsigned int error = fake_begin("zeCommandListAppendMemoryFill");
	struct fake_list *list = (struct fake_list *)handle;
	void *to;

	if (error != SUCCESS || signal || waits || wait || pattern_size != 1)
		return fake_end(error != SUCCESS ? error : INVALID_ARGUMENT);
	to = fake_translate(pointer);
	begin_work(list);
	memset(to, *(const char *)pattern, size);
	return end_work(list);
}
