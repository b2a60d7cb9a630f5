/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "datagram.h"
#include "core/error.h"
#include "core/log.h"
#include "core/wire.h"
#include "provider/soft/connect/listen.h"
#include "provider/soft/engine.h"
#include "provider/soft/link/link.h"
#include "provider/soft/regions/vector.h"
#include "qp.h"
#include "responder.h"

enum {
	SOFT_DATAGRAM_SOLICITED = 1,
	SOFT_DATAGRAM_IMMEDIATE = 2
};

static const uint8_t magic[4] = { 'p', 'u', 'd', 1 }; /* with the version */

/* Magic (4 bytes), flags (1), zeros (3), then four words; all but immediate are LE. */
void pier_soft_pack_envelope(const struct soft_envelope *envelope, uint8_t *ret_bytes)
{
	memset(ret_bytes, 0, 8);
	memcpy(ret_bytes, magic, sizeof(magic));
	ret_bytes[4] = envelope->flags;
	pier_put_le32(ret_bytes + 8, envelope->from_qpn);
	pier_put_le32(ret_bytes + 12, envelope->to_qpn);
	pier_put_le32(ret_bytes + 16, envelope->qkey);
	memcpy(ret_bytes + 20, &envelope->immediate, sizeof(envelope->immediate));
}

bool pier_soft_unpack_envelope(const uint8_t *bytes, struct soft_envelope *ret_envelope)
{
	static const uint8_t zeros[3];

	if (memcmp(bytes, magic, sizeof(magic)) != 0 ||
	    memcmp(bytes + 5, zeros, sizeof(zeros)) != 0 ||
	    (bytes[4] & ~(SOFT_DATAGRAM_SOLICITED | SOFT_DATAGRAM_IMMEDIATE)))
		return false;
	*ret_envelope = (struct soft_envelope){
		.flags = bytes[4],
		.from_qpn = pier_get_le32(bytes + 8),
		.to_qpn = pier_get_le32(bytes + 12),
		.qkey = pier_get_le32(bytes + 16),
	};
	memcpy(&ret_envelope->immediate, bytes + 20, sizeof(ret_envelope->immediate));
	return ret_envelope->from_qpn <= 0xffffff;
}

/* The GRH of a RoCE v2 packet with IPv6 addresses, which is its IPv6 header. */
static struct ibv_grh make_grh(const struct ibv_global_route *route,
			       const union ibv_gid *from, size_t payload, bool immediate)
{
	/* UDP, BTH, DETH and ICRC, the immediate data, and the payload in whole words. */
	size_t length = 8 + 12 + 8 + 4 + (immediate ? 4 : 0) + ((payload + 3) & ~3ul);

	_Static_assert(sizeof(struct ibv_grh) == SOFT_GRH_SIZE, "as on the wire");
	return (struct ibv_grh){
		.version_tclass_flow = htobe32(6u << 28 |
					       (uint32_t)route->traffic_class << 20 |
					       (route->flow_label & 0xfffff)),
		.paylen = htobe16((uint16_t)length),
		.next_hdr = IPPROTO_UDP,
		.hop_limit = route->hop_limit,
		.sgid = *from,
		.dgid = route->dgid,
	};
}

int pier_soft_check_path(const struct ibv_ah_attr *path)
{
	if (!path->is_global)
		return pier_fail(EINVAL, "soft0: the path needs a GID: is_global and "
					 "grh.dgid (the link layer is Ethernet)");
	if (path->grh.sgid_index != 0)
		return pier_fail(EINVAL, "soft0: sgid_index %u: there is only GID 0",
				 path->grh.sgid_index);
	if (path->port_num > 1)
		return pier_fail(EINVAL, "soft0: port %u: must be 1 to 1",
				 path->port_num);
	return 0;
}

struct soft_ah {
	struct ibv_ah ibv;
	struct ibv_global_route route;
};

/* As with hardware, which resolves the GID here. */
static int check_receiver(const struct soft_context *context, const union ibv_gid *gid)
{
	char text[INET6_ADDRSTRLEN];
	struct sockaddr_un name;

	if (context->node.listeners.datagram_fd < 0)
		return pier_fail(EOPNOTSUPP,
				 "soft0: no datagrams without the folder that "
				 "processes of one user share");
	pier_soft_datagram_name(&context->node.meeting, gid, &name);
	if (faccessat(AT_FDCWD, name.sun_path, F_OK, AT_EACCESS) == 0)
		return 0;
	inet_ntop(AF_INET6, gid->raw, text, sizeof(text));
	return pier_fail(EHOSTUNREACH,
			 "soft0: no process that uses the folder %s has the GID %s: set "
			 "the same XDG_RUNTIME_DIR for both ends; datagrams (UD) do not "
			 "reach other hosts",
			 context->node.meeting.folder, text);
}

struct ibv_ah *pier_soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	int error = pier_soft_check_path(attr);
	struct soft_ah *ah;

	if (!error)
		error = check_receiver(soft_context(pd->context), &attr->grh.dgid);
	ah = error ? NULL : calloc(1, sizeof(*ah));
	if (!ah) {
		errno = error ? -error : ENOMEM;
		return NULL;
	}
	ah->ibv.context = pd->context;
	ah->ibv.pd = pd;
	ah->route = attr->grh;
	atomic_fetch_add(&soft_pd(pd)->users, 1);
	return &ah->ibv;
}

int pier_soft_destroy_ah(struct ibv_ah *ibv_ah)
{
	atomic_fetch_sub(&soft_pd(ibv_ah->pd)->users, 1);
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

enum {
	DATAGRAMS_PER_TURN = 64,
	/*
	 * The kernel queues about 10 datagrams for a receiver (net.unix.max_dgram_qlen),
	 * which is less than a burst. Like Ethernet with flow control the sender waits
	 * for room, but not for a receiver that does not run.
	 */
	RETRY_NANOSECONDS = 20000,
	PATIENCE_NANOSECONDS = 200000000
};

static bool is_slow(const struct soft_ud *ud, const union ibv_gid *gid)
{
	return ud->has_slow && memcmp(&ud->slow, gid, sizeof(*gid)) == 0;
}

/* The receiver has no room. False: the datagram is lost. */
static bool wait_for_receiver(struct soft_qp *qp, const union ibv_gid *gid)
{
	uint64_t now = soft_context_of(qp)->engine.now;
	struct soft_ud *ud = &qp->ud;

	if (is_slow(ud, gid))
		return false;
	if (!ud->stalled_since)
		ud->stalled_since = now;
	if (now - ud->stalled_since < PATIENCE_NANOSECONDS) {
		qp->sq.rnr_until = now + RETRY_NANOSECONDS;
		return true;
	}
	ud->slow = *gid;
	ud->has_slow = true;
	return false;
}

static bool build_datagram(struct soft_qp *qp, struct soft_send *send, uint8_t *headers,
			   struct soft_vector *vector)
{
	const struct soft_destination *to =
		&qp->ud.destinations[qp->sq.done % qp->sq.depth];
	bool immediate = send->opcode == IBV_WR_SEND_WITH_IMM;
	const struct soft_envelope envelope = {
		.flags = (send->flags & IBV_SEND_SOLICITED ? SOFT_DATAGRAM_SOLICITED
							   : 0) |
			 (immediate ? SOFT_DATAGRAM_IMMEDIATE : 0),
		.from_qpn = qp->ibv.qp_num,
		.to_qpn = to->qpn,
		.qkey = to->qkey,
		.immediate = send->immediate,
	};
	struct ibv_grh grh = make_grh(&to->route, &soft_context_of(qp)->node.gid,
				      send->length, immediate);

	pier_soft_pack_envelope(&envelope, headers);
	memcpy(headers + SOFT_ENVELOPE_SIZE, &grh, SOFT_GRH_SIZE);
	pier_soft_vector_init(vector, false);
	pier_soft_vector_add(vector, headers, SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE);
	if (send->flags & IBV_SEND_INLINE) {
		pier_soft_vector_add(vector, send->inline_data, send->length);
		return true;
	}
	return pier_soft_vector_add_sges(vector, &qp->reach, send->sges, send->sge_count,
					 0, send->length, 0) &&
	       vector->bytes == SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE + send->length;
}

/* 0 or -errno. */
static int send_datagram(struct soft_qp *qp, struct soft_send *send,
			 const union ibv_gid *gid)
{
	const struct soft_context *context = soft_context_of(qp);
	uint8_t headers[SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE];
	struct soft_vector vector;
	struct sockaddr_un name;

	if (!build_datagram(qp, send, headers, &vector))
		return -EFAULT;
	pier_soft_datagram_name(&context->node.meeting, gid, &name);
	if (pier_soft_vector_send(&vector, context->node.listeners.datagram_fd, &name) <
	    0)
		return -errno;
	return 0;
}

/*
 * False: the request waits. A datagram to nobody is lost, as on a network. So is one
 * above the MTU, without an error (IBTA C10-93.1.1).
 */
static bool send_first(struct soft_qp *qp)
{
	struct soft_send *send = pier_soft_send_at(&qp->sq, qp->sq.done);
	const union ibv_gid *gid =
		&qp->ud.destinations[qp->sq.done % qp->sq.depth].route.dgid;
	int error = 0;

	if (send->length <= SOFT_DATAGRAM_MTU)
		error = send_datagram(qp, send, gid);
	if (error == -EINTR || (error == -EAGAIN && wait_for_receiver(qp, gid)))
		return false;
	if (error == -EFAULT) {
		pier_soft_fail_qp(qp, IBV_WC_LOC_PROT_ERR);
		return false;
	}
	qp->ud.stalled_since = 0;
	soft_context_of(qp)->engine.last_datagram = soft_context_of(qp)->engine.now;
	if (error == 0 && is_slow(&qp->ud, gid))
		qp->ud.has_slow = false;
	pier_soft_complete_send(qp, IBV_WC_SUCCESS);
	return true;
}

void pier_soft_send_datagrams(struct soft_qp *qp)
{
	struct soft_send_queue *sq = &qp->sq;

	for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
		if (qp->ibv.state != IBV_QPS_RTS || sq->rnr_until ||
		    !pier_soft_has_sends(sq))
			return;
		if (!send_first(qp))
			break;
	}
	pier_soft_activate(&qp->end.work);
}

void pier_soft_drain_datagrams(struct soft_qp *qp)
{
	const struct timespec retry = { .tv_nsec = RETRY_NANOSECONDS };
	struct soft_context *context = soft_context_of(qp);
	uint64_t end = pier_soft_now() + PATIENCE_NANOSECONDS;

	while (qp->ibv.state == IBV_QPS_RTS && pier_soft_has_sends(&qp->sq)) {
		context->engine.now = pier_soft_now();
		qp->sq.rnr_until = 0;
		pier_soft_send_datagrams(qp);
		if (context->engine.stepped || pier_soft_now() >= end)
			return;
		/* The receiver may be served by this engine. */
		pier_soft_unlock(&context->engine);
		nanosleep(&retry, NULL);
		pier_soft_lock(&context->engine);
	}
}

enum {
	DATAGRAMS_PER_EVENT = 64
};

/* Takes the next datagram from the socket without reading it. */
static void discard_datagram(int fd)
{
	char byte;

	recv(fd, &byte, sizeof(byte), MSG_DONTWAIT);
}

/* NULL: nobody takes it. */
static struct soft_qp *find_receiver(struct soft_context *context, const uint8_t *bytes,
				     ssize_t length, struct soft_envelope *ret_envelope)
{
	struct soft_qp *qp;

	if (length < SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE ||
	    length > SOFT_ENVELOPE_SIZE + SOFT_GRH_SIZE + SOFT_DATAGRAM_MTU ||
	    !pier_soft_unpack_envelope(bytes, ret_envelope))
		return NULL;
	qp = pier_soft_find_qp(context, ret_envelope->to_qpn);
	if (!qp || qp->ibv.qp_type != IBV_QPT_UD || qp->attr.qkey != ret_envelope->qkey ||
	    (qp->ibv.state != IBV_QPS_RTR && qp->ibv.state != IBV_QPS_RTS))
		return NULL;
	return pier_soft_take_next_recv(qp) ? qp : NULL;
}

/* The kernel copies; a receive whose memory is not valid fails with the datagram. */
static enum ibv_wc_status read_datagram(struct soft_qp *qp, uint32_t length)
{
	const struct soft_recv *recv = pier_soft_current_recv(qp);
	int fd = soft_context_of(qp)->node.listeners.datagram_fd;
	uint8_t envelope[SOFT_ENVELOPE_SIZE];
	struct soft_vector vector;
	bool valid;

	pier_soft_vector_init(&vector, true);
	pier_soft_vector_add(&vector, envelope, sizeof(envelope));
	valid = pier_soft_vector_add_sges(&vector, &qp->reach, recv->sges,
					  recv->sge_count, 0, length,
					  IBV_ACCESS_LOCAL_WRITE) &&
		vector.bytes == SOFT_ENVELOPE_SIZE + length;
	if (valid && pier_soft_vector_receive(&vector, fd) >= 0)
		return IBV_WC_SUCCESS;
	if (!valid)
		discard_datagram(fd);
	return IBV_WC_LOC_PROT_ERR;
}

static void deliver_datagram(struct soft_qp *qp, const struct soft_envelope *envelope,
			     uint32_t length)
{
	bool immediate = envelope->flags & SOFT_DATAGRAM_IMMEDIATE;
	const struct soft_header header = {
		.opcode = immediate ? SOFT_SEND_IMM : SOFT_SEND,
		.flags = envelope->flags & SOFT_DATAGRAM_SOLICITED ? SOFT_FLAG_SOLICITED
								   : 0,
		.length = length,
		.key = envelope->from_qpn,
		.immediate = envelope->immediate,
	};
	enum ibv_wc_status status = read_datagram(qp, length);

	pier_soft_complete_recv(qp, status, &header);
	if (status != IBV_WC_SUCCESS)
		pier_soft_fail_qp(qp, IBV_WC_SUCCESS);
}

/*
 * As with hardware a datagram is lost without a receive, with another Q_Key, and if the
 * receive is too small (IBTA 9.9.3). False: there are no more.
 */
static bool receive_one(struct soft_context *context)
{
	int fd = context->node.listeners.datagram_fd;
	uint8_t bytes[SOFT_ENVELOPE_SIZE];
	struct soft_envelope envelope;
	ssize_t length = recv(fd, bytes, sizeof(bytes),
			      MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
	const struct soft_recv *recv;
	struct soft_qp *qp;

	if (length < 0)
		return errno == EINTR;
	qp = find_receiver(context, bytes, length, &envelope);
	recv = qp ? pier_soft_current_recv(qp) : NULL;
	length -= SOFT_ENVELOPE_SIZE;
	if (recv &&
	    (uint64_t)length <= pier_soft_total_length(recv->sges, recv->sge_count)) {
		deliver_datagram(qp, &envelope, (uint32_t)length);
	} else {
		pier_debug("soft0: lost a datagram");
		discard_datagram(fd);
	}
	return true;
}

void pier_soft_receive_datagrams(struct soft_context *context)
{
	context->engine.last_datagram = context->engine.now;
	for (int i = 0; i < DATAGRAMS_PER_EVENT; i++) {
		if (!receive_one(context))
			break;
	}
}
