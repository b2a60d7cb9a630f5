/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TEST_MANUAL_CLOCK_H
#define TEST_MANUAL_CLOCK_H

#include <stdbool.h>

/*
 * The library's clock in a unit test that is linked with manual_clock.c. The test
 * advances it, so no verdict depends on the speed of the machine. By itself it moves by
 * 10 ns each time that the library looks at it, for loops that spin. soft0 keeps its own
 * clock; the times of fault plans are the library's.
 *
 * A wait of the library sleeps until an event comes or another thread advances the clock
 * to the wait's end. One for which neither happens within minutes aborts the program.
 */
void manual_clock_advance(int ms);

/*
 * While the clock hurries, a wait for which there is no event yet moves it to the wait's
 * end at once, and each look at it takes 10 us.
 */
void manual_clock_hurry(bool hurries);

/*
 * From now on the clock moves as fast as time passes, but by at most 20 ms from one look
 * at it to the next, also of a wait. So it stands still while the program is stopped
 * (SIGSTOP).
 */
void manual_clock_run(void);

#endif
