/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_REQUESTS_H
#define TESTS_SUPPORT_REQUESTS_H

/* Requests with immediate data, and atomics, by pier_post_request(). */

#include <pier/post.h>

static inline int test_post_send_imm(struct pier_channel *channel,
				     const struct pier_gather *sg_list, int num_sge,
				     uint32_t immediate, struct pier_work *ret_work)
{
	struct pier_request request = { .opcode = PIER_OP_SEND,
					.flags = PIER_POST_IMMEDIATE,
					.gather = sg_list,
					.num_sge = num_sge,
					.immediate = immediate };

	return pier_post_request(channel, &request, ret_work);
}

static inline int test_post_write_imm(struct pier_channel *channel,
				      const struct pier_gather *sg_list, int num_sge,
				      const struct pier_remote *remote,
				      uint32_t immediate, struct pier_work *ret_work)
{
	struct pier_request request = { .opcode = PIER_OP_WRITE,
					.flags = PIER_POST_IMMEDIATE,
					.gather = sg_list,
					.num_sge = num_sge,
					.immediate = immediate,
					.remote = remote };

	return pier_post_request(channel, &request, ret_work);
}

static inline int test_post_compare_swap(struct pier_channel *channel,
					 const struct pier_scatter *element,
					 const struct pier_remote *remote,
					 uint64_t compare, uint64_t swap,
					 struct pier_work *ret_work)
{
	struct pier_request request = { .opcode = PIER_OP_COMPARE_SWAP,
					.scatter = element,
					.num_sge = 1,
					.remote = remote,
					.compare = compare,
					.operand = swap };

	return pier_post_request(channel, &request, ret_work);
}

static inline int test_post_fetch_add(struct pier_channel *channel,
				      const struct pier_scatter *element,
				      const struct pier_remote *remote, uint64_t add,
				      struct pier_work *ret_work)
{
	struct pier_request request = { .opcode = PIER_OP_FETCH_ADD,
					.scatter = element,
					.num_sge = 1,
					.remote = remote,
					.operand = add };

	return pier_post_request(channel, &request, ret_work);
}

/* The same, followed by pier_work_wait(). */

static inline int test_channel_send_imm(struct pier_channel *channel,
					const struct pier_gather *sg_list, int num_sge,
					uint32_t immediate, int timeout_ms)
{
	struct pier_work work;
	int error = test_post_send_imm(channel, sg_list, num_sge, immediate, &work);

	return error ? error : pier_work_wait(channel, work, timeout_ms, NULL);
}

static inline int test_channel_write_imm(struct pier_channel *channel,
					 const struct pier_gather *sg_list, int num_sge,
					 const struct pier_remote *remote,
					 uint32_t immediate, int timeout_ms)
{
	struct pier_work work;
	int error = test_post_write_imm(channel, sg_list, num_sge, remote, immediate,
					&work);

	return error ? error : pier_work_wait(channel, work, timeout_ms, NULL);
}

static inline int test_channel_compare_swap(struct pier_channel *channel,
					    const struct pier_scatter *element,
					    const struct pier_remote *remote,
					    uint64_t compare, uint64_t swap,
					    int timeout_ms)
{
	struct pier_work work;
	int error = test_post_compare_swap(channel, element, remote, compare, swap,
					   &work);

	return error ? error : pier_work_wait(channel, work, timeout_ms, NULL);
}

static inline int test_channel_fetch_add(struct pier_channel *channel,
					 const struct pier_scatter *element,
					 const struct pier_remote *remote, uint64_t add,
					 int timeout_ms)
{
	struct pier_work work;
	int error = test_post_fetch_add(channel, element, remote, add, &work);

	return error ? error : pier_work_wait(channel, work, timeout_ms, NULL);
}

#endif
