/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "ud_address.h"
#include "core/error.h"
#include "provider/soft/connect/datagram_socket.h"
#include "provider/soft/soft.h"
#include "transition.h"

struct soft_ah {
	struct ibv_ah ibv;
	struct ibv_global_route route;
};

/* As with hardware, which resolves the GID here. */
static int find_receiver(const struct soft_context *context, const union ibv_gid *gid)
{
	char text[INET6_ADDRSTRLEN];
	struct sockaddr_un name;

	if (context->listeners.datagram_fd < 0)
		return pier_fail(EOPNOTSUPP,
				 "soft0: no datagrams without the folder that "
				 "processes of one user share");
	pier_soft_datagram_name(&context->meeting, gid, &name);
	if (access(name.sun_path, F_OK) == 0)
		return 0;
	inet_ntop(AF_INET6, gid->raw, text, sizeof(text));
	return pier_fail(EHOSTUNREACH,
			 "soft0: no process of this user on this host has the GID %s: "
			 "datagrams (UD) do not reach other hosts",
			 text);
}

struct ibv_ah *pier_soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	int error = pier_soft_check_path(attr);
	struct soft_ah *ah;

	if (!error)
		error = find_receiver(soft_context(pd->context), &attr->grh.dgid);
	ah = error ? NULL : calloc(1, sizeof(*ah));
	if (!ah) {
		errno = error ? -error : ENOMEM;
		return NULL;
	}
	ah->ibv.context = pd->context;
	ah->ibv.pd = pd;
	ah->route = attr->grh;
	atomic_fetch_add(&((struct soft_pd *)pd)->users, 1);
	return &ah->ibv;
}

int pier_soft_destroy_ah(struct ibv_ah *ibv_ah)
{
	atomic_fetch_sub(&((struct soft_pd *)ibv_ah->pd)->users, 1);
	free((struct soft_ah *)ibv_ah);
	return 0;
}

int pier_soft_check_datagram(const struct soft_qp *qp, const struct ibv_send_wr *wr)
{
	if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM)
		return pier_fail(
			EINVAL,
			"soft0: opcode %d on a UD queue pair, which can only send",
			(int)wr->opcode);
	if (!wr->wr.ud.ah || wr->wr.ud.ah->pd != qp->ibv.pd)
		return pier_fail(EINVAL, "soft0: a datagram needs an address handle of "
					 "the PD of its queue pair");
	if (wr->wr.ud.remote_qpn > 0xffffff)
		return pier_fail(EINVAL, "soft0: remote_qpn %#x has more than 24 bits",
				 wr->wr.ud.remote_qpn);
	return 0;
}

void pier_soft_store_destination(struct soft_qp *qp, uint64_t position,
				 const struct ibv_send_wr *wr)
{
	struct soft_destination *to = &qp->ud.destinations[position % qp->sq.depth];
	uint32_t qkey = wr->wr.ud.remote_qkey;

	to->route = ((const struct soft_ah *)wr->wr.ud.ah)->route;
	to->qpn = wr->wr.ud.remote_qpn;
	/* A Q_Key with the highest bit set stands for that of the sender (IBTA 10.2.5).
	 */
	to->qkey = qkey >> 31 ? qp->attr.qkey : qkey;
}
