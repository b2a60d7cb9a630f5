/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_PRINT_H
#define PIER_TOOLS_DOCTOR_PRINT_H

struct report;

/* On standard output, with at most 80 columns. */
void print_report_text(const struct report *report);
void print_report_json(const struct report *report);

#endif
