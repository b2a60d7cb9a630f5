/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "provider/soft/queues/datagram.h"
#include "soft_fixture.h"
#include "tests/support/cmocka.h"

/* UD queue pairs and address handles. */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct fixture_options datagrams = { .meets = 1,
						  .datagrams = 1,
						  .depth = 64 };

enum {
	QKEY = 0x11111111,
	GRH = 40,
	MTU = 4096
};

static void go_to_rts(struct soft_fixture *fixture)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = QKEY,
	};

	assert_int_equal(soft->modify_qp(fixture->qp, &attr,
					 IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						 IBV_QP_QKEY),
			 0);
	attr.qp_state = IBV_QPS_RTR;
	assert_int_equal(soft->modify_qp(fixture->qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	assert_int_equal(
		soft->modify_qp(fixture->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static void open_ready(struct soft_fixture *fixture,
		       const struct fixture_options *options,
		       struct fixture_endpoint *ret_endpoint)
{
	fixture_open(fixture, options);
	fixture_describe(fixture, ret_endpoint);
	go_to_rts(fixture);
}

static struct ibv_ah *create_ah(const struct soft_fixture *fixture,
				const struct fixture_endpoint *to)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = 1,
		.grh = {
			.dgid = to->gid,
			.hop_limit = 7,
			.traffic_class = 0x12,
			.flow_label = 0x34567,
		},
	};

	return pier_soft_create_ah(fixture->pd, &attr);
}

/* Two ends, and the way from the first to the second. */
static struct ibv_ah *open_pair(struct soft_fixture *a, struct soft_fixture *b,
				struct fixture_endpoint *ret_to_b)
{
	struct fixture_endpoint to_a;
	struct ibv_ah *ah;

	open_ready(a, &datagrams, &to_a);
	open_ready(b, &datagrams, ret_to_b);
	ah = create_ah(a, ret_to_b);
	assert_non_null(ah);
	return ah;
}

/* Bytes from `offset` of our memory; the completion has the offset as its id. */
static int post(struct soft_fixture *fixture, struct ibv_ah *ah, uint32_t qpn,
		uint32_t qkey, uint64_t offset, uint32_t length, unsigned int flags)
{
	struct ibv_sge sge = fixture_sge(fixture, offset, length);
	struct ibv_send_wr *bad, wr = {
		.wr_id = offset,
		.sg_list = &sge,
		.num_sge = length > 0,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htobe32(77),
		.send_flags = IBV_SEND_SIGNALED | flags,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = qkey },
	};

	return ibv_post_send(fixture->qp, &wr, &bad);
}

static void send_to(struct soft_fixture *from, const struct fixture_endpoint *to,
		    uint32_t qkey, uint64_t offset, uint32_t length)
{
	struct ibv_ah *ah = create_ah(from, to);

	assert_non_null(ah);
	assert_int_equal(post(from, ah, to->qpn, qkey, offset, length, 0), 0);
	/* The request does not need it any more. */
	assert_int_equal(pier_soft_destroy_ah(ah), 0);
	fixture_expect(from, from->send_cq, NULL, offset, IBV_WC_SUCCESS);
}

static void check_grh(const uint8_t *memory, const struct fixture_endpoint *from,
		      const struct fixture_endpoint *to, uint32_t payload)
{
	struct ibv_grh grh;

	memcpy(&grh, memory, sizeof(grh));
	assert_int_equal(be32toh(grh.version_tclass_flow), 0x61234567);
	/* UDP, BTH, DETH, immediate data, payload, padding, ICRC. */
	assert_int_equal(be16toh(grh.paylen), 8 + 12 + 8 + 4 + (payload + 3) / 4 * 4 + 4);
	assert_int_equal(grh.next_hdr, IPPROTO_UDP);
	assert_int_equal(grh.hop_limit, 7);
	assert_memory_equal(&grh.sgid, &from->gid, 16);
	assert_memory_equal(&grh.dgid, &to->gid, 16);
}

static void check_message(struct soft_fixture *from, struct soft_fixture *to,
			  uint32_t length)
{
	struct fixture_endpoint source, target;
	struct ibv_wc wc;

	fixture_describe(from, &source);
	fixture_describe(to, &target);
	memset(from->memory, 'd', MTU);
	memset(to->memory + 8192, 'g', 8192);
	assert_int_equal(fixture_post_recv(to, 5, 8192 + 10, GRH + MTU), 0);
	send_to(from, &target, QKEY, 0, length);
	wc = fixture_wait(to, to->recv_cq, NULL);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.wr_id, 5);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	assert_int_equal(wc.byte_len, GRH + length);
	assert_int_equal(wc.qp_num, target.qpn);
	assert_int_equal(wc.src_qp, source.qpn);
	assert_int_equal(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	assert_int_equal(be32toh(wc.imm_data), 77);
	assert_int_equal(wc.slid, 0);
	assert_int_equal(to->memory[8192 + 9], 'g');
	check_grh(to->memory + 8192 + 10, &source, &target, length);
	assert_memory_equal(to->memory + 8192 + 10 + GRH, from->memory, length);
	assert_int_equal(to->memory[8192 + 10 + GRH + length], 'g');
}

static void a_datagram_arrives_behind_its_route(void **state)
{
	struct fixture_endpoint to_a, to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	open_ready(&b, &datagrams, &to_b);
	check_message(&a, &b, 1001);
	check_message(&b, &a, 0);
	check_message(&a, &b, MTU);
	check_message(&a, &a, 64); /* to itself */
	fixture_close(&a);
	fixture_close(&b);
}

static void a_shared_receive_queue_takes_datagrams(void **state)
{
	const struct fixture_options shared = { .meets = 1,
						.datagrams = 1,
						.srq_depth = 4 };
	struct fixture_endpoint to_a, to_b;
	struct soft_fixture a, b;
	struct ibv_recv_wr *bad, wr = { .wr_id = 1, .num_sge = 1 };
	struct ibv_sge sge;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	open_ready(&b, &shared, &to_b);
	/* The first receive is too small for the first datagram, and takes the next. */
	for (int i = 0; i < 2; i++) {
		sge = fixture_sge(&b, i * 8192, i == 0 ? GRH + 8 : GRH + MTU);
		wr.sg_list = &sge;
		assert_int_equal(ibv_post_srq_recv(b.srq, &wr, &bad), 0);
		wr.wr_id++;
	}
	send_to(&a, &to_b, QKEY, 0, 9);
	send_to(&a, &to_b, QKEY, 0, 8);
	fixture_expect(&b, b.recv_cq, NULL, 1, IBV_WC_SUCCESS);
	send_to(&a, &to_b, QKEY, 0, 9);
	fixture_expect(&b, b.recv_cq, NULL, 2, IBV_WC_SUCCESS);
	fixture_close(&a);
	fixture_close(&b);
}

/* When a datagram to another queue pair has arrived, those before it were handled. */
static void pass_by(struct soft_fixture *from, struct soft_fixture *to)
{
	struct fixture_endpoint endpoint;
	struct ibv_qp *qp = to->qp;

	fixture_create_qp(to);
	fixture_describe(to, &endpoint);
	go_to_rts(to);
	assert_int_equal(fixture_post_recv(to, 9, 0, GRH + 8), 0);
	send_to(from, &endpoint, QKEY, 9, 8);
	fixture_expect(to, to->recv_cq, NULL, 9, IBV_WC_SUCCESS);
	assert_int_equal(soft->destroy_qp(to->qp), 0);
	to->qp = qp;
}

/* As on a network: without a receive, another Q_Key, above the MTU, or to nobody. */
static void some_datagrams_are_lost(void **state)
{
	struct fixture_endpoint to_a, to_b, nobody;
	struct soft_fixture a, b;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	open_ready(&b, &datagrams, &to_b);
	nobody = to_b;
	nobody.qpn ^= 0x1000;
	send_to(&a, &to_b, QKEY, 1, 100);
	pass_by(&a, &b);
	assert_int_equal(fixture_post_recv(&b, 6, 0, GRH + 100), 0);
	send_to(&a, &to_b, QKEY + 1, 2, 100);
	send_to(&a, &to_b, QKEY, 3, 101);
	send_to(&a, &to_b, QKEY, 4, MTU + 1);
	send_to(&a, &nobody, QKEY, 5, 8);
	send_to(&a, &to_b, QKEY, 6, 99);
	assert_int_equal(fixture_wait(&b, b.recv_cq, NULL).byte_len, GRH + 99);
	fixture_expect_none(&b, b.recv_cq);
	fixture_close(&a);
	fixture_close(&b);
}

/* The highest bit of a Q_Key stands for the sender's own. */
static void a_controlled_qkey_is_the_senders(void **state)
{
	struct fixture_endpoint to_a;
	struct soft_fixture a;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	assert_int_equal(fixture_post_recv(&a, 1, 0, GRH + 8), 0);
	send_to(&a, &to_a, 0x80000000, 0, 8);
	fixture_expect(&a, a.recv_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_close(&a);
}

/* The next sends find that the receiver has no room. */
static atomic_int full_sends, sends;
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (!message->msg_name)
		return __real_sendmsg(fd, message, flags);
	atomic_fetch_add(&sends, 1);
	if (atomic_load(&full_sends) == 0)
		return __real_sendmsg(fd, message, flags);
	atomic_fetch_sub(&full_sends, 1);
	errno = EAGAIN;
	return -1;
}

static void a_datagram_waits_for_room(void **state)
{
	struct fixture_endpoint to_a, to_b;
	struct soft_fixture a, b;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	open_ready(&b, &datagrams, &to_b);
	assert_int_equal(fixture_post_recv(&b, 1, 0, GRH + MTU), 0);
	atomic_store(&full_sends, 5);
	send_to(&a, &to_b, QKEY, 0, 16);
	assert_int_equal(atomic_load(&full_sends), 0);
	fixture_expect(&b, b.recv_cq, NULL, 1, IBV_WC_SUCCESS);
	fixture_close(&a);
	fixture_close(&b);
}

/* After one datagram was lost, the receiver is not waited for until it takes one. */
static void a_slow_receiver_is_waited_for_once(void **state)
{
	struct fixture_endpoint to_a;
	struct soft_fixture a;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	atomic_store(&full_sends, INT_MAX);
	send_to(&a, &to_a, QKEY, 0, 16);
	atomic_store(&sends, 0);
	for (int i = 0; i < 10; i++)
		send_to(&a, &to_a, QKEY, i, 16);
	assert_int_equal(atomic_load(&sends), 10);
	atomic_store(&full_sends, 0);
	check_message(&a, &a, 8);
	atomic_store(&full_sends, 5);
	check_message(&a, &a, 8);
	fixture_close(&a);
}

/* More than the kernel queues for a receiver. */
static void a_burst_arrives_in_order(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;
	struct ibv_ah *ah;

	(void)state;
	ah = open_pair(&a, &b, &to_b);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 60; i++)
			assert_int_equal(fixture_post_recv(&b, i, 0, GRH + MTU), 0);
		for (int i = 0; i < 60; i++)
			assert_int_equal(post(&a, ah, to_b.qpn, QKEY, i, 100 + i, 0), 0);
		for (int i = 0; i < 60; i++) {
			fixture_expect(&a, a.send_cq, NULL, i, IBV_WC_SUCCESS);
			assert_int_equal(fixture_wait(&b, b.recv_cq, NULL).byte_len,
					 GRH + 100 + i);
		}
	}
	assert_int_equal(pier_soft_destroy_ah(ah), 0);
	fixture_close(&a);
	fixture_close(&b);
}

/* As on hardware, which has sent them by then. */
static void destroying_sends_what_waits_for_room(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;
	struct ibv_ah *ah;

	(void)state;
	ah = open_pair(&a, &b, &to_b);
	for (int i = 0; i < 3; i++)
		assert_int_equal(fixture_post_recv(&b, i, 0, GRH + MTU), 0);
	atomic_store(&full_sends, 20);
	for (int i = 0; i < 3; i++)
		assert_int_equal(post(&a, ah, to_b.qpn, QKEY, i, 16, 0), 0);
	assert_int_equal(soft->destroy_qp(a.qp), 0);
	a.qp = NULL;
	assert_int_equal(atomic_load(&full_sends), 0);
	for (int i = 0; i < 3; i++)
		fixture_expect(&b, b.recv_cq, NULL, i, IBV_WC_SUCCESS);
	assert_int_equal(pier_soft_destroy_ah(ah), 0);
	fixture_close(&a);
	fixture_close(&b);
}

static void serve(int fd)
{
	struct fixture_endpoint mine;
	struct soft_fixture fixture;
	char word;

	open_ready(&fixture, &datagrams, &mine);
	fixture_write_all(fd, &mine, sizeof(mine));
	fixture_read_all(fd, &word, 1);
	fixture_close(&fixture);
}

static pid_t fork_server(int *ret_fd, struct fixture_endpoint *ret_its)
{
	int fds[2];
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		serve(fds[1]);
		_exit(0);
	}
	close(fds[1]);
	*ret_fd = fds[0];
	fixture_read_all(fds[0], ret_its, sizeof(*ret_its));
	return child;
}

static void name_socket(const char *kind, const union ibv_gid *gid, char *ret_path,
			size_t size)
{
	int used = snprintf(ret_path, size, "%s/pier-soft0/%s-",
			    getenv("XDG_RUNTIME_DIR"), kind);

	for (int i = 8; i < 16; i++)
		used += snprintf(ret_path + used, size - used, "%02x", gid->raw[i]);
}

/* The next process removes the sockets of a dead one, but not those of a living one. */
static void sweep_dead(const union ibv_gid *gid)
{
	const struct timespec old[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	char dead[2][128], living[128];
	struct fixture_endpoint its;
	struct soft_fixture next;
	int fd, status;
	pid_t child = fork_server(&fd, &its);

	name_socket("qp", gid, dead[0], sizeof(dead[0]));
	name_socket("ud", gid, dead[1], sizeof(dead[1]));
	name_socket("ud", &its.gid, living, sizeof(living));
	assert_int_equal(access(dead[0], F_OK), 0);
	assert_int_equal(utimensat(AT_FDCWD, dead[1], old, 0), 0);
	assert_int_equal(utimensat(AT_FDCWD, living, old, 0), 0);
	fixture_open(&next, &datagrams);
	assert_int_equal(access(dead[0], F_OK), -1);
	assert_int_equal(access(dead[1], F_OK), -1);
	assert_int_equal(access(living, F_OK), 0);
	fixture_write_all(fd, "x", 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(fd);
	fixture_close(&next);
}

/* All sends complete, and another receiver still gets its datagrams. */
static void a_stopped_receiver_does_not_stop_the_sender(void **state)
{
	struct fixture_endpoint its, to_a;
	struct soft_fixture a;
	struct ibv_ah *ah;
	int fd, status;
	pid_t child;

	(void)state;
	child = fork_server(&fd, &its);
	open_ready(&a, &datagrams, &to_a);
	ah = create_ah(&a, &its);
	assert_non_null(ah);
	kill(child, SIGSTOP);
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	for (int i = 0; i < 60; i++)
		assert_int_equal(post(&a, ah, its.qpn, QKEY, i, 64, 0), 0);
	for (int i = 0; i < 60; i++)
		fixture_expect(&a, a.send_cq, NULL, i, IBV_WC_SUCCESS);
	check_message(&a, &a, 100);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	/* To a process that is gone. */
	send_to(&a, &its, QKEY, 3, 8);
	assert_int_equal(pier_soft_destroy_ah(ah), 0);
	close(fd);
	fixture_close(&a);
	sweep_dead(&its.gid);
}

static void a_bad_request_is_refused(void **state)
{
	struct fixture_endpoint to_a, elsewhere;
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND };
	struct soft_fixture a;
	struct ibv_ah *ah;

	(void)state;
	open_ready(&a, &datagrams, &to_a);
	ah = create_ah(&a, &to_a);
	assert_non_null(ah);
	assert_int_equal(soft->dealloc_pd(a.pd), EBUSY);
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	test_assert_sentence("address handle");
	wr.wr.ud.ah = ah;
	wr.opcode = IBV_WR_RDMA_WRITE;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	test_assert_sentence("can only send");
	wr.opcode = IBV_WR_SEND;
	wr.wr.ud.remote_qpn = 1 << 24;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	assert_int_equal(pier_soft_destroy_ah(ah), 0);
	elsewhere = to_a;
	memset(elsewhere.gid.raw + 8, 0, 8);
	assert_null(create_ah(&a, &elsewhere));
	assert_int_equal(errno, EHOSTUNREACH);
	test_assert_sentence("do not reach other hosts");
	fixture_close(&a);
}

static void bad_memory_fails_the_queue_pair(void **state)
{
	struct fixture_endpoint to_b;
	struct soft_fixture a, b;
	struct ibv_ah *ah;

	(void)state;
	ah = open_pair(&a, &b, &to_b);
	assert_int_equal(fixture_post_recv(&b, 1, FIXTURE_MEMORY - 8, GRH + 8), 0);
	send_to(&a, &to_b, QKEY, 0, 8);
	fixture_expect(&b, b.recv_cq, NULL, 1, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(b.qp->state, IBV_QPS_ERR);
	assert_int_equal(post(&a, ah, to_b.qpn, QKEY, FIXTURE_MEMORY - 8, 16, 0), 0);
	fixture_expect(&a, a.send_cq, NULL, FIXTURE_MEMORY - 8, IBV_WC_LOC_PROT_ERR);
	assert_int_equal(a.qp->state, IBV_QPS_ERR);
	assert_int_equal(pier_soft_destroy_ah(ah), 0);
	fixture_close(&a);
	fixture_close(&b);
}

static void without_a_meeting_there_are_no_datagrams(void **state)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD };
	struct soft_fixture a;

	(void)state;
	fixture_open(&a, NULL);
	attr.send_cq = attr.recv_cq = a.send_cq;
	assert_null(soft->create_qp(a.pd, &attr));
	assert_int_equal(errno, EOPNOTSUPP);
	fixture_close(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_datagram_arrives_behind_its_route),
		cmocka_unit_test(a_shared_receive_queue_takes_datagrams),
		cmocka_unit_test(some_datagrams_are_lost),
		cmocka_unit_test(a_controlled_qkey_is_the_senders),
		cmocka_unit_test(a_datagram_waits_for_room),
		cmocka_unit_test(a_slow_receiver_is_waited_for_once),
		cmocka_unit_test(a_burst_arrives_in_order),
		cmocka_unit_test(destroying_sends_what_waits_for_room),
		cmocka_unit_test(a_stopped_receiver_does_not_stop_the_sender),
		cmocka_unit_test(a_bad_request_is_refused),
		cmocka_unit_test(bad_memory_fails_the_queue_pair),
		cmocka_unit_test(without_a_meeting_there_are_no_datagrams),
	};

	return cmocka_run_group_tests(tests, fixture_make_folder, fixture_remove_folder);
}
