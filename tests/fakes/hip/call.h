/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_CALL_H
#define TESTS_FAKES_HIP_CALL_H

#include "fake.h"

/*
 * Every call of HIP begins with one of these, which take the lock, and ends with
 * fake_end().
 */
unsigned int fake_begin(const char *function);
unsigned int fake_begin_unsafe(const char *function);
unsigned int fake_end(unsigned int error);

/* Finish all pending operations of all streams. */
void fake_finish_all(void);

/* The current device of this thread. */
int fake_current_device(void);
/* True if this thread is in relaxed capture mode. */
bool fake_is_relaxed(void);

#endif
