/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stddef.h>

/*
 * What soft0 does not have. Each function fails as libibverbs does for a driver without
 * it (libibverbs/dummy_ops.c). Left out, the real libibverbs would be called with an
 * object of soft0.
 *
 * They ignore their arguments, so one body serves many names: the caller of a C
 * function removes the arguments in every ABI of Linux. This file does not include
 * <infiniband/verbs.h>, which declares some of the names with their parameters.
 */
#define BODY(type, name)	 static __attribute__((used)) type name(void)
#define REFUSE(type, name, body) type name(void) __attribute__((alias(#body)));

BODY(void *, no_object)
{
	errno = EOPNOTSUPP;
	return NULL;
}
REFUSE(void *, ibv_import_device, no_object)
REFUSE(void *, ibv_import_dm, no_object)
REFUSE(void *, ibv_import_mr, no_object)
REFUSE(void *, ibv_import_pd, no_object)

BODY(int, no_function)
{
	errno = EOPNOTSUPP;
	return EOPNOTSUPP;
}
REFUSE(int, ibv_attach_mcast, no_function)
REFUSE(int, ibv_detach_mcast, no_function)
REFUSE(int, ibv_query_ece, no_function)
REFUSE(int, ibv_set_ece, no_function)

BODY(void, do_nothing)
{
}
REFUSE(void, ibv_unimport_dm, do_nothing)
REFUSE(void, ibv_unimport_mr, do_nothing)
REFUSE(void, ibv_unimport_pd, do_nothing)

/* soft0 makes no promise about the order of bytes within a message. */
BODY(int, no_order)
{
	return 0;
}
REFUSE(int, ibv_query_qp_data_in_order, no_order)

/* A GID of soft0 belongs to no interface of the kernel. */
BODY(int, no_neighbour)
{
	return -EHOSTUNREACH;
}
REFUSE(int, ibv_resolve_eth_l2_from_gid, no_neighbour)
