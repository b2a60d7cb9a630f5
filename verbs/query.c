/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "provider/provider.h"

/* What libibverbs reads from sysfs or asks the kernel for: ports, GIDs and P_Keys. */

enum {
	/* The only entry, which a RoCE port always has (IBTA Annex A16.10.6). */
	DEFAULT_PKEY = 0xffff,
	/* sizeof(struct _compat_ibv_port_attr) of libibverbs/verbs.c: up to `flags` */
	COMPAT_PORT_SIZE = offsetof(struct ibv_port_attr, port_cap_flags2)
};

/* Programs that were built before libibverbs 21 have the shorter struct. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port,
		   struct _compat_ibv_port_attr *ret_attr)
{
	struct verbs_context *verbs = verbs_get_ctx(context);

	/* NULL: the context of a provider older than the struct; soft0's has it. */
	if (!verbs)
		return EOPNOTSUPP;
	return verbs->query_port(context, port, (struct ibv_port_attr *)ret_attr,
				 COMPAT_PORT_SIZE);
}

/* Since libibverbs 61, in units of 100 Mb/s. */
int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *ret_speed);

int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *ret_speed)
{
	struct ibv_port_attr attr;
	int error = EINVAL;

	if (port <= UINT8_MAX)
		error = pier_soft_provider.query_port(context, (uint8_t)port, &attr);
	/* 4 lanes of 25 Gb/s */
	if (!error)
		*ret_speed = 1000;
	return error;
}

/* As the kernel does, EINVAL beyond the table, which has one entry. */
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
		      struct ibv_gid_entry *ret_entry, uint32_t flags, size_t size)
{
	struct ibv_gid_entry entry;
	int error;

	if (port != 1 || index != 0 || flags || size < sizeof(entry))
		return EINVAL;
	error = pier_soft_provider.query_gid(context, (uint8_t)port, index, &entry);
	if (error)
		return error;
	memset(ret_entry, 0, size);
	memcpy(ret_entry, &entry, sizeof(entry));
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context,
			     struct ibv_gid_entry *ret_entries, size_t count,
			     uint32_t flags, size_t size)
{
	int error = EINVAL;

	if (count > 0)
		error = _ibv_query_gid_ex(context, 1, 0, ret_entries, flags, size);
	return error ? -error : 1;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index,
		  union ibv_gid *ret_gid)
{
	struct ibv_gid_entry entry;

	errno = _ibv_query_gid_ex(context, port, (uint32_t)index, &entry, 0,
				  sizeof(entry));
	if (errno)
		return -1;
	*ret_gid = entry.gid;
	return 0;
}

/*
 * Of libibverbs' private ABI (libibverbs/driver.h), and yet used by ibv_devinfo and
 * pyverbs. The type is an enum ibv_gid_type_sysfs, whose 1 is RoCE v2.
 */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
		       unsigned int *ret_type);

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index,
		       unsigned int *ret_type)
{
	union ibv_gid gid;

	*ret_type = 1;
	return ibv_query_gid(context, port, (int)index, &gid);
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *ret_pkey)
{
	(void)context;
	if (port != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*ret_pkey = htobe16(DEFAULT_PKEY);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
	__be16 only;

	if (ibv_query_pkey(context, port, 0, &only))
		return -1;
	if (pkey == only)
		return 0;
	errno = EINVAL;
	return -1;
}
