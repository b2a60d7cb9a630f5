/* SPDX-License-Identifier: BSD-3-Clause */
#include <pier/recovery.h>

/* Conversions of times in struct pier_channel_attr. */

enum {
	CODES = 32, /* of RNR timers: 5 bits */
};

/*
 * IBTA table 45: 10 us times 1, 2, 3, 4, 6, 8, 12, 16, 24, ... for codes from 1 on.
 * Code 0 is the longest, as if it were 32.
 */
uint32_t pier_rnr_timer_to_us(uint8_t code)
{
	uint32_t step = code % CODES == 0 ? CODES : code % CODES;

	if (step == 1)
		return 10;
	return step % 2 ? 30u << ((step - 3) / 2) : 10u << (step / 2);
}

uint8_t pier_rnr_timer_from_us(uint32_t us)
{
	for (uint8_t code = 1; code < CODES; code++)
		if (pier_rnr_timer_to_us(code) >= us)
			return code;
	return 0;
}

/* 4.096 us * 2^n (IBTA 9.7.6.1.3). */
uint64_t pier_ack_timeout_to_us(uint8_t exponent)
{
	return exponent ? (UINT64_C(4096) << (exponent % 32)) / 1000 : 0;
}
