/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_INTERFACES_H
#define PIER_SOFT_INTERFACES_H

#include <netinet/in.h>

struct soft_listeners;

/* Reads PIER_SOFT_ADDRESS and PIER_SOFT_PEERS. 0; -EINVAL with a sentence. */
int pier_soft_choose_addresses(struct soft_listeners *listeners,
			       struct in6_addr *ret_bind);

#endif
