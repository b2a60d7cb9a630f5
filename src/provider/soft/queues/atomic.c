/* SPDX-License-Identifier: BSD-3-Clause */
#include <endian.h>
#include <linux/dma-buf.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomic.h"
#include "provider/soft/regions/dmabuf.h"
#include "provider/soft/regions/segments.h"
#include "provider/soft/regions/region.h"
#include "provider/soft/regions/window.h"
#include "provider/soft/soft.h"

/*
 * Atomic operations on the memory of a region use those of the CPU. So they are atomic
 * for every queue pair of every context that reaches the memory, for the program's own
 * atomics on it, and for those of other processes.
 *
 * Unlike a system call, such an instruction does not survive a fault. Memory that has
 * vanished (unmapped, protected, a file that became shorter) must be an error completion
 * and not a signal. So the kernel is first asked to add 0 to half of the word, by
 * futex(2). That takes every fault that a write to the page can take, of anonymous
 * memory, files and mappings of page frames alike, and fails with EFAULT where the write
 * would be a signal. It also works on demand. What remains is memory that another thread
 * takes away, while a peer has the right to change it, within the few instructions
 * between the two. Only a lock over the address space, which user space does not have,
 * would help against that.
 */

struct word {
	uint64_t *memory;
	int sync_fd;
};

/*
 * The response is written to the requester's memory as it arrives, little-endian;
 * swapping its bytes there would have to survive faults as well.
 */
enum ibv_atomic_cap pier_soft_atomic_cap(void)
{
	bool same = __BYTE_ORDER == __LITTLE_ENDIAN;

	return same && __atomic_always_lock_free(sizeof(uint64_t), NULL)
		       ? IBV_ATOMIC_GLOB
		       : IBV_ATOMIC_NONE;
}

/*
 * The page rule gives the address the alignment of the memory, but not in a region of
 * several segments. There the memory must be aligned as well, as in rxe_mr_do_atomic_op()
 * of rxe.
 */
static bool find_in_segments(const struct soft_mr *mr, uint64_t address,
			     struct word *ret_word)
{
	uint64_t offset = address - mr->iova;
	const struct soft_segment *segment = pier_soft_find_segment(mr, offset);
	char *memory = segment->memory + (offset - segment->start);

	if (address % SOFT_WORD_SIZE || (uintptr_t)memory % SOFT_WORD_SIZE ||
	    segment->end - offset < SOFT_WORD_SIZE)
		return false;
	*ret_word = (struct word){ (uint64_t *)memory,
				   segment->dmabuf ? segment->fd : -1 };
	return true;
}

static enum soft_syndrome find_word(struct soft_qp *qp, const struct soft_header *header,
				    struct word *ret_word)
{
	const struct soft_mr *mr = pier_soft_find_range(qp, header->key, header->address,
							header->length,
							IBV_ACCESS_REMOTE_ATOMIC);

	if (!mr || !(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC))
		return SOFT_NAK_ACCESS;
	return find_in_segments(mr, header->address, ret_word) ? SOFT_NO_NAK
							       : SOFT_NAK_INVALID_REQUEST;
}

enum soft_syndrome pier_soft_check_atomic(struct soft_qp *qp,
					  const struct soft_header *header)
{
	struct word word;

	if (pier_soft_atomic_cap() == IBV_ATOMIC_NONE)
		return SOFT_NAK_INVALID_REQUEST;
	return find_word(qp, header, &word);
}

/* No thread waits on `nobody`; a waiter on the word may be woken, which is allowed. */
static bool is_word_writable(uint64_t *memory)
{
	uint32_t nobody = 0;

	return syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, memory,
		       FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)) >= 0;
}

static uint64_t operand_at(const struct soft_link *link, int index)
{
	uint64_t value;

	memcpy(&value, link->operands + index * SOFT_WORD_SIZE, sizeof(value));
	return le64toh(value);
}

static uint64_t change_word(uint64_t *memory, uint8_t opcode, uint64_t first,
			    uint64_t second)
{
	if (opcode == SOFT_FETCH_ADD)
		return __atomic_fetch_add(memory, first, __ATOMIC_SEQ_CST);
	/* Stores the old value in `first` if it differs. */
	__atomic_compare_exchange_n(memory, &first, second, false, __ATOMIC_SEQ_CST,
				    __ATOMIC_SEQ_CST);
	return first;
}

enum soft_syndrome pier_soft_execute_atomic(struct soft_qp *qp,
					    const struct soft_header *header,
					    uint64_t *ret_word)
{
	struct word word;
	enum soft_syndrome syndrome = find_word(qp, header, &word);
	bool there;

	/* The operands may arrive long after the header. */
	if (syndrome != SOFT_NO_NAK)
		return syndrome;
	if (word.sync_fd >= 0)
		pier_soft_sync(word.sync_fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_START);
	there = is_word_writable(word.memory);
	if (there)
		*ret_word = change_word(word.memory, header->opcode,
					operand_at(&qp->link, 0),
					operand_at(&qp->link, 1));
	if (word.sync_fd >= 0)
		pier_soft_sync(word.sync_fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END);
	return there ? SOFT_NO_NAK : SOFT_NAK_ACCESS;
}
