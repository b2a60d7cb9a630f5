/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_SUPPORT_REQUESTS_H
#define TESTS_SUPPORT_REQUESTS_H

/* Short forms of calls that tests make often. */

#include <errno.h>
#include <stdio.h>

#include <pier/backend.h>
#include <pier/error.h>
#include <pier/post.h>
#include <pier/recv_pool.h>
#include <pier/waiting.h>

static inline int test_post_send_imm(struct pier_channel *channel,
				     const struct pier_gather *sg_list, int num_sge,
				     uint32_t immediate, struct pier_work *ret_work)
{
	struct pier_request request = { .opcode = PIER_OP_SEND,
					.flags = PIER_POST_IMMEDIATE,
					.gather = sg_list,
					.num_sge = num_sge,
					.immediate = immediate };

	return pier_channel_post_request(channel, &request, ret_work);
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

	return pier_channel_post_request(channel, &request, ret_work);
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

	return pier_channel_post_request(channel, &request, ret_work);
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

	return pier_channel_post_request(channel, &request, ret_work);
}

/* With a remote vector. */

static inline struct pier_request test_write_vec(const struct pier_gather *list,
						 uint32_t num_sge,
						 const struct pier_remote *parts,
						 uint32_t count)
{
	return (struct pier_request){ .opcode = PIER_OP_WRITE,
				      .gather = list,
				      .num_sge = (int)num_sge,
				      .remote = parts,
				      .remote_count = count };
}

static inline struct pier_request test_read_vec(const struct pier_scatter *list,
						uint32_t num_sge,
						const struct pier_remote *parts,
						uint32_t count)
{
	return (struct pier_request){ .opcode = PIER_OP_READ,
				      .scatter = list,
				      .num_sge = (int)num_sge,
				      .remote = parts,
				      .remote_count = count };
}

static inline int test_post_write_vec(struct pier_channel *channel,
				      const struct pier_gather *list, uint32_t num_sge,
				      const struct pier_remote *parts, uint32_t count,
				      struct pier_work *ret_work)
{
	struct pier_request request = test_write_vec(list, num_sge, parts, count);

	return pier_channel_post_request(channel, &request, ret_work);
}

static inline int test_post_read_vec(struct pier_channel *channel,
				     const struct pier_scatter *list, uint32_t num_sge,
				     const struct pier_remote *parts, uint32_t count,
				     struct pier_work *ret_work)
{
	struct pier_request request = test_read_vec(list, num_sge, parts, count);

	return pier_channel_post_request(channel, &request, ret_work);
}

static inline int test_channel_write_vec(struct pier_channel *channel,
					 const struct pier_gather *list, uint32_t num_sge,
					 const struct pier_remote *parts, uint32_t count,
					 int timeout_ms)
{
	struct pier_request request = test_write_vec(list, num_sge, parts, count);

	return pier_channel_run_request(channel, &request, timeout_ms, NULL);
}

static inline int test_channel_read_vec(struct pier_channel *channel,
					const struct pier_scatter *list, uint32_t num_sge,
					const struct pier_remote *parts, uint32_t count,
					int timeout_ms)
{
	struct pier_request request = test_read_vec(list, num_sge, parts, count);

	return pier_channel_run_request(channel, &request, timeout_ms, NULL);
}

/* Wait for a request. Returns 0 or its error, -ETIMEDOUT if it is still outstanding. */
static inline int test_work_wait(struct pier_channel *channel, struct pier_work work,
				 int timeout_ms, struct pier_result *ret_result)
{
	struct pier_result result;
	int done = pier_work_wait(channel, work, timeout_ms, &result);

	if (done != 1)
		return done ? done : -ETIMEDOUT;
	if (ret_result)
		*ret_result = result;
	return result.error;
}

/* The same, and cancel the channel if the request is still outstanding. */
static inline int test_work_finish(struct pier_channel *channel, struct pier_work work,
				   int timeout_ms, struct pier_result *ret_result)
{
	struct pier_result result;
	int done = pier_work_wait(channel, work, timeout_ms, &result);
	char sentence[1024];

	if (done == -ESTALE)
		return done;
	snprintf(sentence, sizeof(sentence), "%s", pier_error_message());
	if (done != 1) {
		pier_channel_cancel(channel);
		pier_work_poll(channel, work, &result);
	}
	if (ret_result)
		*ret_result = result;
	if (done == 1)
		return result.error;
	return pier_fail(done ? -done : ETIMEDOUT, "%s", sentence);
}

/* attr may be NULL: the defaults. */
static inline int test_recv_pool_create(struct pier_pd *pd, struct pier_channel *channel,
					const struct pier_recv_pool_attr *attr,
					struct pier_recv_pool **ret_pool)
{
	struct pier_recv_pool_attr known;

	pier_recv_pool_attr_init(&known);
	if (attr)
		known = *attr;
	known.channel = channel;
	return pier_recv_pool_create(pd, &known, ret_pool);
}

/* The same as blocking calls. */

static inline int test_channel_send_imm(struct pier_channel *channel,
					const struct pier_gather *sg_list, int num_sge,
					uint32_t immediate, int timeout_ms)
{
	struct pier_request request = { .opcode = PIER_OP_SEND,
					.flags = PIER_POST_IMMEDIATE,
					.gather = sg_list,
					.num_sge = num_sge,
					.immediate = immediate };

	return pier_channel_run_request(channel, &request, timeout_ms, NULL);
}

static inline int test_channel_write_imm(struct pier_channel *channel,
					 const struct pier_gather *sg_list, int num_sge,
					 const struct pier_remote *remote,
					 uint32_t immediate, int timeout_ms)
{
	struct pier_request request = { .opcode = PIER_OP_WRITE,
					.flags = PIER_POST_IMMEDIATE,
					.gather = sg_list,
					.num_sge = num_sge,
					.immediate = immediate,
					.remote = remote };

	return pier_channel_run_request(channel, &request, timeout_ms, NULL);
}

static inline int test_channel_compare_swap(struct pier_channel *channel,
					    const struct pier_scatter *element,
					    const struct pier_remote *remote,
					    uint64_t compare, uint64_t swap,
					    int timeout_ms)
{
	struct pier_request request = { .opcode = PIER_OP_COMPARE_SWAP,
					.scatter = element,
					.num_sge = 1,
					.remote = remote,
					.compare = compare,
					.operand = swap };

	return pier_channel_run_request(channel, &request, timeout_ms, NULL);
}

static inline int test_channel_fetch_add(struct pier_channel *channel,
					 const struct pier_scatter *element,
					 const struct pier_remote *remote, uint64_t add,
					 int timeout_ms)
{
	struct pier_request request = { .opcode = PIER_OP_FETCH_ADD,
					.scatter = element,
					.num_sge = 1,
					.remote = remote,
					.operand = add };

	return pier_channel_run_request(channel, &request, timeout_ms, NULL);
}

#endif
