/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_SOFT_PEER_H
#define PIER_TESTS_SOFT_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tests/unit/provider/soft/soft_fake.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"

/* What hostile peers of the software NIC on this host have in common. */

enum {
	PEER_MAX_FDS = 253 /* SCM_MAX_FD of unix(7) */
};

/* `length` bytes with `count` copies of `fd`, as sendmsg(2). */
ssize_t peer_send(int socket, const void *bytes, size_t length, int fd, int count);
/* The next bytes; closes all fds that come with them but the last. */
ssize_t peer_receive(int socket, void *ret_bytes, size_t size, int *ret_fd);

/* A memfd of `size` bytes; it stays sparse. */
int peer_memfd(uint64_t size, unsigned int flags, int seals);

/* Waits for it: the engine's thread may still be closing some. */
void peer_expect_fds(int expected);

static inline struct soft_qp *peer_qp(const struct soft_fixture *fixture)
{
	return (struct soft_qp *)fixture->qp;
}

static inline struct soft_fifo *peer_fifo(const struct soft_fixture *fixture)
{
	assert_non_null(peer_qp(fixture)->link.fifo);
	return peer_qp(fixture)->link.fifo;
}

/* Posts one request to `key` and steps both ends until it has completed. */
enum ibv_wc_status peer_transfer(struct soft_fixture *from, struct soft_fixture *to,
				 enum ibv_wr_opcode opcode, uint32_t key,
				 uint64_t address, uint32_t length);

/* In a child: as another user from here on, or the child ends. */
void peer_become_nobody(void);
bool peer_is_root(void);

#endif
