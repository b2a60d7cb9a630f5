/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "persona.h"
#include "sizes.h"

/*
 * The personas. Sources: rdma-core is version 65 (providers/NAME/), the kernel is 6.12
 * (drivers/infiniband/hw/NAME/, sw/NAME/) and for ionic 6.18, unless a line says
 * otherwise. "devinfo" is the output of ibv_devinfo(1) -v in a public thread.
 */

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
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 256,
			.max_msg_sz = 0x40000000,
		},
		.fits = pier_persona_fits_mlx5,
		/* copy_to_scat() in qp.c, with completions of 64 bytes. */
		.max_scatter = 32,
		.dmabuf = true,
		.on_demand = true,
		.windows = true,
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
		.port = {
			.link_layer = IBV_LINK_LAYER_UNSPECIFIED,
			.lmc = 1,
			.gid_tbl_len = 1,
			.max_msg_sz = 8192,
		},
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
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.lid = 1,
			.gid_tbl_len = 32,
			.max_msg_sz = 2147483647,
		},
		.fits = pier_persona_fits_irdma,
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
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 128,
		},
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
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 256,
			.max_msg_sz = 0x80000000,
		},
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
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 256,
			.max_msg_sz = 1 << 30,
		},
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
		.node_type = IBV_NODE_RNIC,
		.transport_type = IBV_TRANSPORT_IWARP,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 1,
			.max_msg_sz = UINT32_MAX,
		},
		.max_inline = 80,
		.needs_cm = true,
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
		.node_type = IBV_NODE_RNIC,
		.transport_type = IBV_TRANSPORT_IWARP,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 1,
			.max_msg_sz = UINT32_MAX,
		},
		.max_inline = 96,
		.needs_cm = true,
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
		.node_type = IBV_NODE_CA,
		.transport_type = IBV_TRANSPORT_IB,
		.port = {
			.link_layer = IBV_LINK_LAYER_ETHERNET,
			.gid_tbl_len = 1024,
			.max_msg_sz = 0x80000000,
		},
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
	size_t used = 0;

	ret_text[0] = '\0';
	for (size_t i = 0; i < PERSONAS && used < size; i++)
		used += (size_t)snprintf(ret_text + used, size - used, "%s%s",
					 i ? ", " : "", personas[i].name);
}
