/* SPDX-License-Identifier: BSD-3-Clause */
/* Nothing of what libcuda.so.1 has. */

int nothing(void);

int nothing(void)
{
	return 0;
}
