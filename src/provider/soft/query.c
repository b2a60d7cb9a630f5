/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "query.h"
#include "core/error.h"
#include "core/fd.h"
#include "provider/soft/link/frame.h"
#include "provider/soft/queues/responder.h"
#include "soft.h"

__be64 pier_soft_host_guid(void)
{
	struct {
		char boot_id[36];
		uid_t user;
	} host = { .user = geteuid() };
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	uint8_t guid[crypto_generichash_BYTES_MIN];
	__be64 result;

	if (fd >= 0 && read(fd, host.boot_id, sizeof(host.boot_id)) < 0)
		memset(host.boot_id, 0, sizeof(host.boot_id));
	pier_close_fd(fd);
	crypto_generichash(guid, sizeof(guid), (const uint8_t *)&host, sizeof(host), NULL,
			   0);
	guid[0] = (guid[0] & 0xfc) | 2; /* locally administered, of one station */
	memcpy(&result, guid, sizeof(result));
	return result;
}

/*
 * Programs compare the GUID with that of ibv_get_device_guid(3). UCX uses atomic
 * operations only with IBV_ATOMIC_HCA (ib_md.c), which is less than IBV_ATOMIC_GLOB.
 */
static void describe_plain_device(struct ibv_device_attr *attr)
{
	attr->node_guid = pier_soft_host_guid();
	if (attr->atomic_cap == IBV_ATOMIC_GLOB)
		attr->atomic_cap = IBV_ATOMIC_HCA;
}

int pier_soft_query_device(struct ibv_context *ibv_context,
			   struct ibv_device_attr *ret_attr)
{
	const struct soft_context *context = soft_context(ibv_context);
	struct ibv_device_attr attr = {
		.fw_ver = "1.0",
		.max_mr_size = UINT64_C(1) << 47,
		.vendor_id = 0x027069, /* a locally administered OUI: 2, 'p', 'i' */
		.page_size_cap = (uint64_t)sysconf(_SC_PAGESIZE),
		.max_qp = SOFT_MAX_QP - 2,
		.max_qp_wr = SOFT_MAX_WR,
		.max_sge = SOFT_MAX_SGE,
		.max_sge_rd = SOFT_MAX_SGE,
		.max_cq = SOFT_MAX_CQ,
		.max_cqe = SOFT_MAX_CQE,
		.device_cap_flags = IBV_DEVICE_MEM_WINDOW |
				    IBV_DEVICE_MEM_WINDOW_TYPE_2B |
				    IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE,
		/* max_mr and max_mw share one table. */
		.max_mr = SOFT_MAX_MR - SOFT_FIRST_MR,
		.max_mw = SOFT_MAX_MR - SOFT_FIRST_MR,
		.max_pd = SOFT_MAX_PD,
		.max_ah = SOFT_MAX_AH,
		.max_srq = SOFT_MAX_SRQ,
		.max_srq_wr = SOFT_MAX_WR,
		.max_srq_sge = SOFT_MAX_SGE,
		.max_qp_rd_atom = SOFT_MAX_RD_ATOMIC,
		.max_qp_init_rd_atom = SOFT_MAX_RD_ATOMIC,
		.max_res_rd_atom = SOFT_MAX_QP * SOFT_MAX_RD_ATOMIC,
		.atomic_cap = pier_soft_atomic_cap(),
		.max_pkeys = 1,
		.phys_port_cnt = 1,
	};

	/* Random, as the GID, and in network byte order. */
	memcpy(&attr.node_guid, context->node.gid.raw + 8, sizeof(attr.node_guid));
	if (context->node.meeting.joined)
		describe_plain_device(&attr);
	attr.sys_image_guid = attr.node_guid;
	*ret_attr = attr;
	return 0;
}

/* No sum of `size`: a caller that is older or newer gets what both know. */
static void copy_sized(void *to, size_t size, const void *from, size_t known)
{
	memset(to, 0, size);
	memcpy(to, from, size < known ? size : known);
}

int pier_soft_query_device_ex(struct ibv_context *context,
			      const struct ibv_query_device_ex_input *input,
			      struct ibv_device_attr_ex *ret_attr, size_t size)
{
	const uint32_t on_demand = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
				   IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
				   IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
	struct ibv_device_attr_ex attr = {
		.odp_caps.general_caps = IBV_ODP_SUPPORT,
		.odp_caps.per_transport_caps.rc_odp_caps = on_demand,
		.odp_caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND |
							   IBV_ODP_SUPPORT_RECV,
		.hca_core_clock = 1000000, /* kHz: a tick is 1 ns */
		.completion_timestamp_mask = UINT64_MAX,
		.phys_port_cnt_ex = 1,
	};

	if (input && input->comp_mask)
		return EINVAL;
	pier_soft_query_device(context, &attr.orig_attr);
	attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags;
	copy_sized(ret_attr, size, &attr, sizeof(attr));
	return 0;
}

int pier_soft_query_port(struct ibv_context *context, uint8_t port,
			 struct ibv_port_attr *ret_attr)
{
	struct ibv_port_attr attr = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 1,
		.max_msg_sz = SOFT_MAX_MESSAGE,
		.pkey_tbl_len = 1,
		.max_vl_num = 1,
		.active_width = 2, /* 4x */
		.active_speed = 32,
		.phys_state = 5, /* LinkUp */
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	(void)context;
	if (port != 1)
		return -pier_fail(EINVAL, "soft0: port %u; there is only port 1", port);
	*ret_attr = attr;
	return 0;
}

int pier_soft_query_sized_port(struct ibv_context *context, uint8_t port,
			       struct ibv_port_attr *ret_attr, size_t size)
{
	struct ibv_port_attr attr;
	int error = pier_soft_query_port(context, port, &attr);

	if (!error)
		copy_sized(ret_attr, size, &attr, sizeof(attr));
	return error;
}

int pier_soft_query_gid(struct ibv_context *context, uint8_t port, uint32_t index,
			struct ibv_gid_entry *ret_entry)
{
	if (port != 1)
		return -pier_fail(EINVAL, "soft0: port %u; there is only port 1", port);
	if (index != 0)
		return ENODATA;
	*ret_entry = (struct ibv_gid_entry){
		.gid = soft_context(context)->node.gid,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
	};
	return 0;
}

int pier_soft_query_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	(void)context;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	if (values->comp_mask)
		values->raw_clock = (struct timespec){ .tv_nsec = (long)pier_soft_now() };
	return 0;
}
