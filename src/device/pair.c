/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pair.h"

char pier_canary_passed[] = "passed", pier_canary_impossible[] = "not run";

static struct pier_pair *find_record(struct pier_device *device, const char *memory)
{
	pier_list_for_each(link, &device->pairs) {
		struct pier_pair *pair = pier_container_of(link, struct pier_pair, link);

		if (strcmp(pair->memory, memory) == 0)
			return pair;
	}
	return NULL;
}

struct pier_pair *pier_find_pair(struct pier_device *device, const char *backend,
				 const char *unit)
{
	char memory[sizeof(((struct pier_pair *)0)->memory)];
	struct pier_pair *pair;

	snprintf(memory, sizeof(memory), "%s%s%s", backend, unit[0] ? ":" : "", unit);
	pthread_mutex_lock(&device->pairs_lock);
	pair = find_record(device, memory);
	if (!pair) {
		pair = calloc(1, sizeof(*pair));
		if (pair) {
			memcpy(pair->memory, memory, sizeof(memory));
			pier_list_init(&pair->spares);
			pier_list_append(&device->pairs, &pair->link);
		}
	}
	pthread_mutex_unlock(&device->pairs_lock);
	return pair;
}

static void free_record(struct pier_pair *pair)
{
	for (size_t i = 0; i < sizeof(pair->canary) / sizeof(pair->canary[0]); i++) {
		char *text = atomic_load(&pair->canary[i].text);

		if (text != pier_canary_passed && text != pier_canary_impossible)
			free(text);
		free(atomic_load(&pair->canary[i].obstacle));
	}
	pier_list_for_each_safe(spare, next, &pair->spares) {
		pier_list_remove(spare);
		pair->free_spare(spare);
	}
	free(pair);
}

void pier_free_pairs(struct pier_device *device)
{
	pier_list_for_each_safe(link, next, &device->pairs)
		free_record(pier_container_of(link, struct pier_pair, link));
	pthread_mutex_destroy(&device->pairs_lock);
}
