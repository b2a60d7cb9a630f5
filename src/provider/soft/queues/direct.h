/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_DIRECT_H
#define PIER_SOFT_DIRECT_H

/* WRITEs and READs that this end executes by itself, by a grant. */

struct soft_qp;
struct soft_send;

enum soft_direct_result {
	SOFT_DIRECT_UNUSED, /* the request goes through the ring */
	SOFT_DIRECT_LATER,  /* earlier requests have to complete, or the turn is over */
	SOFT_DIRECT_DONE,   /* all bytes are copied; the peer needs the header */
	SOFT_DIRECT_SILENT, /* all bytes are copied, and the peer needs no header */
	SOFT_DIRECT_FAILED, /* memory of this end has vanished */
};

/* With the engine locked. */
enum soft_direct_result pier_soft_copy_directly(struct soft_qp *qp,
						struct soft_send *send);

#endif
