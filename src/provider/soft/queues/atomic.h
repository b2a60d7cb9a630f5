/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_ATOMIC_H
#define PIER_SOFT_ATOMIC_H

#include <stdint.h>

#include <infiniband/verbs.h>

#include "provider/soft/link/frame.h"

struct soft_qp;

enum ibv_atomic_cap pier_soft_atomic_cap(void);
/* With the engine locked. NO_NAK: the word exists, and the peer may change it. */
enum soft_syndrome pier_soft_check_atomic(struct soft_qp *qp,
					  const struct soft_header *header);
/* Executes it with the operands of the link. `ret_word`: the value before. */
enum soft_syndrome pier_soft_execute_atomic(struct soft_qp *qp,
					    const struct soft_header *header,
					    uint64_t *ret_word);

#endif
