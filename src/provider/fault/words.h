/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_WORDS_H
#define PIER_FAULT_WORDS_H

#include "plan.h"

/* What may follow the '='. */
enum pier_fault_value {
	FAULT_NO_VALUE,
	FAULT_ERRNO,
	FAULT_WC_STATUS,
	FAULT_EVENT_NAME,
	FAULT_TIME,
	FAULT_TIME_OR_NONE,
	FAULT_TIME_OR_POLLS,
};

/* A word of a plan: its effect, and its occasions as bits. */
struct pier_fault_word {
	const char *name;
	uint64_t occasions;
	enum pier_fault_effect effect;
	enum pier_fault_value value;
};

/* NULL: no such word. */
const struct pier_fault_word *pier_fault_find_word(const char *name, size_t length);

/* The word for that call alone, or a description of the occasion. */
const char *pier_fault_name_occasion(enum pier_fault_occasion occasion);

/* By name; 0 and IBV_WC_SUCCESS: unknown. */
int pier_fault_find_errno(const char *name, size_t length);
enum ibv_wc_status pier_fault_find_status(const char *name, size_t length);
/* -1: unknown. */
int pier_fault_find_event(const char *name, size_t length);

#endif
