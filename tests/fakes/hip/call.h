/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_HIP_CALL_H
#define TESTS_FAKES_HIP_CALL_H

#include "fake.h"

/* A call of HIP begins with one of these, and ends with fake_end(): it has the lock. */
unsigned int fake_begin(const char *function);
unsigned int fake_begin_unsafe(const char *function);
unsigned int fake_end(unsigned int error);

/* All that is under way, in any stream. */
void fake_finish_all(void);

/* Of this thread. */
int fake_current_device(void);
/* Whether it does not care about captures of others. */
bool fake_is_relaxed(void);

#endif
