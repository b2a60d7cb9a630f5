/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "units.h"

/* The checks of the limits of a process. */

enum {
	/*
	 * Descriptors of one rank: the standard ones, those of the device, of a GPU's
	 * driver and of files; and for each peer the events of a channel. Over TCP, soft0
	 * needs two sockets more.
	 */
	RANK_FDS = 64,
	PEER_FDS = 3,
	/*
	 * Locked memory of one rank without its data: the queues of the device; and for
	 * each peer a send queue, a receive queue and a completion queue.
	 */
	RANK_LOCKED = 1 << 20,
	PEER_LOCKED = 64 << 10,
	DATA_LOCKED = 1 << 30, /* with less, most programs fail to register their data */
	DEFAULT_RANKS = 8,
};

static unsigned long planned_ranks(const struct report *report)
{
	return report->ranks ? report->ranks : DEFAULT_RANKS;
}

/* False: no limit. */
static bool read_limit(struct report *report, const char *name,
		       unsigned long long *ret_limit)
{
	const char *text = facts_get(report->facts, "pier/limit/%s", name);

	if (!text || strcmp(text, "unlimited") == 0)
		return false;
	*ret_limit = strtoull(text, NULL, 10);
	return true;
}

static void check_nofile(struct report *report)
{
	unsigned long ranks = planned_ranks(report);
	unsigned long long need = RANK_FDS + (unsigned long long)PEER_FDS * ranks, limit;
	char remedy[64];

	snprintf(remedy, sizeof(remedy), "ulimit -n %llu", need);
	if (!read_limit(report, "nofile", &limit))
		conclude(report, OK, "", "", "ulimit -n: unlimited");
	else
		conclude(report, limit < need ? WARNING : OK, "",
			 limit < need ? remedy : "",
			 "ulimit -n: %llu; a rank that is connected to %lu others needs "
			 "about %llu",
			 limit, ranks, need);
}

/*
 * CAP_IPC_LOCK lifts the limit, but only if the process has it in the first user
 * namespace: ib_umem_get() of the kernel. Containers of Docker lack it by default.
 */
static void check_memlock(struct report *report)
{
	unsigned long ranks = planned_ranks(report);
	unsigned long long queues = RANK_LOCKED + (unsigned long long)PEER_LOCKED * ranks;
	unsigned long long limit;
	char has[32], left[32];

	if (!read_limit(report, "memlock", &limit)) {
		conclude(report, OK, "", "", "ulimit -l: unlimited");
		return;
	}
	format_bytes(limit, has, sizeof(has));
	format_bytes(limit > queues ? limit - queues : 0, left, sizeof(left));
	if (facts_number(report->facts, "pier/cap_ipc_lock") == 1 &&
	    is_first_user_namespace(report->facts))
		conclude(report, OK, "", "",
			 "ulimit -l: %s; this process is exempt (CAP_IPC_LOCK)", has);
	else
		conclude(report, limit < queues + DATA_LOCKED ? WARNING : OK, "",
			 limit < queues + DATA_LOCKED
				 ? "ulimit -l unlimited (/etc/security/limits.d; "
				   "LimitMEMLOCK= of systemd; docker run --ulimit "
				   "memlock=-1)"
				 : "",
			 "ulimit -l: %s; the queues of a rank that is connected to %lu "
			 "others leave %s for registered data",
			 has, ranks, left);
}

const struct check doctor_limit_checks[] = {
	{ "limits", "open files", check_nofile },
	{ "limits", "locked memory", check_memlock },
	{ 0 },
};
