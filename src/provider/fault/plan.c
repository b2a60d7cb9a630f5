/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/error.h"
#include "core/log.h"
#include "persona.h"
#include "plan.h"
#include "provider/event_name.h"

#define BIT(occasion)	     (UINT64_C(1) << (occasion))
#define CALL(occasion, name) { name, BIT(FAULT_##occasion), FAULT_FAIL, FAULT_ERRNO },

#define ON_COMPLETION BIT(FAULT_COMPLETION)
#define REGISTRATIONS                                                          \
	(BIT(FAULT_REG_MR) | BIT(FAULT_REG_DMABUF_MR) | BIT(FAULT_REG_PARTS) | \
	 BIT(FAULT_REG_DM_MR))
/* Without the calls whose number depends on time, and each call only once. */
#define ALL_CALLS (BIT(FAULT_POLL_CQ) - 1)

static const struct pier_fault_word words[] = {
	{ "call", ALL_CALLS, FAULT_FAIL, FAULT_ERRNO },
	{ "reg", REGISTRATIONS, FAULT_FAIL, FAULT_ERRNO },
	{ "wc", ON_COMPLETION, FAULT_STATUS, FAULT_WC_STATUS },
	{ "late", ON_COMPLETION, FAULT_LATE, FAULT_TIME_OR_POLLS },
	{ "lost", ON_COMPLETION, FAULT_LOST, FAULT_NO_VALUE },
	{ "overrun", ON_COMPLETION, FAULT_OVERRUN, FAULT_NO_VALUE },
	{ "dead", BIT(FAULT_POST_SEND), FAULT_DEAD, FAULT_TIME_OR_NONE },
	{ "async", BIT(FAULT_POST_SEND), FAULT_ASYNC, FAULT_EVENT_NAME },
	{ "corrupt", BIT(FAULT_POST_SEND), FAULT_CORRUPT, FAULT_NO_VALUE },
	{ "drop", BIT(FAULT_POST_SEND), FAULT_DROP, FAULT_NO_VALUE },
	{ "stale", BIT(FAULT_POST_SEND), FAULT_STALE, FAULT_NO_VALUE },
	{ "misplace", BIT(FAULT_POST_SEND), FAULT_MISPLACE, FAULT_NO_VALUE },
	{ "event", BIT(FAULT_REQ_NOTIFY_CQ), FAULT_NOTIFY_LATE, FAULT_TIME },
	PIER_FAULT_CALLS(CALL)
};

/* A part of a plan's text: all of it, a rule, or the rest of one. */
struct text {
	const char *at;
	size_t length;
};

static bool is_text(struct text text, const char *word)
{
	return text.length == strlen(word) && memcmp(text.at, word, text.length) == 0;
}

/* NULL: no such word. */
static const struct pier_fault_word *find_word(struct text name)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (is_text(name, words[i].name))
			return &words[i];
	}
	return NULL;
}

static const char *name_occasion(enum pier_fault_occasion occasion)
{
#define NAME(occasion, name) name,
	static const char *const names[] = { PIER_FAULT_CALLS(NAME) "a completion" };
#undef NAME

	return names[occasion];
}

/* glibc has it from 2.32 on. With an older one, plans cannot name an errno. */
const char *strerrorname_np(int error) __attribute__((weak));

/* By name; 0 and IBV_WC_SUCCESS: unknown. */
static int find_errno(struct text name)
{
	/* The highest errno of the kernel (MAX_ERRNO). */
	for (int number = 1; number <= 4095; number++) {
		const char *known = strerrorname_np ? strerrorname_np(number) : NULL;

		if (known && is_text(name, known))
			return number;
	}
	return 0;
}

/* -1: unknown. */
static int find_event(struct text name)
{
	for (int event = 0; event <= IBV_EVENT_GID_CHANGE; event++) {
		if (is_text(name, pier_event_name((enum ibv_event_type)event)))
			return event;
	}
	return -1;
}

static enum ibv_wc_status find_status(struct text name)
{
#define STATUS(name) [IBV_WC_##name] = #name
	static const char *const names[] = {
		STATUS(LOC_LEN_ERR),	    STATUS(LOC_QP_OP_ERR),
		STATUS(LOC_EEC_OP_ERR),	    STATUS(LOC_PROT_ERR),
		STATUS(WR_FLUSH_ERR),	    STATUS(MW_BIND_ERR),
		STATUS(BAD_RESP_ERR),	    STATUS(LOC_ACCESS_ERR),
		STATUS(REM_INV_REQ_ERR),    STATUS(REM_ACCESS_ERR),
		STATUS(REM_OP_ERR),	    STATUS(RETRY_EXC_ERR),
		STATUS(RNR_RETRY_EXC_ERR),  STATUS(LOC_RDD_VIOL_ERR),
		STATUS(REM_INV_RD_REQ_ERR), STATUS(REM_ABORT_ERR),
		STATUS(INV_EECN_ERR),	    STATUS(INV_EEC_STATE_ERR),
		STATUS(FATAL_ERR),	    STATUS(RESP_TIMEOUT_ERR),
		STATUS(GENERAL_ERR),
	};
#undef STATUS

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i] && is_text(name, names[i]))
			return (enum ibv_wc_status)i;
	}
	return IBV_WC_SUCCESS;
}

enum {
	NO_MORE_THAN_HOURS = 1,
	LONGEST_SHOWN = 80,
};

#define SECOND	       UINT64_C(1000000000)
#define LONGEST_TIME   (NO_MORE_THAN_HOURS * 3600 * SECOND)
#define HIGHEST_NUMBER UINT32_MAX

static int shown_length(struct text text)
{
	return text.length < LONGEST_SHOWN ? (int)text.length : LONGEST_SHOWN;
}

static int refuse_rule(struct text rule, const char *reason)
{
	return pier_fail(EINVAL, "fault plan: \"%.*s\": %s", shown_length(rule), rule.at,
			 reason);
}

/* The part before the first of these characters, or all of the text. */
static struct text take_until(struct text *rest, const char *ends)
{
	struct text part = { rest->at, 0 };

	while (part.length < rest->length && !strchr(ends, part.at[part.length]))
		part.length++;
	rest->at += part.length;
	rest->length -= part.length;
	return part;
}

static bool take_character(struct text *rest, char character)
{
	if (rest->length == 0 || *rest->at != character)
		return false;
	rest->at++;
	rest->length--;
	return true;
}

/* Reads decimal digits. False: there is none, or the number is above `most`. */
static bool take_number(struct text *rest, uint64_t most, uint64_t *ret_number)
{
	uint64_t number = 0;
	size_t digits = 0;

	for (; rest->length > 0 && *rest->at >= '0' && *rest->at <= '9'; digits++) {
		uint64_t digit = (uint64_t)(*rest->at - '0');

		if (number > (most - digit) / 10)
			return false;
		number = number * 10 + digit;
		rest->at++;
		rest->length--;
	}
	*ret_number = number;
	return digits > 0;
}

/* "@3", "@3+" or "~20". */
static int read_when(struct text whole, struct text *rest, struct pier_fault_rule *rule)
{
	rule->by_chance = take_character(rest, '~');
	if (!rule->by_chance && !take_character(rest, '@'))
		return refuse_rule(whole,
				   "say when: NAME@N for the Nth time, NAME@N+ from "
				   "then on, or NAME~N for one time in N by chance");
	if (!take_number(rest, HIGHEST_NUMBER, &rule->number) || rule->number == 0)
		return refuse_rule(whole, "N is a number from 1 to 4294967295");
	rule->onwards = !rule->by_chance && take_character(rest, '+');
	return 0;
}

static int read_time(struct text whole, struct text rest, bool may_be_polls,
		     struct pier_fault_rule *rule)
{
	static const struct {
		const char *name;
		uint64_t nanoseconds;
	} units[] = { { "us", 1000 }, { "ms", 1000000 }, { "s", SECOND } };

	if (!take_number(&rest, LONGEST_TIME, &rule->value))
		return refuse_rule(whole,
				   "a time is a number with us, ms or s, at most an "
				   "hour");
	rule->in_polls = may_be_polls && is_text(rest, "polls");
	if (rule->in_polls)
		return 0;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!is_text(rest, units[i].name))
			continue;
		if (rule->value > LONGEST_TIME / units[i].nanoseconds)
			return refuse_rule(whole, "that is more than an hour");
		rule->value *= units[i].nanoseconds;
		return 0;
	}
	return refuse_rule(whole, may_be_polls ? "the unit is us, ms, s or polls"
					       : "the unit is us, ms or s");
}

static int read_name(struct text whole, struct text rest, struct pier_fault_rule *rule)
{
	if (rule->word->value == FAULT_ERRNO) {
		rule->value = (uint64_t)find_errno(rest);
		if (rule->value)
			return 0;
		return pier_fail(
			EINVAL,
			"fault plan: \"%.*s\": \"%.*s\" is not the name of an errno, "
			"such as ENOMEM",
			shown_length(whole), whole.at, shown_length(rest), rest.at);
	}
	if (rule->word->value == FAULT_EVENT_NAME) {
		int event = find_event(rest);

		rule->value = (uint64_t)event;
		return event < 0 ? refuse_rule(whole,
					       "that is no event of enum ibv_event_type, "
					       "without IBV_EVENT_: PORT_ERR")
				 : 0;
	}
	rule->value = find_status(rest);
	return rule->value ? 0
			   : refuse_rule(whole, "that is no error of enum ibv_wc_status, "
						"without IBV_WC_: RETRY_EXC_ERR");
}

/* Reads the value of a rule, if it has one: "=ENOMEM". */
static int read_value(struct text whole, struct text rest, struct pier_fault_rule *rule)
{
	enum pier_fault_value wanted = rule->word->value;
	bool there = take_character(&rest, '=');

	if (!there && rest.length > 0)
		return refuse_rule(whole, "what is behind the number?");
	if (there && wanted == FAULT_NO_VALUE)
		return refuse_rule(whole, "that takes no value");
	if (!there && wanted == FAULT_TIME_OR_NONE)
		rule->value = SECOND / 2;
	if (!there && (wanted == FAULT_TIME_OR_NONE || wanted == FAULT_NO_VALUE))
		return 0;
	if (!there)
		return refuse_rule(whole,
				   "a value is missing: =ENOMEM of a call, "
				   "=RETRY_EXC_ERR of a completion, =50ms of a time");
	if (wanted == FAULT_ERRNO || wanted == FAULT_WC_STATUS ||
	    wanted == FAULT_EVENT_NAME)
		return read_name(whole, rest, rule);
	return read_time(whole, rest, wanted == FAULT_TIME_OR_POLLS, rule);
}

static int read_rule(struct text whole, struct pier_fault_plan *plan)
{
	struct pier_fault_rule *rule = &plan->rules[plan->count];
	struct text rest = whole, name = take_until(&rest, "@~=");
	int error;

	if (plan->count == PIER_FAULT_RULES)
		return refuse_rule(whole, "that is one rule too many; there may be 32");
	if (whole.length >= sizeof(rule->text))
		return refuse_rule(whole, "a rule has at most 47 characters");
	rule->word = find_word(name);
	if (!rule->word)
		return refuse_rule(whole,
				   "that is no word of a plan; pier-fault(7) lists them");
	memcpy(rule->text, whole.at, whole.length);
	error = read_when(whole, &rest, rule);
	if (!error)
		error = read_value(whole, rest, rule);
	plan->count += !error;
	return error;
}

static int read_persona(struct text whole, struct text name, struct pier_fault_plan *plan)
{
	char names[128];

	if (plan->persona)
		return refuse_rule(whole, "the device is like another one already");
	plan->persona = pier_persona_find(name.at, name.length);
	if (plan->persona)
		return 0;
	pier_persona_print_names(names, sizeof(names));
	return pier_fail(EINVAL,
			 "fault plan: \"%.*s\": a device can be like one of these: %s",
			 shown_length(whole), whole.at, names);
}

static int read_item(struct text item, struct pier_fault_plan *plan)
{
	struct text seed;

	if (item.length >= 5 && memcmp(item.at, "like=", 5) == 0)
		return read_persona(item, (struct text){ item.at + 5, item.length - 5 },
				    plan);
	if (item.length < 5 || memcmp(item.at, "seed=", 5) != 0)
		return read_rule(item, plan);
	seed = (struct text){ item.at + 5, item.length - 5 };
	if (take_number(&seed, UINT64_MAX, &plan->seed) && seed.length == 0)
		return 0;
	return refuse_rule(item, "a seed is a number of 64 bits, decimal");
}

int pier_fault_read_plan(const char *at, size_t length, struct pier_fault_plan *ret_plan)
{
	struct text rest = { at, length };
	struct pier_fault_plan plan = { .opening = true };
	int error = 0;

	if (getrandom(&plan.seed, sizeof(plan.seed), 0) != (ssize_t)sizeof(plan.seed))
		return pier_fail(EIO, "fault plan: getrandom gave too few bytes");
	plan.seed >>= 32; /* short enough to type again */
	while (rest.length > 0 && !error) {
		error = read_item(take_until(&rest, ","), &plan);
		if (!error && take_character(&rest, ',') && rest.length == 0)
			error = refuse_rule((struct text){ at, length },
					    "ends with a comma");
	}
	if (error)
		return error;
	/* Each rule has a random sequence of its own, whatever the other rules count. */
	for (uint32_t i = 0; i < plan.count; i++)
		plan.rules[i].random = plan.seed + i * UINT64_C(0xd1342543de82ef95);
	*ret_plan = plan;
	pthread_mutex_init(&ret_plan->lock, NULL);
	return 0;
}

void pier_fault_end_plan(struct pier_fault_plan *plan)
{
	pthread_mutex_destroy(&plan->lock);
}

/* splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators"). */
static uint64_t draw_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static bool counts_occasion(const struct pier_fault_plan *plan,
			    const struct pier_fault_rule *rule,
			    enum pier_fault_occasion occasion)
{
	bool gives_back = occasion == FAULT_DEALLOC_PD || occasion == FAULT_DEREG_MR ||
			  occasion == FAULT_DESTROY_CQ || occasion == FAULT_DESTROY_QP ||
			  occasion == FAULT_DEALLOC_MW || occasion == FAULT_CLOSE_DEVICE;
	bool probes = occasion == FAULT_ALLOC_PD || occasion == FAULT_REG_DMABUF_MR ||
		      occasion == FAULT_CREATE_CQ || occasion == FAULT_CREATE_QP ||
		      occasion == FAULT_ALLOC_MW;

	if (!(rule->word->occasions >> occasion & 1))
		return false;
	if (plan->opening && gives_back)
		return false;
	return !(plan->opening && probes) ||
	       (rule->word->occasions >> FAULT_OPEN_DEVICE & 1);
}

static bool is_rule_due(struct pier_fault_rule *rule)
{
	rule->seen++;
	if (rule->by_chance)
		return draw_random(&rule->random) % rule->number == 0;
	return rule->onwards ? rule->seen >= rule->number : rule->seen == rule->number;
}

/* All rules count, also those after the one that strikes. */
const struct pier_fault_rule *pier_fault_strikes(struct pier_fault_plan *plan,
						 enum pier_fault_effect effect,
						 enum pier_fault_occasion occasion)
{
	const struct pier_fault_rule *struck = NULL;

	pthread_mutex_lock(&plan->lock);
	for (uint32_t i = 0; i < plan->count; i++) {
		struct pier_fault_rule *rule = &plan->rules[i];

		if (rule->word->effect != effect ||
		    !counts_occasion(plan, rule, occasion))
			continue;
		if (is_rule_due(rule) && !struck)
			struck = rule;
	}
	pthread_mutex_unlock(&plan->lock);
	if (struck)
		pier_info("fault plan: %s strikes %s (seed=%llu)", struck->text,
			  name_occasion(occasion), (unsigned long long)plan->seed);
	return struck;
}

bool pier_fault_plans(const struct pier_fault_plan *plan, enum pier_fault_effect effect)
{
	for (uint32_t i = 0; i < plan->count; i++) {
		if (plan->rules[i].word->effect == effect)
			return true;
	}
	return false;
}

bool pier_fault_plans_lies(const struct pier_fault_plan *plan)
{
	return pier_fault_plans(plan, FAULT_DROP) ||
	       pier_fault_plans(plan, FAULT_MISPLACE) ||
	       pier_fault_plans(plan, FAULT_STALE) ||
	       pier_fault_plans(plan, FAULT_CORRUPT);
}

int pier_fault_fails(struct pier_fault_plan *plan, enum pier_fault_occasion occasion)
{
	const struct pier_fault_rule *rule = pier_fault_strikes(plan, FAULT_FAIL,
								occasion);

	if (!rule)
		return 0;
	pier_fail((int)rule->value, "fault plan: %s strikes %s (seed=%llu)", rule->text,
		  name_occasion(occasion), (unsigned long long)plan->seed);
	errno = (int)rule->value;
	return errno;
}
