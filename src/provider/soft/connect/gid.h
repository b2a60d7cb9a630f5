/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_GID_H
#define PIER_SOFT_GID_H

#include <stdbool.h>

#include <infiniband/verbs.h>

/* False: no random numbers. */
bool pier_soft_make_gid(union ibv_gid *ret_gid);
/* Whether the GID has the form of those that pier_soft_make_gid() makes. */
bool pier_soft_is_gid(const union ibv_gid *gid);

#endif
