/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_CP_IPC_H
#define PIER_TOOLS_CP_IPC_H

#include "remote/control.h"
#include "link.h"

/*
 * Agree with the other process of this host on whether the sender copies chunks straight
 * into the receiver's memory, without a NIC (pier_buffer_copy()). Both memories are
 * allocated. Sets link->ipc and, for the sender, link->peer; or else the reason in
 * link->report, if the memory is not host memory, which needs no such path.
 *
 * Returns 0, or -1 with control->failure set.
 */
int agree_on_ipc(struct link *link, enum cp_role role, struct control *control);

#endif
