/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "provider/provider.h"
#include "address.h"
#include "core/error.h"
#include "provider/soft/engine.h"
#include "provider/soft/soft.h"

/*
 * The address on the wire: version (1 byte), count (1), port (2, little-endian), secret
 * (16), then `count` addresses of 16 bytes each, IPv4 ones as ::ffff:a.b.c.d.
 */
enum {
	/*
	 * The version of the handshake and of everything after it; the form of the
	 * address is that of version 1.
	 */
	ADDRESS_VERSION = 3,
	FIXED_SIZE = 20,
	ONE_SIZE = 16
};

_Static_assert(FIXED_SIZE + SOFT_MAX_ADDRESSES * ONE_SIZE <= PIER_PROVIDER_ADDRESS_MAX,
	       "must fit an endpoint");

int pier_soft_pack_address(const struct soft_address *address, uint8_t *ret_bytes,
			   size_t size)
{
	size_t length = FIXED_SIZE + (size_t)address->count * ONE_SIZE;
	uint16_t port = htole16(address->port);

	if (size < length)
		return pier_fail(ENOSPC,
				 "soft0: the address has %zu bytes, the buffer %zu",
				 length, size);
	ret_bytes[0] = ADDRESS_VERSION;
	ret_bytes[1] = (uint8_t)address->count;
	memcpy(ret_bytes + 2, &port, 2);
	memcpy(ret_bytes + 4, address->secret, SOFT_SECRET_SIZE);
	memcpy(ret_bytes + FIXED_SIZE, address->addresses,
	       (size_t)address->count * ONE_SIZE);
	return (int)length;
}

/* A connection to 0.0.0.0 goes to this host (ip(7): INADDR_ANY). */
bool pier_soft_is_callable(const struct in6_addr *one)
{
	const uint8_t *v4 = one->s6_addr + 12;

	if (IN6_IS_ADDR_V4MAPPED(one))
		return v4[0] != 0 && v4[0] < 224;
	return !IN6_IS_ADDR_UNSPECIFIED(one) && !IN6_IS_ADDR_MULTICAST(one) &&
	       !IN6_IS_ADDR_LINKLOCAL(one);
}

int pier_soft_unpack_address(const uint8_t *bytes, size_t length,
			     struct soft_address *ret_address)
{
	struct soft_address address = { 0 };
	uint16_t port;

	if (length < 1)
		return pier_fail(EINVAL, "soft0: the peer's address is empty");
	if (bytes[0] != ADDRESS_VERSION)
		return pier_fail(EPROTONOSUPPORT,
				 "soft0: the peer's address has version "
				 "%u, this is %d",
				 bytes[0], ADDRESS_VERSION);
	if (length < FIXED_SIZE || bytes[1] > SOFT_MAX_ADDRESSES ||
	    length != FIXED_SIZE + (size_t)bytes[1] * ONE_SIZE)
		return pier_fail(EINVAL,
				 "soft0: the peer's address of %zu bytes is "
				 "malformed",
				 length);
	address.count = bytes[1];
	memcpy(&port, bytes + 2, 2);
	address.port = le16toh(port);
	memcpy(address.secret, bytes + 4, SOFT_SECRET_SIZE);
	memcpy(address.addresses, bytes + FIXED_SIZE, (size_t)address.count * ONE_SIZE);
	for (uint32_t i = 0; i < address.count; i++) {
		if (address.port == 0 || !pier_soft_is_callable(&address.addresses[i]))
			return pier_fail(EINVAL, "soft0: the peer's address names a port "
						 "or host that nobody can have");
	}
	*ret_address = address;
	return 0;
}

int pier_soft_get_qp_address(struct ibv_qp *ibv_qp, uint8_t *ret_address, size_t size)
{
	const struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	const struct soft_listeners *listeners = &soft_context_of(qp)->listeners;
	struct soft_address address = {
		.port = listeners->port,
		.count = listeners->count,
	};

	pier_soft_lock(soft_context_of(qp));
	memcpy(address.secret, qp->secret, sizeof(address.secret));
	pier_soft_unlock(soft_context_of(qp));
	memcpy(address.addresses, listeners->addresses, sizeof(address.addresses));
	return pier_soft_pack_address(&address, ret_address, size);
}

int pier_soft_set_qp_address(struct ibv_qp *ibv_qp, const uint8_t *bytes, size_t length)
{
	struct soft_qp *qp = (struct soft_qp *)ibv_qp;
	struct soft_context *context = soft_context_of(qp);
	struct soft_address address;
	int error = pier_soft_unpack_address(bytes, length, &address);

	if (error)
		return error;
	pthread_mutex_lock(&ibv_qp->mutex);
	pier_soft_lock(context);
	qp->peer_address = address;
	qp->has_peer_address = true;
	pier_soft_unlock(context);
	pthread_mutex_unlock(&ibv_qp->mutex);
	return 0;
}
