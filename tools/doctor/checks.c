/* SPDX-License-Identifier: BSD-3-Clause */
#include "report.h"

static const struct check *const all_checks[] = {
	doctor_kernel_checks, doctor_memory_checks,   doctor_nic_checks,
	doctor_port_checks,   doctor_gpu_checks,      doctor_path_checks,
	doctor_limit_checks,  doctor_transfer_checks,
};

void run_checks(struct report *report)
{
	for (size_t i = 0; i < sizeof(all_checks) / sizeof(all_checks[0]); i++) {
		for (const struct check *check = all_checks[i]; check->name; check++) {
			report->group = check->group;
			report->check = check->name;
			check->run(report);
		}
	}
}
