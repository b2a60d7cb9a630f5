/* SPDX-License-Identifier: BSD-3-Clause */
#include "sizes.h"

/* The next power of 2. */
static uint64_t round_up(uint64_t number)
{
	uint64_t power = 1;

	while (power < number)
		power *= 2;
	return power;
}

static uint64_t align_up(uint64_t number, uint64_t unit)
{
	return (number + unit - 1) / unit * unit;
}

static uint64_t larger_size(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

/*
 * mlx5_calc_send_wqe() and mlx5_calc_sq_size() in providers/mlx5/verbs.c: a request of an
 * RC queue pair takes 192 bytes (_sq_overhead(): control 16, UMR control 48, memory key
 * 64, at least 64 of translations) and 16 for each element, or its inline data, in units
 * of 64 bytes. The queue, rounded up to a power of 2, has at most as many units as
 * query_device() reports requests. mlx5_calc_rq_size(): a receive has at most 512 bytes.
 */
bool pier_persona_fits_mlx5(const struct ibv_qp_cap *cap)
{
	enum {
		OVERHEAD = 192,
		ELEMENT = 16,
		INLINE_HEADER = 4,
		UNIT = 64,
		UNITS = 32768,
		LONGEST_SEND = 1024, /* max_wqe_sz_sq of ConnectX */
		LONGEST_RECEIVE = 512,
	};
	uint64_t gathered = OVERHEAD + (uint64_t)cap->max_send_sge * ELEMENT;
	uint64_t inlined = OVERHEAD +
			   align_up(INLINE_HEADER + (uint64_t)cap->max_inline_data, 16);
	uint64_t size = larger_size(gathered, cap->max_inline_data ? inlined : 0);

	if (size > LONGEST_SEND || cap->max_recv_wr > UNITS ||
	    (uint64_t)cap->max_recv_sge * ELEMENT > LONGEST_RECEIVE)
		return false;
	return round_up(cap->max_send_wr * align_up(size, UNIT)) / UNIT <= UNITS;
}

/*
 * irdma_ucreate_qp(), irdma_get_wqe_shift(), irdma_get_sqdepth() in providers/irdma: a
 * request takes 1, 2, 4 or 8 quanta of 32 bytes. One element is for immediate data.
 */
bool pier_persona_fits_irdma(const struct ibv_qp_cap *cap)
{
	enum {
		ELEMENTS = 13, /* IRDMA_MAX_WQ_FRAGMENT_COUNT */
		INLINE = 101,  /* IRDMA_MAX_INLINE_DATA_SIZE */
		QUANTA = 32768,
		RESERVED_SENDS = 258, /* IRDMA_SQ_RSVD */
		RESERVED_RECEIVES = 1,
	};
	uint64_t sge = cap->max_send_sge + UINT64_C(1), data = cap->max_inline_data;
	uint64_t send = sge < 2 && data <= 8	? 1
			: sge < 4 && data <= 39 ? 2
			: sge < 8		? 4
						: 8;
	uint64_t receive = cap->max_recv_sge < 2   ? 1
			   : cap->max_recv_sge < 4 ? 2
			   : cap->max_recv_sge < 8 ? 4
						   : 8;

	return cap->max_send_sge <= ELEMENTS && cap->max_recv_sge <= ELEMENTS &&
	       data <= INLINE &&
	       round_up(cap->max_send_wr * send + RESERVED_SENDS) <= QUANTA &&
	       round_up(cap->max_recv_wr * receive + RESERVED_RECEIVES) <= QUANTA;
}
