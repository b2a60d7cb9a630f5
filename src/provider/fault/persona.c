/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include "persona.h"
#include "core/log.h"

/* For the tester: drivers return an errno without a sentence. */
static int refuse_call(const struct pier_persona *persona, int error, const char *what)
{
	pier_info("like=%s: %s: refused with errno %d", persona->name, what, error);
	return error;
}

static void keep_u64(uint64_t *value, uint64_t beneath)
{
	if (*value == 0)
		*value = beneath;
}

static void keep_int(int *value, int beneath)
{
	if (*value == 0)
		*value = beneath;
}

void pier_persona_change_limits(const struct pier_persona *persona,
				struct ibv_device_attr *attr)
{
	const struct ibv_device_attr beneath = *attr;

	*attr = persona->limits;
	snprintf(attr->fw_ver, sizeof(attr->fw_ver), "like=%s", persona->name);
	attr->node_guid = beneath.node_guid;
	attr->sys_image_guid = beneath.sys_image_guid;
	attr->phys_port_cnt = beneath.phys_port_cnt;
	attr->max_pkeys = beneath.max_pkeys;
	keep_u64(&attr->max_mr_size, beneath.max_mr_size);
	keep_u64(&attr->page_size_cap, beneath.page_size_cap);
	keep_int(&attr->max_cqe, beneath.max_cqe);
	keep_int(&attr->max_qp, beneath.max_qp);
	keep_int(&attr->max_cq, beneath.max_cq);
	keep_int(&attr->max_mr, beneath.max_mr);
	keep_int(&attr->max_pd, beneath.max_pd);
}

void pier_persona_change_port(const struct pier_persona *persona,
			      struct ibv_port_attr *attr)
{
	attr->link_layer = persona->port.link_layer;
	attr->lid = persona->port.lid;
	attr->lmc = persona->port.lmc;
	attr->gid_tbl_len = persona->port.gid_tbl_len;
	if (persona->port.max_msg_sz)
		attr->max_msg_sz = persona->port.max_msg_sz;
}

/*
 * A memfd buffer takes the path of host memory, as on every NIC. A memfd that is given to
 * reg_dmabuf_mr() still stands for a dma-buf: few machines can make a dma-buf that a
 * program may map.
 */
void pier_persona_change_provider(struct pier_provider *provider)
{
	provider->takes_memfd = false;
	provider->max_parts = 0;
	provider->max_key = 0;
	provider->reg_parts = NULL;
	provider->set_padding = NULL;
	provider->bind_counter = NULL;
}

/*
 * The kernel lists a GID once for each type that the port supports, RoCE v1 first
 * (ib_cache_gid_set_default_gid(), update_gid()); iWARP and EFA have one GID of no type.
 */
uint32_t pier_persona_find_gid(const struct pier_persona *persona, uint32_t index,
			       uint32_t *ret_type)
{
	if (persona->port.gid_tbl_len == 1) {
		*ret_type = IBV_GID_TYPE_IB;
		return index;
	}
	*ret_type = IBV_GID_TYPE_ROCE_V2;
	if (!persona->roce_v1)
		return index;
	if (index % 2 == 0)
		*ret_type = IBV_GID_TYPE_ROCE_V1;
	return index / 2;
}

/* ib_check_mr_access() of the kernel, and the driver's own rules. */
int pier_persona_check_region(const struct pier_persona *persona, size_t length,
			      int access)
{
	int required = access & ~IBV_ACCESS_OPTIONAL_RANGE;

	if ((access & IBV_ACCESS_ON_DEMAND) && !persona->on_demand)
		return refuse_call(persona, EOPNOTSUPP, "a region on demand");
	if (persona->region_access && (required & ~persona->region_access))
		return refuse_call(persona, EOPNOTSUPP, "the access flags of a region");
	if (!persona->takes_long_regions && persona->limits.max_mr_size &&
	    length > persona->limits.max_mr_size)
		return refuse_call(persona, EINVAL, "the length of a region");
	return 0;
}

int pier_persona_check_cq(const struct pier_persona *persona, int cqe)
{
	if (persona->limits.max_cqe && cqe > persona->limits.max_cqe)
		return refuse_call(persona, EINVAL, "the length of a completion queue");
	return 0;
}

int pier_persona_check_srq(const struct pier_persona *persona,
			   const struct ibv_srq_attr *attr)
{
	if (attr->max_wr <= (uint32_t)persona->limits.max_srq_wr &&
	    attr->max_sge <= (uint32_t)persona->limits.max_srq_sge)
		return 0;
	return refuse_call(persona, EINVAL, "the sizes of a shared receive queue");
}

static bool fits_limits(const struct pier_persona *persona, const struct ibv_qp_cap *cap)
{
	const struct ibv_device_attr *limits = &persona->limits;

	return cap->max_send_wr <= (uint32_t)limits->max_qp_wr &&
	       cap->max_recv_wr <= (uint32_t)limits->max_qp_wr &&
	       cap->max_send_sge <= (uint32_t)limits->max_sge &&
	       cap->max_recv_sge <= (uint32_t)limits->max_sge &&
	       cap->max_inline_data <= persona->max_inline;
}

int pier_persona_check_qp(const struct pier_persona *persona,
			  const struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_cap cap = attr->cap;

	if (attr->qp_type == IBV_QPT_RC && persona->refuses_rc)
		return refuse_call(persona, persona->refuses_rc, "an RC queue pair");
	/* ibv_create_qp(3): ignored with a shared receive queue. */
	if (attr->srq)
		cap.max_recv_wr = cap.max_recv_sge = 0;
	if (persona->fits ? !persona->fits(&cap) : !fits_limits(persona, &cap))
		return refuse_call(persona, EINVAL, "the sizes of a queue pair");
	return 0;
}

/*
 * All drivers here refuse depths above those that they report, except bnxt_re, which
 * lowers max_rd_atomic, and qedr, whose own limits are 51 and 64.
 */
static bool has_deep_reads(const struct pier_persona *persona,
			   const struct ibv_qp_attr *attr, int mask)
{
	const struct ibv_device_attr *limits = &persona->limits;

	return ((mask & IBV_QP_MAX_QP_RD_ATOMIC) &&
		attr->max_rd_atomic > limits->max_qp_init_rd_atom) ||
	       ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) &&
		attr->max_dest_rd_atomic > limits->max_qp_rd_atom);
}

int pier_persona_check_transition(const struct pier_persona *persona,
				  enum ibv_qp_state from, bool spent,
				  const struct ibv_qp_attr *attr, int mask)
{
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;

	if (has_deep_reads(persona, attr, mask))
		return refuse_call(persona, EINVAL, "the depth of reads");
	if (persona->reset_is_final && spent && to == IBV_QPS_INIT)
		return refuse_call(persona, EINVAL, "INIT after RESET");
	if (persona->needs_cm && to == IBV_QPS_RTS)
		return refuse_call(persona, EINVAL, "RTS without a connection manager");
	if (persona->resets_from_err && to == IBV_QPS_RESET && from != IBV_QPS_RESET &&
	    from != IBV_QPS_ERR)
		return refuse_call(persona, -EINVAL, "RESET without ERR");
	return 0;
}
