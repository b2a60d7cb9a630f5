/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>

#include "util/fd.h"
#include "util/log.h"
#include "soft.h"

/*
 * Leaves for peers on this host to copy into and out of a region on their own. What
 * they get is the fds of its memory, so a leave is given only to who could open our
 * memory anyhow; the region's bounds and rights are then the initiator's to keep, as
 * it keeps its own.
 */

enum {
	REMOTE = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	SPINS = 1000,
	/* A copy takes 0.1 ms or so; a peer that was stopped in one may take for ever. */
	DEADLINE_NANOSECONDS = 1000000000
};

/* Another user's process may hold keys of ours, but not whole files. */
static bool peer_may_have_fds(const struct soft_qp *qp)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(qp->link.tx_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		return false;
	return peer.uid == geteuid() || peer.uid == 0;
}

static bool is_grantable(const struct soft_mr *mr)
{
	if (mr->count > SOFT_WORD_PIECES)
		return false;
	for (uint32_t i = 0; i < mr->count; i++) {
		if (mr->pieces[i].fd < 0 || !mr->pieces[i].steady)
			return false;
	}
	return true;
}

/* -1: only a memfd can be opened again with fewer rights. */
static int open_readable(const struct soft_piece *piece)
{
	char path[32];

	if ((fcntl(piece->fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
		return fcntl(piece->fd, F_DUPFD_CLOEXEC, 0);
	if (piece->dmabuf)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", piece->fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static bool add_fd(struct soft_leave_word *word, const struct soft_piece *piece, int *fds)
{
	int fd = piece->fd;

	if (!(word->access & IBV_ACCESS_REMOTE_WRITE))
		fd = open_readable(piece);
	if (fd < 0)
		return false;
	fds[word->fd_count++] = fd;
	return true;
}

/* Pieces of one file follow the first of them, which brought the fd. */
static uint32_t find_fd(const struct soft_mr *mr, const struct soft_leave_word *word,
			uint32_t index)
{
	for (uint32_t i = 0; i < index; i++) {
		if (mr->pieces[i].fd == mr->pieces[index].fd)
			return word->pieces[i].fd;
	}
	return word->fd_count;
}

static bool describe(const struct soft_mr *mr, struct soft_leave_word *word, int *fds)
{
	for (uint32_t i = 0; i < mr->count; i++) {
		const struct soft_piece *piece = &mr->pieces[i];

		word->pieces[i].offset = piece->offset;
		word->pieces[i].length = piece->end - piece->start;
		word->pieces[i].fd = find_fd(mr, word, i);
		if (word->pieces[i].fd == word->fd_count && !add_fd(word, piece, fds))
			return false;
		word->count++;
	}
	return true;
}

static void close_reopened(const struct soft_leave_word *word, const int *fds)
{
	if (word->access & IBV_ACCESS_REMOTE_WRITE)
		return;
	for (uint32_t i = 0; i < word->fd_count; i++)
		pier_close_fd(fds[i]);
}

static bool find_slot(const struct soft_lane *lane, uint32_t *ret_slot)
{
	for (uint32_t i = 0; i < SOFT_MAX_GRANTS; i++) {
		if (!lane->given[i].mr) {
			*ret_slot = i;
			return true;
		}
	}
	return false;
}

static bool give(struct soft_qp *qp, struct soft_mr *mr, struct soft_leave_word *word)
{
	struct soft_lane *lane = qp->link.lane;
	struct soft_given *given;
	int fds[SOFT_WORD_PIECES];
	bool said = false;

	if (!find_slot(lane, &word->slot))
		return false;
	given = &lane->given[word->slot];
	word->serial = ++lane->next_serial ? lane->next_serial : ++lane->next_serial;
	word->iova = mr->iova;
	word->counted = mr->counter;
	atomic_store(&lane->in->valid[word->slot], word->serial);
	if (describe(mr, word, fds))
		said = pier_soft_say_leave(qp, word, fds);
	close_reopened(word, fds);
	if (!said) {
		atomic_store(&lane->in->valid[word->slot], 0);
		return false;
	}
	given->qp = qp;
	given->mr = mr;
	given->serial = word->serial;
	pier_list_append(&mr->given, &given->of_mr);
	return true;
}

void pier_soft_answer_ask(struct soft_qp *qp, uint32_t key)
{
	struct soft_mr *mr = pier_soft_find_key(&soft_context_of(qp)->mrs, key);
	struct soft_leave_word word = { .key = key }, denied = { .key = key };

	if (mr && mr->ibv.pd == qp->ibv.pd && !qp->link.closing)
		word.access = (uint32_t)mr->access & qp->attr.qp_access_flags & REMOTE;
	if (word.access && is_grantable(mr) && peer_may_have_fds(qp) &&
	    give(qp, mr, &word))
		return;
	/* What its memory is made of does not change while it has its key. */
	denied.never = mr && !is_grantable(mr);
	pier_soft_say_leave(qp, &denied, NULL);
}

/*
 * The peer says that it copies and then looks whether it still may; we say that it may
 * not and then look whether it copies; all of it sequentially consistent. Who is gone
 * does not copy. False: it does not stop.
 */
static bool wait_until_unused(const struct soft_qp *qp, uint32_t slot)
{
	_Atomic uint32_t *busy = &qp->link.lane->in->busy;
	uint64_t deadline = pier_soft_now() + DEADLINE_NANOSECONDS;

	for (uint64_t i = 0; atomic_load(busy) == slot + 1; i++) {
		if (i < SPINS)
			continue;
		if (pier_soft_is_gone(qp))
			return true;
		if (pier_soft_now() > deadline)
			return false;
		sched_yield();
	}
	return true;
}

static bool take_back(struct soft_qp *qp, struct soft_given *given)
{
	struct soft_lane *lane = qp->link.lane;
	uint32_t slot = (uint32_t)(given - lane->given);

	atomic_store(&lane->in->valid[slot], 0);
	pier_list_remove(&given->of_mr);
	given->mr = NULL;
	if (lane->stubborn || wait_until_unused(qp, slot))
		return !lane->stubborn;
	lane->stubborn = true;
	pier_warning("soft0: QP %#x: QP %#x was stopped while it copied into a region",
		     qp->ibv.qp_num, qp->attr.dest_qp_num);
	return false;
}

void pier_soft_forget_given(struct soft_qp *qp, uint32_t slot, uint32_t serial)
{
	struct soft_given *given = &qp->link.lane->given[slot % SOFT_MAX_GRANTS];

	if (given->mr && given->serial == serial)
		take_back(qp, given);
}

void pier_soft_revoke_region(struct soft_mr *mr)
{
	while (!pier_list_empty(&mr->given)) {
		struct soft_given *given = pier_container_of(mr->given.next,
							     struct soft_given, of_mr);
		struct soft_qp *qp = given->qp;
		uint32_t slot = (uint32_t)(given - qp->link.lane->given);

		if (take_back(qp, given))
			pier_soft_say_revoked(qp, slot, given->serial);
		else
			pier_soft_lose_link(qp);
	}
}

void pier_soft_revoke_link(struct soft_qp *qp)
{
	struct soft_lane *lane = qp->link.lane;

	for (uint32_t i = 0; lane && i < SOFT_MAX_GRANTS; i++) {
		if (!lane->given[i].mr)
			continue;
		if (take_back(qp, &lane->given[i]))
			pier_soft_say_revoked(qp, i, lane->given[i].serial);
	}
}
