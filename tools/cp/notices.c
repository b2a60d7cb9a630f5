/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdlib.h>
#include <string.h>

#include "notices.h"

static uint64_t notice_size(const char *sentence)
{
	return sizeof(struct notice) + strlen(sentence) + 1 + BUDGET_ALLOCATION;
}

void open_notices(struct notices *notices, struct budget *budget)
{
	pthread_mutex_init(&notices->lock, NULL);
	notices->first = NULL;
	notices->last = &notices->first;
	notices->budget = budget;
	notices->lost = false;
}

void add_notice(struct notices *notices, uint32_t number, const char *sentence)
{
	size_t length = strlen(sentence) + 1;
	struct notice *notice = NULL;

	if (charge_budget(notices->budget, notice_size(sentence))) {
		notice = malloc(sizeof(*notice) + length);
		if (!notice)
			release_budget(notices->budget, notice_size(sentence));
	}
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
	if (notice)
		release_budget(notices->budget, notice_size(notice->sentence));
	return notice;
}

void close_notices(struct notices *notices)
{
	struct notice *notice;

	while ((notice = take_notice(notices)))
		free(notice);
	pthread_mutex_destroy(&notices->lock);
}
