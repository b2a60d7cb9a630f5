/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_INFO_PRINT_TEXT_H
#define PIER_TOOLS_INFO_PRINT_TEXT_H

#include "facts.h"

void print_device_text(const struct device_facts *facts);
void print_backends_text(const struct pier_backend_info *list, size_t count);
void print_unit_text(const struct unit_facts *facts);

#endif
