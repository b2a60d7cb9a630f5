/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_LIMITS_H
#define PIER_TOOLS_DOCTOR_LIMITS_H

struct facts;

/* Keep the limits of this process, its environment, and which devices it may open. */
void keep_process(struct facts *facts);

#endif
