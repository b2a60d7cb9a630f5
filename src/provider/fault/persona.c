/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/text.h"
#include "persona.h"

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

/*
 * Whether a driver creates queues of these sizes, for drivers that count in units of
 * their own and not in requests: see struct pier_persona.
 */

/* The next power of 2. */
static uint64_t round_up(uint64_t number)
{
	uint64_t power = 1;

	while (power < number)
		power *= 2;
	return power;
}

static uint64_t align_up(uint64_t number, uint64_t unit)
{
	return (number + unit - 1) / unit * unit;
}

/*
 * mlx5_calc_send_wqe() and mlx5_calc_sq_size() in providers/mlx5/verbs.c: a request of an
 * RC queue pair takes 192 bytes (_sq_overhead(): control 16, UMR control 48, memory key
 * 64, at least 64 of translations) and 16 for each element, or its inline data, in units
 * of 64 bytes. The queue, rounded up to a power of 2, has at most as many units as
 * query_device() reports requests. mlx5_calc_rq_size(): a receive has at most 512 bytes.
 */
static bool persona_fits_mlx5(const struct ibv_qp_cap *cap)
{
	enum {
		OVERHEAD = 192,
		ELEMENT = 16,
		INLINE_HEADER = 4,
		UNIT = 64,
		UNITS = 32768,
		LONGEST_SEND = 1024, /* max_wqe_sz_sq of ConnectX */
		LONGEST_RECEIVE = 512,
	};
	uint64_t gathered = OVERHEAD + (uint64_t)cap->max_send_sge * ELEMENT;
	uint64_t inlined = OVERHEAD +
			   align_up(INLINE_HEADER + (uint64_t)cap->max_inline_data, 16);
	uint64_t size = cap->max_inline_data && inlined > gathered ? inlined : gathered;

	if (size > LONGEST_SEND || cap->max_recv_wr > UNITS ||
	    (uint64_t)cap->max_recv_sge * ELEMENT > LONGEST_RECEIVE)
		return false;
	return round_up(cap->max_send_wr * align_up(size, UNIT)) / UNIT <= UNITS;
}

/*
 * irdma_ucreate_qp(), irdma_get_wqe_shift(), irdma_get_sqdepth() in providers/irdma: a
 * request takes 1, 2, 4 or 8 quanta of 32 bytes. One element is for immediate data.
 */
static bool persona_fits_irdma(const struct ibv_qp_cap *cap)
{
	enum {
		ELEMENTS = 13, /* IRDMA_MAX_WQ_FRAGMENT_COUNT */
		INLINE = 101,  /* IRDMA_MAX_INLINE_DATA_SIZE */
		QUANTA = 32768,
		RESERVED_SENDS = 258, /* IRDMA_SQ_RSVD */
		RESERVED_RECEIVES = 1,
	};
	uint64_t sge = cap->max_send_sge + UINT64_C(1), data = cap->max_inline_data;
	uint64_t send = sge < 2 && data <= 8	? 1
			: sge < 4 && data <= 39 ? 2
			: sge < 8		? 4
						: 8;
	uint64_t receive = cap->max_recv_sge < 2   ? 1
			   : cap->max_recv_sge < 4 ? 2
			   : cap->max_recv_sge < 8 ? 4
						   : 8;

	return cap->max_send_sge <= ELEMENTS && cap->max_recv_sge <= ELEMENTS &&
	       data <= INLINE &&
	       round_up(cap->max_send_wr * send + RESERVED_SENDS) <= QUANTA &&
	       round_up(cap->max_recv_wr * receive + RESERVED_RECEIVES) <= QUANTA;
}

/*
 * The personas. Sources: rdma-core is version 65 (providers/NAME/), the kernel is 6.12
 * (drivers/infiniband/hw/NAME/, sw/NAME/) and for ionic 6.18, unless a line says
 * otherwise. "devinfo" is the output of ibv_devinfo(1) -v in a public thread.
 */

#define ROCE                                                          \
	.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, \
	.port.link_layer = IBV_LINK_LAYER_ETHERNET
/* One GID of the port, and connections of the connection manager alone. */
#define IWARP                                                              \
	.node_type = IBV_NODE_RNIC, .transport_type = IBV_TRANSPORT_IWARP, \
	.port.link_layer = IBV_LINK_LAYER_ETHERNET, .port.gid_tbl_len = 1, \
	.needs_cm = true

static const struct pier_persona personas[] = {
	{
		/*
		 * ConnectX-5 and 6, RoCE. devinfo: openucx/ucx #10317, #8229,
		 * ofiwg/libfabric #8256; mlx5_ib_query_device(). Kernels from 6.10 report
		 * 8,192 requests (mlx5_ib_calc_max_qp_wr()), earlier ones 32,768.
		 */
		.name = "mlx5",
		.limits = {
			.vendor_id = 0x02c9,
			.vendor_part_id = 4123,
			.max_mr_size = UINT64_MAX,
			.page_size_cap = 0xfffffffffffff000,
			.max_qp = 131072,
			.max_qp_wr = 32768,
			.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN |
					    IBV_DEVICE_MEM_WINDOW |
					    IBV_DEVICE_MEM_WINDOW_TYPE_2B,
			.max_sge = 30,
			.max_sge_rd = 30,
			.max_cq = 16777216,
			.max_cqe = 4194303,
			.max_mr = 16777216,
			.max_pd = 8388608,
			.max_qp_rd_atom = 16,
			.max_res_rd_atom = 2097152,
			.max_qp_init_rd_atom = 16,
			.atomic_cap = IBV_ATOMIC_HCA,
			.max_mw = 16777216,
			.max_srq = 8388608,
			.max_srq_wr = 32767,
			.max_srq_sge = 31,
		},
		ROCE,
		.port.gid_tbl_len = 256,
		.port.max_msg_sz = 0x40000000,
		.fits = persona_fits_mlx5,
		/* copy_to_scat() in qp.c, with completions of 64 bytes. */
		.max_scatter = 32,
		.dmabuf = true,
		.on_demand = true,
		.windows = true,
		.joins = true,
		.roce_v1 = true,
	},
	{
		/*
		 * efa_query_device(), efa_query_port(), efa_alloc_mr(); the elements and
		 * inline bytes in efa_io_defs.h; the requests in ofiwg/libfabric #11337; the
		 * message in fi_efa(7). efa_create_qp() in providers/efa/verbs.c takes UD
		 * only, efadv_create_qp_ex(3) makes SRD.
		 */
		.name = "efa",
		.limits = {
			.vendor_id = 0x1d0f,
			.max_qp_wr = 4096,
			.max_sge = 2,
			.max_sge_rd = 1,
			.atomic_cap = IBV_ATOMIC_NONE,
		},
		.node_type = IBV_NODE_UNSPECIFIED,
		.transport_type = IBV_TRANSPORT_UNSPECIFIED,
		.port.link_layer = IBV_LINK_LAYER_UNSPECIFIED,
		.port.lmc = 1,
		.port.gid_tbl_len = 1,
		.port.max_msg_sz = 8192,
		.max_inline = 32,
		.region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
				 IBV_ACCESS_REMOTE_WRITE,
		.refuses_rc = EOPNOTSUPP,
		.dmabuf = true,
	},
	{
		/*
		 * E810 in RoCE mode: irdma_query_device(), irdma_query_port(),
		 * icrdma_init_hw(), irdma_sc_dev_init(). irdma_modify_qp_roce(): RESET and ERR
		 * leave the device's own state at ERROR, from which INIT fails with EINVAL;
		 * so does INIT after RESET to RESET (kvcache-ai/Mooncake #722).
		 */
		.name = "irdma",
		.limits = {
			.vendor_id = 0x8086,
			.vendor_part_id = 5522,
			.max_mr_size = UINT64_C(0x200000000000),
			.page_size_cap = 0x40201000,
			.max_qp_wr = 4063,
			.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN |
					    IBV_DEVICE_MEM_WINDOW,
			.max_sge = 13,
			.max_sge_rd = 13,
			.max_cqe = 1048574,
			.max_qp_rd_atom = 127,
			.max_qp_init_rd_atom = 255,
			.atomic_cap = IBV_ATOMIC_NONE,
			.max_mw = 4194301,
		},
		ROCE,
		.port.lid = 1,
		.port.gid_tbl_len = 32,
		.port.max_msg_sz = 2147483647,
		.fits = persona_fits_irdma,
		.dmabuf = true,
		.windows = true,
		.reset_is_final = true,
	},
	{
		/*
		 * FastLinQ in RoCE mode. devinfo: openucx/ucx #5148; qedr_query_device(),
		 * qedr_check_qp_attrs(), qed_rdma_init_devinfo(). libqedr (qelr_verbs.c)
		 * returns -ENOMEM and -EINVAL from qelr_post_send() and qelr_post_recv(), and
		 * -EINVAL from qelr_modify_qp() for RESET from INIT, RTR and RTS
		 * (qelr_update_qp_state()). It has no reg_dmabuf_mr and no alloc_mw. Atomics
		 * depend on the PCI hierarchy (qedr_pci_set_atomic()).
		 */
		.name = "qedr",
		.limits = {
			.vendor_id = 0x1077,
			.vendor_part_id = 32880,
			.max_mr_size = UINT64_C(0x10000000000),
			.page_size_cap = 0xfffff000,
			.max_qp = 8568,
			.max_qp_wr = 32767,
			.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD |
					    IBV_DEVICE_RC_RNR_NAK_GEN,
			.max_sge = 4,
			.max_sge_rd = 4,
			.max_cq = 17136,
			.max_cqe = 8388480,
			.max_mr = 131070,
			.max_pd = 65536,
			.max_qp_rd_atom = 32,
			.max_qp_init_rd_atom = 32,
			.atomic_cap = IBV_ATOMIC_NONE,
			.max_srq = 32768,
			.max_srq_wr = 32767,
			.max_srq_sge = 4,
		},
		ROCE,
		.port.gid_tbl_len = 128,
		.max_inline = 256,
		.roce_v1 = true,
		.resets_from_err = true,
		.negates_errno = true,
	},
	{
		/*
		 * AMD Pensando: ionic_query_device(), ionic_query_port(), ionic_qp_sq_init().
		 * The 16 reads as a responder are for the whole device: kvcache-ai/Mooncake
		 * #3977, ROCm/ATOM #2097. The inline bytes depend on firmware; these are of a
		 * stride of 512.
		 */
		.name = "ionic",
		.limits = {
			.vendor_id = 0x1dd8,
			/* 2^20 pages of 4 KiB, half of them; of 2 MiB they are more. */
			.max_mr_size = UINT64_C(1) << 31,
			.page_size_cap = 0x40201000,
			.max_qp_wr = 65535,
			.device_cap_flags = IBV_DEVICE_MEM_WINDOW |
					    IBV_DEVICE_MEM_WINDOW_TYPE_2B,
			.max_sge = 8,
			.max_sge_rd = 8,
			.max_cqe = 65435,
			.max_pd = 1024,
			.max_qp_rd_atom = 16,
			.max_res_rd_atom = 16,
			.max_qp_init_rd_atom = 16,
			.atomic_cap = IBV_ATOMIC_GLOB,
			.max_mw = 65536,
		},
		ROCE,
		.port.gid_tbl_len = 256,
		.port.max_msg_sz = 0x80000000,
		.max_inline = 480,
		.dmabuf = true,
		.windows = true,
		.shares_rd_atomic = true,
		.takes_long_regions = true,
	},
	{
		/*
		 * Thor, requests of variable size: bnxt_re_query_device(),
		 * bnxt_re_query_port(), bnxt_qplib_get_dev_attr(). devinfo: uccl-project/uccl
		 * #250. bnxt_re_create_qp_ex() returns NULL and no errno if
		 * bnxt_re_check_qp_limits() fails. bnxt_re_cntx_ops has no alloc_mw, although
		 * the kernel reports windows.
		 */
		.name = "bnxt_re",
		.limits = {
			.vendor_id = 0x14e4,
			.max_mr_size = UINT64_C(1) << 39,
			.max_qp = 131073,
			.max_qp_wr = 4351,
			.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD |
					    IBV_DEVICE_RC_RNR_NAK_GEN |
					    IBV_DEVICE_MEM_WINDOW |
					    IBV_DEVICE_MEM_WINDOW_TYPE_2B,
			.max_sge = 13,
			.max_sge_rd = 13,
			.max_cq = 65536,
			.max_cqe = 8388607,
			.max_pd = 65536,
			.max_qp_rd_atom = 126,
			.max_qp_init_rd_atom = 126,
			.atomic_cap = IBV_ATOMIC_NONE,
			.max_mw = 65536,
			.max_srq = 65536,
			.max_srq_wr = 65535,
			.max_srq_sge = 6,
		},
		ROCE,
		.port.gid_tbl_len = 256,
		.port.max_msg_sz = 1 << 30,
		.max_inline = 208,
		.dmabuf = true,
		.roce_v1 = true,
		.forgets_errno = true,
	},
	{
		/*
		 * siw_query_device(), siw_query_port(), siw_create_qp(), siw-abi.h.
		 * siw_qp_nextstate_from_idle(): RTS without a socket is EINVAL.
		 */
		.name = "siw",
		.limits = {
			.max_mr_size = UINT64_MAX,
			.page_size_cap = 0x1000,
			.max_qp = 102400,
			.max_qp_wr = 32768,
			.max_sge = 6,
			.max_sge_rd = 1,
			.max_cq = 102400,
			.max_cqe = 3276800,
			.max_mr = 1024000,
			.max_pd = 102400,
			.max_qp_rd_atom = 128,
			.max_res_rd_atom = 13107200,
			.max_qp_init_rd_atom = 128,
			.atomic_cap = IBV_ATOMIC_NONE,
			.max_srq = 102400,
			.max_srq_wr = 327680,
			.max_srq_sge = 6,
		},
		IWARP,
		.port.max_msg_sz = UINT32_MAX,
		.max_inline = 80,
	},
	{
		/*
		 * erdma_query_device(), erdma_query_port(), erdma_qp_validate_cap(),
		 * erdma_verbs.h. erdma_modify_qp_state_to_rts(): RTS without a connection is
		 * EINVAL. A receive has one element, which ibv_query_device(3) reports for both
		 * queues.
		 */
		.name = "erdma",
		.limits = {
			.vendor_id = 0x1ded,
			.max_qp_wr = 8192,
			.max_sge = 1,
			.max_sge_rd = 1,
			.max_qp_rd_atom = 128,
			.max_qp_init_rd_atom = 128,
			.atomic_cap = IBV_ATOMIC_NONE,
		},
		IWARP,
		.port.max_msg_sz = UINT32_MAX,
		.max_inline = 96,
	},
	{
		/*
		 * rxe_param.h, rxe_init_device_param(), rxe_qp_chk_cap(); the GID table and
		 * the message in rxe_init_port_param(). The kernel 6.12 has no registration
		 * on demand there.
		 */
		.name = "rxe",
		.limits = {
			.vendor_id = 0xffffff,
			.max_mr_size = UINT64_MAX,
			.page_size_cap = 0xfffff000,
			.max_qp = 1048560,
			.max_qp_wr = 1048576,
			.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN |
					    IBV_DEVICE_SRQ_RESIZE |
					    IBV_DEVICE_MEM_WINDOW |
					    IBV_DEVICE_MEM_WINDOW_TYPE_2B,
			.max_sge = 32,
			.max_sge_rd = 32,
			.max_cq = 1048576,
			.max_cqe = 32767,
			.max_mr = 524287,
			.max_pd = 1048576,
			.max_qp_rd_atom = 128,
			.max_res_rd_atom = 0x3f000,
			.max_qp_init_rd_atom = 128,
			.atomic_cap = IBV_ATOMIC_HCA,
			.max_mw = 524287,
			.max_srq = 917503,
			.max_srq_wr = 1048576,
			.max_srq_sge = 27,
		},
		ROCE,
		.port.gid_tbl_len = 1024,
		.port.max_msg_sz = 0x80000000,
		.max_inline = 512,
		.windows = true,
	},
};

enum {
	PERSONAS = sizeof(personas) / sizeof(personas[0]),
};

const struct pier_persona *pier_persona_find(const char *name, size_t length)
{
	for (size_t i = 0; i < PERSONAS; i++) {
		if (strlen(personas[i].name) == length &&
		    memcmp(personas[i].name, name, length) == 0)
			return &personas[i];
	}
	return NULL;
}

void pier_persona_print_names(char *ret_text, size_t size)
{
	ret_text[0] = '\0';
	for (size_t i = 0; i < PERSONAS; i++)
		pier_append_text(ret_text, size, "%s%s", i ? ", " : "", personas[i].name);
}
