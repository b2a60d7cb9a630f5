/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <string.h>

#include "transfers.h"

const struct kind kinds[] = {
	{ "write from bounce buffer", BOUNCED_HERE },
	{ "read into bounce buffer", BOUNCED_HERE | READS },
	{ "announce to bounce buffer", BOUNCED_HERE | BOUNCED_THERE | LANDS },
	{ "announce to direct", BOUNCED_HERE | LANDS },
};
const size_t kind_count = sizeof(kinds) / sizeof(kinds[0]);

/*
 * The plans count only calls of the transfer or of the receiver: nothing else uses the
 * devices.
 */
const struct transfer_fault transfer_faults[] = {
	{ "none", "", "", 0, "nothing goes wrong" },
	{ "local error", "", "", FORGE_LKEY | STALLS_THERE,
	  "a region with a wrong lkey" },
	{ "local error, reported", "wc@4=LOC_PROT_ERR", "", STALLS_THERE, "" },
	{ "local queue pair error", "wc@4=LOC_QP_OP_ERR", "", STALLS_THERE, "" },
	{ "remote access error", "", "", FORGE_RKEY | STALLS_THERE,
	  "a wrong rkey from the ninth chunk on" },
	{ "remote access error, reported", "wc@4=REM_ACCESS_ERR", "", STALLS_THERE, "" },
	{ "remote operation error", "wc@4=REM_OP_ERR", "", STALLS_THERE, "" },
	{ "RNR exhausted", "", "",
	  LANDS_LATER | FEW_RECEIVES | GIVES_UP_RNR | STALLS_THERE,
	  "the receiver has few receives and is not driven" },
	{ "retry exhausted", "dead@4=20ms", "", STALLS_THERE, "" },
	{ "peer killed", "", "", KILL_THERE, "the peer's process is killed" },
	{ "sender killed", "", "", KILL_HERE, "the transfer's process is killed" },
	{ "flush", "", "", BREAK_HERE | STALLS_THERE,
	  "another write fails, with a wrong rkey" },
	{ "late completion", "late@4=30ms", "", 0, "" },
	{ "late completion and event", "late@4=30ms,event@1=50ms", "", 0, "" },
	{ "completion later than the stall", "late@4=3s", "", STALLS_HERE | STALLS_THERE,
	  "" },
	{ "completion later than the deadline", "late@4=2s", "",
	  OVER_IN_TIME | STALLS_THERE, "" },
	{ "lost completion", "lost@4", "", STALLS_HERE | STALLS_THERE, "" },
	{ "CQ overrun", "overrun@4", "", STALLS_THERE, "" },
	{ "poll fails", "poll_cq@1=EIO", "", STALLS_THERE, "" },
	{ "arming fails", "late@4=30ms,req_notify_cq@1=EIO", "", 0, "" },
	{ "send refused", "post_send@4=ENOSPC", "", STALLS_THERE, "" },
	{ "later send refused", "post_send@5=ENOSPC", "", STALLS_THERE, "" },
	{ "device lost", "", "", LOSE_DEVICE_HERE | STALLS_THERE,
	  "its fourth copy fails" },
	{ "receive fails", "", "wc@4=LOC_QP_OP_ERR", FEW_RECEIVES, "" },
	{ "flush of receives", "", "", BREAK_THERE,
	  "another write at the receiver's end fails" },
	{ "late receive", "", "late@4=30ms", 0, "" },
	{ "late receive and event", "", "late@4=30ms,event@1=50ms", 0, "" },
	{ "receive later than the stall", "", "late@4=3s", STALLS_THERE, "" },
	{ "receive later than the deadline", "", "late@4=2s", OVER_IN_TIME_THERE, "" },
	{ "lost receive", "", "lost@4", STALLS_THERE, "" },
	{ "CQ overrun of receives", "", "overrun@4", FEW_RECEIVES, "" },
	{ "poll for receives fails", "", "poll_cq@1=EIO", FEW_RECEIVES, "" },
	{ "arming for receives fails", "", "late@4=30ms,req_notify_cq@1=EIO", 0, "" },
	{ "receive refused", "", "post_recv@3=ENOMEM", 0, "" },
	{ "receive refused later", "", "post_recv@9=ENOMEM", FEW_RECEIVES, "" },
	{ "receiver's device lost", "", "", LOSE_DEVICE_THERE, "its fourth copy fails" },
	{ "receiver's device lost, few receives", "", "",
	  LOSE_DEVICE_THERE | FEW_RECEIVES | STALLS_HERE, "its fourth copy fails" },
	{ "receiver's device has no flush", "", "", NO_FLUSH_THERE, "its flush fails" },
};
const size_t transfer_fault_count = sizeof(transfer_faults) / sizeof(transfer_faults[0]);

#define FAILED "rail 0 of 1 failed"

/*
 * The first matching line counts. An announced chunk is two requests: if the device
 * refuses only the second, the channel is stopped. A NIC does not learn that the other
 * end's queue pair is gone, so a timeout ends the waiting end. soft0 learns it in most
 * cases.
 */
static const struct transfer_outcome outcomes[] = {
	{ "local error", 0, 0, -EFAULT, 0, -ECANCELED, -EHOSTUNREACH, 0, 0, AFTER_RESET,
	  "LOC_PROT_ERR", "" },
	{ "local error, reported", 0, 0, -EFAULT, 0, -ECANCELED, -EHOSTUNREACH, 3, ANY,
	  AFTER_RESET, "LOC_PROT_ERR", "" },
	{ "local queue pair error", 0, 0, -EIO, 0, -ECANCELED, -EHOSTUNREACH, 3, ANY,
	  AFTER_RESET, "LOC_QP_OP_ERR", "" },
	{ "remote access error", 0, 0, -EACCES, 0, -ECANCELED, -EHOSTUNREACH, 8, 8,
	  AFTER_RESET, "REM_ACCESS_ERR", "" },
	{ "remote access error, reported", 0, 0, -EACCES, 0, -ECANCELED, -EHOSTUNREACH, 3,
	  ANY, AFTER_RESET, "REM_ACCESS_ERR", "" },
	{ "remote operation error", 0, 0, -EREMOTEIO, 0, -ECANCELED, -EHOSTUNREACH, 3,
	  ANY, AFTER_RESET, "REM_OP_ERR", "" },
	{ "RNR exhausted", 0, 0, -EAGAIN, 0, -ECANCELED, -EHOSTUNREACH, RECEIVES,
	  RECEIVES, AFTER_RESET, "RNR_RETRY_EXC_ERR", "" },
	{ "retry exhausted", LANDS, 0, -EHOSTUNREACH, 0, -ECANCELED, -EHOSTUNREACH, 1, 1,
	  AFTER_RESET, "RETRY_EXC_ERR", "" },
	{ "retry exhausted", 0, 0, -EHOSTUNREACH, 0, -ECANCELED, -EHOSTUNREACH, 3, 3,
	  AFTER_RESET, "RETRY_EXC_ERR", "" },
	{ "peer killed", 0, 0, -EHOSTUNREACH, -ECANCELED, 0, 0, ANY, ANY, GONE, FAILED,
	  "" },
	{ "sender killed", 0, 0, 0, 0, -ECANCELED, -EHOSTUNREACH, ANY, ANY, GONE, "",
	  "" },
	{ "flush", 0, 0, -EACCES, 0, -ECANCELED, -EHOSTUNREACH, ANY, ANY, AFTER_RESET,
	  "REM_ACCESS_ERR", "" },
	{ "completion later than the stall", 0, 0, -EHOSTUNREACH, 0, -ECANCELED,
	  -EHOSTUNREACH, 3, 7, AFTER_RESET, "no request completed within 800 ms", "" },
	{ "completion later than the deadline", 0, 0, -ECANCELED, 0, -EHOSTUNREACH, 0, 7,
	  7, RESUMED, "it was cancelled", "nothing new arrived" },
	{ "lost completion", 0, 0, -EHOSTUNREACH, 0, -ECANCELED, -EHOSTUNREACH, 6, 7,
	  AFTER_RESET, "no request completed within 800 ms", "" },
	{ "CQ overrun", 0, 0, -EIO, 0, -ECANCELED, -EHOSTUNREACH, 3, ANY, AFTER_RESET,
	  "poll the completion queue", "" },
	{ "poll fails", 0, 0, -EIO, 0, -EHOSTUNREACH, -ECANCELED, ANY, ANY, AFTER_RESET,
	  "poll the completion queue", "" },
	{ "send refused", LANDS, 0, -ENOSPC, 0, -ECANCELED, -EHOSTUNREACH, ANY, ANY,
	  AFTER_RESET, "1 of 2 requests were posted, and then: ", "" },
	{ "send refused", 0, 0, -ENOSPC, 0, -EHOSTUNREACH, 0, 3, 3, RESUMED,
	  "post_send@4=ENOSPC", "nothing new arrived within 800 ms" },
	{ "later send refused", LANDS, 0, -ENOSPC, 0, -EHOSTUNREACH, 0, 2, 2, RESUMED,
	  "post_send@5=ENOSPC", "nothing new arrived within 800 ms" },
	{ "later send refused", 0, 0, -ENOSPC, 0, 0, 0, 4, 4, RESUMED,
	  "post_send@5=ENOSPC", "" },
	{ "device lost", 0, 0, -ENODEV, 0, -EHOSTUNREACH, 0, 3, 3, RESUMED,
	  "the device is lost", "nothing new arrived within 800 ms" },

	{ "receive fails", LANDS, 0, -ECANCELED, -EHOSTUNREACH, -EIO, 0, ANY, 3, LACKING,
	  FAILED, "LOC_QP_OP_ERR" },
	{ "flush of receives", LANDS, 0, -ECANCELED, -EHOSTUNREACH, -EACCES, 0, ANY, ANY,
	  AFTER_RESET, FAILED, "REM_ACCESS_ERR" },
	{ "receive later than the stall", LANDS, 0, 0, 0, -EHOSTUNREACH, 0, ANY, 3,
	  RESUMED, "", "nothing new arrived within 800 ms" },
	{ "receive later than the deadline", LANDS, 0, 0, 0, -ECANCELED, 0, ANY, 3,
	  RESUMED, "", "it was cancelled" },
	{ "lost receive", LANDS, 0, 0, 0, -EHOSTUNREACH, 0, ANY, 3, LACKING, "",
	  "nothing new arrived within 800 ms" },
	{ "CQ overrun of receives", LANDS, 0, -ECANCELED, -EHOSTUNREACH, -EIO, 0, ANY, 3,
	  LACKING, FAILED, "poll the completion queue" },
	{ "poll for receives fails", LANDS, 0, -ECANCELED, -EHOSTUNREACH, -EIO, 0, ANY,
	  ANY, AFTER_RESET, FAILED, "poll the completion queue" },
	{ "receive refused", LANDS, 0, -ECANCELED, -EHOSTUNREACH, -ENOMEM, 0, 0, 0,
	  AFTER_RESET, FAILED, "post_recv@3=ENOMEM" },
	{ "receive refused later", LANDS, 0, -ECANCELED, -EHOSTUNREACH, -ENOMEM, 0, ANY,
	  ANY, AFTER_RESET, FAILED, "post_recv@9=ENOMEM" },
	{ "receiver's device lost", 0, 0, 0, 0, -ENODEV, 0, ANY, 3, LOST, "",
	  "the device is lost" },
	{ "receiver's device lost, few receives", 0, 0, -EHOSTUNREACH, 0, -ENODEV, 0, ANY,
	  3, LOST, "no request completed within 800 ms", "the device is lost" },
	{ "receiver's device has no flush", 0, 0, 0, 0, -EOPNOTSUPP, 0, ANY, ANY, RESUMED,
	  "", "no flush" },
};

enum {
	OUTCOMES = sizeof(outcomes) / sizeof(outcomes[0])
};

const struct transfer_outcome *find_transfer_outcome(const struct kind *kind,
						     const struct transfer_fault *fault)
{
	static const struct transfer_outcome untouched = { .sentence = "",
							   .receiver_sentence = "" };

	for (size_t i = 0; i < OUTCOMES; i++) {
		const struct transfer_outcome *outcome = &outcomes[i];

		if (strcmp(outcome->fault, fault->name) == 0 &&
		    (kind->traits & outcome->with) == outcome->with &&
		    !(kind->traits & outcome->without))
			return outcome;
	}
	return &untouched;
}

/* A fault at a receiver, or in its copies, needs a receiver. */
bool can_meet(const struct kind *kind, const struct transfer_fault *fault)
{
	unsigned int of_receivers = LANDS_LATER | FEW_RECEIVES | BREAK_THERE | KILL_HERE |
				    LOSE_DEVICE_THERE | NO_FLUSH_THERE;
	bool bounced = kind->traits & BOUNCED_THERE;

	if (!(kind->traits & LANDS))
		return !(fault->means & of_receivers) && !*fault->there;
	if (fault->means & LOSE_DEVICE_THERE)
		return bounced;
	return !(fault->means & NO_FLUSH_THERE) || !bounced;
}

static void print_kinds(FILE *file, const struct transfer_outcome *outcome,
			const struct transfer_fault *fault)
{
	const char *comma = "";

	for (size_t i = 0; i < kind_count; i++) {
		if (!can_meet(&kinds[i], fault) ||
		    find_transfer_outcome(&kinds[i], fault) != outcome)
			continue;
		fprintf(file, "%s%s", comma, kinds[i].name);
		comma = ", ";
	}
}

static void print_means(FILE *file, const struct transfer_fault *fault)
{
	const char *plan = *fault->here ? fault->here : fault->there;

	if (*plan)
		fprintf(file, "`%s` %s", plan, *fault->here ? "here" : "there");
	else
		fprintf(file, "%s", fault->how);
}

static void print_end(FILE *file, bool has, int error, int or_error)
{
	if (!has)
		fprintf(file, " | ");
	else if (!error)
		fprintf(file, " | all bytes");
	else
		fprintf(file, " | -%s", strerrorname_np(-error));
	if (has && or_error)
		fprintf(file, " or -%s", strerrorname_np(-or_error));
}

static void print_outcome(FILE *file, const struct transfer_outcome *outcome,
			  const struct transfer_fault *fault)
{
	static const char *const sequels[] = {
		[NOTHING] = "",
		[RESUMED] = "resumed unchanged",
		[AFTER_RESET] = "resumed over reset or other channels",
		[LACKING] =
			"restarted: the receiver may lack bytes that the transfer counts",
		[LOST] = "restarted: bytes that count as arrived are lost",
		[GONE] = "",
	};

	fprintf(file, "| %s | ", fault->name);
	print_means(file, fault);
	fprintf(file, " | ");
	print_kinds(file, outcome, fault);
	print_end(file, !(fault->means & KILL_HERE), outcome->error, outcome->or_error);
	print_end(file, !(fault->means & KILL_THERE), outcome->receiver,
		  outcome->or_receiver);
	fprintf(file, " | %s |\n", sequels[outcome->sequel]);
}

void print_transfer_outcomes(FILE *file)
{
	fprintf(file, "| fault | cause | transfers | the transfer ends with | "
		      "its receiver with | both are |\n|---|---|---|---|---|---|\n");
	for (size_t f = 0; f < transfer_fault_count; f++) {
		for (size_t i = 0; i < OUTCOMES; i++) {
			if (strcmp(outcomes[i].fault, transfer_faults[f].name) == 0)
				print_outcome(file, &outcomes[i], &transfer_faults[f]);
		}
	}
}
