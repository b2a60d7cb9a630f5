/* SPDX-License-Identifier: BSD-3-Clause */
#include "matrix.h"

/* "reg@2": the first registration is that of the area. */
const struct fault faults[] = {
	{ "none", "", 0, "nothing goes wrong" },
	{ "local error", "", FORGE_LKEY, "an element outside any region" },
	{ "local queue pair error", "wc@1=LOC_QP_OP_ERR", HITS_COMPLETIONS, "" },
	{ "remote access error", "", FORGE_RKEY, "a wrong rkey" },
	{ "remote access error, reported", "wc@1=REM_ACCESS_ERR", HITS_COMPLETIONS, "" },
	{ "remote operation error", "wc@1=REM_OP_ERR", HITS_COMPLETIONS, "" },
	{ "RNR exhausted", "", NO_RECEIVE, "the peer posts no receive" },
	{ "retry exhausted", "dead@1=20ms", HITS_SENDS, "" },
	{ "peer killed", "", KILL_PEER, "its process is killed" },
	{ "flush", "", BREAK_BEFORE, "a write with a wrong rkey before" },
	{ "late completion", "late@1=30ms", SLOW | HITS_COMPLETIONS, "" },
	{ "late completion and event", "late@1=30ms,event@1=50ms",
	  SLOW | HITS_COMPLETIONS, "" },
	{ "completion later than the deadline", "late@1=300ms",
	  IMPATIENT | HITS_COMPLETIONS, "" },
	{ "lost completions", "lost@1+", IMPATIENT | HITS_COMPLETIONS | LOSES_ALL, "" },
	{ "CQ overrun", "overrun@1", HITS_COMPLETIONS, "" },
	{ "poll fails", "poll_cq@1=EIO", HITS_COMPLETIONS, "" },
	{ "arming fails", "late@1=30ms,req_notify_cq@1=EIO", HITS_COMPLETIONS, "" },
	{ "send refused", "post_send@1=ENOSPC", HITS_SENDS, "" },
	{ "second send refused", "post_send@2=ENOSPC", HITS_SECOND_SEND, "" },
	{ "receive refused", "post_recv@1=ENOSPC", HITS_RECEIVES, "" },
	{ "registration failure", "reg@2=ENOMEM", 0, "" },
	{ "counter refused", "bind_counter@1=ENOSPC", 0, "" },
	{ "address refused", "set_qp_address@1=EHOSTUNREACH", AT_CONNECTING, "" },
	{ "RTR fails", "modify_qp@2=ENETUNREACH", AT_CONNECTING, "" },
	{ "RTS fails", "modify_qp@3=EIO", AT_CONNECTING, "" },
	{ "queue pair refused", "create_qp@2=ENOMEM", 0, "" },
};
const size_t fault_count = sizeof(faults) / sizeof(faults[0]);
