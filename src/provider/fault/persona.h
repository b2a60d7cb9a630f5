/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAULT_PERSONA_H
#define PIER_FAULT_PERSONA_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "provider/provider.h"

/*
 * A persona makes the device beneath look like a NIC of another driver ("like=mlx5"): it
 * reports that driver's limits and refuses what that driver refuses, with its errno and,
 * as drivers do, without a sentence. persona.c has the table and its sources.
 */
struct pier_persona {
	const char *name;
	/*
	 * The result of the driver's query_device(). Members that depend on firmware and
	 * have no public source are 0 here, and the device beneath provides them:
	 * max_mr_size, page_size_cap, max_cqe, and the numbers of objects.
	 */
	struct ibv_device_attr limits;
	enum ibv_node_type node_type;
	enum ibv_transport_type transport_type;
	/* link_layer, lid, lmc and gid_tbl_len; max_msg_sz 0: of the device beneath. */
	struct ibv_port_attr port;
	uint32_t max_inline;
	/* EOPNOTSUPP for regions with other access than this; 0: all is taken. */
	int region_access;
	/* The errno of creating an RC queue pair; 0: there are some. */
	int refuses_rc;
	/* Whether the queues fit; NULL: the numbers in `limits` and max_inline decide. */
	bool (*fits)(const struct ibv_qp_cap *cap);
	bool dmabuf;	/* reg_dmabuf_mr() */
	bool on_demand; /* IBV_ACCESS_ON_DEMAND */
	bool windows;	/* alloc_mw(), whatever device_cap_flags say */
	bool joins;	/* join_mrs() */
	bool roce_v1;	/* each GID is there twice: as RoCE v1, then as RoCE v2 */
	/* A queue pair that was in RESET or ERR never leaves them again. */
	bool reset_is_final;
	/* RESET is refused, except from ERR. */
	bool resets_from_err;
	/* Only the connection manager brings queue pairs to RTS, as on all of iWARP. */
	bool needs_cm;
	/* Regions may be longer than max_mr_size. */
	bool takes_long_regions;
	/* max_res_rd_atom is shared by the queue pairs of the device. */
	bool shares_rd_atomic;
	/*
	 * The CPU copies messages of up to this many bytes to the receive's address,
	 * except on queue pairs of create_direct_qp(): see post.h.
	 */
	uint32_t max_scatter;
	/* create_qp() leaves errno as it was. */
	bool forgets_errno;
	/* Posting, and what resets_from_err refuses, fails with a negated errno. */
	bool negates_errno;
};

/* NULL: no such persona. */
const struct pier_persona *pier_persona_find(const char *name, size_t length);

/* Writes the names of all, with ", " between them. */
void pier_persona_print_names(char *ret_text, size_t size);

/* Replace the values of the device beneath by those that the driver reports. */
void pier_persona_change_limits(const struct pier_persona *persona,
				struct ibv_device_attr *attr);
void pier_persona_change_port(const struct pier_persona *persona,
			      struct ibv_port_attr *attr);

/* Remove what no NIC has from the provider. */
void pier_persona_change_provider(struct pier_provider *provider);

/*
 * The index in the GID table of the device beneath; UINT32_MAX: the entry is empty. Each
 * entry has the type that is returned.
 */
uint32_t pier_persona_find_gid(const struct pier_persona *persona, uint32_t index,
			       uint32_t *ret_type);

/* 0, or the errno with which the driver refuses the call. */
int pier_persona_check_region(const struct pier_persona *persona, size_t length,
			      int access);
int pier_persona_check_cq(const struct pier_persona *persona, int cqe);
int pier_persona_check_srq(const struct pier_persona *persona,
			   const struct ibv_srq_attr *attr);
int pier_persona_check_qp(const struct pier_persona *persona,
			  const struct ibv_qp_init_attr *attr);
/* `spent`: the queue pair was in RESET or ERR. May be negative: see negates_errno. */
int pier_persona_check_transition(const struct pier_persona *persona,
				  enum ibv_qp_state from, bool spent,
				  const struct ibv_qp_attr *attr, int mask);

/* The errno of a post as its driver returns it: see negates_errno. NULL: as it is. */
static inline int pier_persona_post_errno(const struct pier_persona *persona, int error)
{
	return persona && persona->negates_errno ? -error : error;
}

#endif
