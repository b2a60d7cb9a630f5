/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "notices.h"

void open_notices(struct notices *notices)
{
	pthread_mutex_init(&notices->lock, NULL);
	notices->first = NULL;
	notices->last = &notices->first;
	notices->lost = false;
}

void add_notice(struct notices *notices, uint32_t number, const char *sentence)
{
	size_t length = strlen(sentence) + 1;
	struct notice *notice = malloc(sizeof(*notice) + length);

	pthread_mutex_lock(&notices->lock);
	if (notice) {
		notice->next = NULL;
		notice->number = number;
		memcpy(notice->sentence, sentence, length);
		*notices->last = notice;
		notices->last = &notice->next;
	} else {
		notices->lost = true;
	}
	pthread_mutex_unlock(&notices->lock);
}

struct notice *take_notice(struct notices *notices)
{
	struct notice *notice;

	pthread_mutex_lock(&notices->lock);
	notice = notices->first;
	if (notice) {
		notices->first = notice->next;
		if (!notices->first)
			notices->last = &notices->first;
	}
	pthread_mutex_unlock(&notices->lock);
	return notice;
}

void close_notices(struct notices *notices)
{
	struct notice *notice;

	while ((notice = take_notice(notices)))
		free(notice);
	pthread_mutex_destroy(&notices->lock);
}
