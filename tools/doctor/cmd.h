/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_CMD_H
#define PIER_TOOLS_DOCTOR_CMD_H

#include "option.h"

/* Run `pier doctor`; returns an enum exit_status. */
int command_doctor(int argc, char **argv);

extern const struct option_table doctor_option_table;

#endif
