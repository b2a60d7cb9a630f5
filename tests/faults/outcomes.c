/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "matrix.h"

/* The first matching line counts. */
static const struct outcome outcomes[] = {
	{ "local error", LAST, 0, -ECANCELED, 0, BROKEN, "LOC_PROT_ERR" },
	{ "local error", POSTS, 0, -EFAULT, 0, BROKEN, "LOC_PROT_ERR" },

	{ "local queue pair error", LAST, ONCE, -ECANCELED, 0, BROKEN, "LOC_QP_OP_ERR" },
	{ "local queue pair error", POSTS, 0, -EIO, 0, BROKEN, "LOC_QP_OP_ERR" },
	{ "local queue pair error", WATCHES, 0, -EPIPE, 0, BROKEN, "LOC_QP_OP_ERR" },

	{ "remote access error", LAST, 0, -ECANCELED, 0, BROKEN, "REM_ACCESS_ERR" },
	{ "remote access error", REMOTE, 0, -EACCES, 0, BROKEN, "REM_ACCESS_ERR" },

	{ "remote access error, reported", LAST, ONCE, -ECANCELED, 0, BROKEN,
	  "REM_ACCESS_ERR" },
	{ "remote access error, reported", SENDS, 0, -EACCES, 0, BROKEN,
	  "REM_ACCESS_ERR" },
	{ "remote access error, reported", RECEIVES, 0, -EFAULT, 0, BROKEN,
	  "REM_ACCESS_ERR" },
	{ "remote access error, reported", WATCHES, 0, -EPIPE, 0, BROKEN,
	  "REM_ACCESS_ERR" },

	{ "remote operation error", LAST, ONCE, -ECANCELED, 0, BROKEN, "REM_OP_ERR" },
	{ "remote operation error", POSTS, 0, -EREMOTEIO, 0, BROKEN, "REM_OP_ERR" },
	{ "remote operation error", WATCHES, 0, -EPIPE, 0, BROKEN, "REM_OP_ERR" },

	{ "RNR exhausted", NEEDS_RECEIVE, 0, -EAGAIN, 0, BROKEN, "RNR_RETRY_EXC_ERR" },

	{ "retry exhausted", LAST, 0, -ECANCELED, 0, BROKEN, "RETRY_EXC_ERR" },
	{ "retry exhausted", SENDS, 0, -EHOSTUNREACH, 0, BROKEN, "RETRY_EXC_ERR" },

	{ "peer killed", POSTS, 0, -EHOSTUNREACH, -ECANCELED, BROKEN, "" },
	{ "peer killed", WATCHES, 0, -EPIPE, -ETIMEDOUT, BROKEN, "" },

	{ "flush", SEVERAL, LAST, -EACCES, 0, BROKEN, "REM_ACCESS_ERR" },
	{ "flush", POSTS, 0, -ECANCELED, 0, BROKEN, "REM_ACCESS_ERR" },
	{ "flush", WATCHES, 0, -EPIPE, 0, BROKEN, "REM_ACCESS_ERR" },

	{ "completion later than the deadline", POSTS | WAITS, 0, -ETIMEDOUT, 0, BROKEN,
	  "did not complete within 40 ms" },
	{ "completion later than the deadline", POSTS | POLLS, 0, -EINPROGRESS, 0, WORKS,
	  "" },
	{ "completion later than the deadline", WATCHES, 0, -ETIMEDOUT, 0, WORKS,
	  "did not reach" },

	{ "lost completions", POSTS | WAITS, 0, -ETIMEDOUT, 0, BROKEN,
	  "did not complete within 40 ms" },
	{ "lost completions", POSTS | POLLS, 0, -EINPROGRESS, 0, WORKS, "" },
	{ "lost completions", WATCHES, 0, -ETIMEDOUT, 0, WORKS, "did not reach" },

	{ "CQ overrun", POSTS | WAITS, 0, -EIO, 0, BROKEN, "poll the completion queue" },
	{ "CQ overrun", POSTS | POLLS, 0, -EIO, 0, DEAF, "poll the completion queue" },
	{ "CQ overrun", WATCHES, 0, -EIO, 0, DEAF, "poll the completion queue" },

	{ "poll fails", POSTS | WAITS, 0, -EIO, 0, BROKEN, "poll the completion queue" },
	{ "poll fails", POSTS | POLLS, 0, -EIO, 0, WORKS, "poll the completion queue" },
	{ "poll fails", WATCHES, 0, -EIO, 0, WORKS, "poll the completion queue" },

	{ "arming fails", POSTS | WAITS, 0, -EIO, 0, BROKEN,
	  "ask the completion queue for an event" },
	{ "arming fails", WATCHES, 0, -EIO, 0, WORKS,
	  "ask the completion queue for an event" },

	{ "send refused", SENDS, 0, -ENOSPC, 0, WORKS, "post_send@1=ENOSPC" },
	{ "second send refused", SEVERAL, 0, -ENOSPC, 0, BROKEN, "post_send@2=ENOSPC" },
	{ "receive refused", RECEIVES, 0, -ENOSPC, 0, WORKS, "post_recv@1=ENOSPC" },
	{ "receive refused", WATCHES, 0, -ENOSPC, 0, WORKS, "post_recv@1=ENOSPC" },

	{ "registration failure", REGISTERS, 0, -ENOMEM, 0, WORKS, "reg@2=ENOMEM" },
	{ "counter refused", BINDS_COUNTER, 0, -ENOSPC, 0, WORKS,
	  "bind_counter@1=ENOSPC" },
	{ "queue pair refused", PREPARES, 0, -ENOMEM, 0, WORKS, "create_qp@2=ENOMEM" },

	{ "address refused", CONNECTS, 0, -EHOSTUNREACH, 0, USELESS,
	  "set_qp_address@1=EHOSTUNREACH" },
	{ "RTR fails", CONNECTS, 0, -ENETUNREACH, 0, USELESS, "modify_qp@2=ENETUNREACH" },
	{ "RTS fails", CONNECTS, 0, -EIO, 0, USELESS, "modify_qp@3=EIO" },
	{ "peer killed", CONNECTS | WAITS, 0, -ECONNRESET, 0, USELESS, "closed" },
	{ "peer killed", CONNECTS, 0, -ECONNREFUSED, OR_SUCCESS, USELESS, "" },
};

enum {
	OUTCOMES = sizeof(outcomes) / sizeof(outcomes[0])
};

static bool fits(const struct outcome *outcome, const struct operation *operation,
		 const struct fault *fault)
{
	unsigned int any = outcome->with & POSTS, all = outcome->with & ~any;

	/* POSTS matches either queue. */
	if (strcmp(outcome->fault, fault->name) != 0)
		return false;
	if (any && !(operation->traits & any))
		return false;
	return (operation->traits & all) == all &&
	       !(operation->traits & outcome->without);
}

const struct outcome *find_outcome(const struct operation *operation,
				   const struct fault *fault)
{
	static const struct outcome untouched = { .sentence = "" };

	for (size_t i = 0; i < OUTCOMES; i++) {
		if (fits(&outcomes[i], operation, fault))
			return &outcomes[i];
	}
	return &untouched;
}

static void print_operations(FILE *file, const struct outcome *outcome,
			     const struct fault *fault)
{
	const char *comma = "";

	for (size_t i = 0; i < operation_count; i++) {
		if (find_outcome(&operations[i], fault) != outcome)
			continue;
		fprintf(file, "%s%s", comma, operations[i].name);
		comma = ", ";
	}
}

static void print_outcome(FILE *file, const struct outcome *outcome,
			  const struct fault *fault)
{
	static const char *const aftermaths[] = {
		[WORKS] = "works",
		[BROKEN] = "is broken",
		[DEAF] = "is broken by the next wait",
		[USELESS] = "can only be destroyed",
	};

	fprintf(file, "| %s | %s%s%s | ", fault->name, *fault->plan ? "`" : "",
		*fault->plan ? fault->plan : fault->how, *fault->plan ? "`" : "");
	print_operations(file, outcome, fault);
	if (outcome->error == -EINPROGRESS)
		fprintf(file, " | not complete");
	else
		fprintf(file, " | -%s", strerrorname_np(-outcome->error));
	if (outcome->or_error == OR_SUCCESS)
		fprintf(file, " or 0");
	else if (outcome->or_error)
		fprintf(file, " or -%s", strerrorname_np(-outcome->or_error));
	fprintf(file, " | %s |\n", aftermaths[outcome->aftermath]);
}

void print_outcomes(FILE *file)
{
	fprintf(file, "| fault | cause | operations | result | and the "
		      "channel |\n|---|---|---|---|---|\n");
	for (size_t f = 0; f < fault_count; f++) {
		for (size_t i = 0; i < OUTCOMES; i++) {
			if (strcmp(outcomes[i].fault, faults[f].name) == 0)
				print_outcome(file, &outcomes[i], &faults[f]);
		}
	}
}
