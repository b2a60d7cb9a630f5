/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_PROVIDER_VERBS_FUNCTIONS_H
#define PIER_PROVIDER_VERBS_FUNCTIONS_H

/*
 * The functions of libibverbs that are members of struct pier_provider, under the same
 * name without "ibv_".
 *
 * A function of the table: name, version, type, what it returns without the library,
 * parameters and arguments. The versions are those of libibverbs.map.in of rdma-core.
 */
/* clang-format off */
#define PIER_VERBS_FUNCTIONS(F) \
	F(get_device_list, "1.1", struct ibv_device **, NULL, \
	  (int *ret_count), (ret_count)) \
	F(free_device_list, "1.1", void, (void)0, (struct ibv_device **list), (list)) \
	F(query_device, "1.1", int, ELIBACC, \
	  (struct ibv_context *context, struct ibv_device_attr *attr), (context, attr)) \
	F(alloc_pd, "1.1", struct ibv_pd *, NULL, (struct ibv_context *context), (context)) \
	F(dealloc_pd, "1.1", int, ELIBACC, (struct ibv_pd *pd), (pd)) \
	F(reg_dmabuf_mr, "1.12", struct ibv_mr *, NULL, \
	  (struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access), \
	  (pd, offset, length, iova, fd, access)) \
	F(dereg_mr, "1.1", int, ELIBACC, (struct ibv_mr *mr), (mr)) \
	F(create_comp_channel, "1.0", struct ibv_comp_channel *, NULL, \
	  (struct ibv_context *context), (context)) \
	F(destroy_comp_channel, "1.0", int, ELIBACC, \
	  (struct ibv_comp_channel *channel), (channel)) \
	F(create_cq, "1.1", struct ibv_cq *, NULL, \
	  (struct ibv_context *context, int cqe, void *cq_context, \
	   struct ibv_comp_channel *channel, int vector), \
	  (context, cqe, cq_context, channel, vector)) \
	F(destroy_cq, "1.1", int, ELIBACC, (struct ibv_cq *cq), (cq)) \
	F(get_cq_event, "1.1", int, -1, \
	  (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context), \
	  (channel, cq, cq_context)) \
	F(ack_cq_events, "1.1", void, (void)0, \
	  (struct ibv_cq *cq, unsigned int count), (cq, count)) \
	F(create_srq, "1.1", struct ibv_srq *, NULL, \
	  (struct ibv_pd *pd, struct ibv_srq_init_attr *attr), (pd, attr)) \
	F(modify_srq, "1.1", int, ELIBACC, \
	  (struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask), (srq, attr, mask)) \
	F(query_srq, "1.1", int, ELIBACC, \
	  (struct ibv_srq *srq, struct ibv_srq_attr *attr), (srq, attr)) \
	F(destroy_srq, "1.1", int, ELIBACC, (struct ibv_srq *srq), (srq)) \
	F(create_qp, "1.1", struct ibv_qp *, NULL, \
	  (struct ibv_pd *pd, struct ibv_qp_init_attr *attr), (pd, attr)) \
	F(modify_qp, "1.1", int, ELIBACC, \
	  (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask), (qp, attr, mask)) \
	F(query_qp, "1.1", int, ELIBACC, \
	  (struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, \
	   struct ibv_qp_init_attr *init_attr), \
	  (qp, attr, mask, init_attr)) \
	F(destroy_qp, "1.1", int, ELIBACC, (struct ibv_qp *qp), (qp))
/* clang-format on */

#endif
