/* SPDX-License-Identifier: BSD-3-Clause */
#include "control.h"

static struct fake_cuda fake;

__attribute__((visibility("default"))) struct fake_cuda *fake_cuda_control(void)
{
	return &fake;
}
