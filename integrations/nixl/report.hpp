/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_REPORT_HPP
#define PIER_NIXL_REPORT_HPP

#include "nixl_abi.hpp"

namespace pier_nixl
{

/*
 * Print one line to standard error, as printf(3). NIXL's interface returns statuses
 * without text, so this is where the reason can be read.
 */
void report_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Print the step that failed with pier_error_message(). */
void report_failure(const char *step);

/* Return NIXL's status for an error of pier, a negative errno. */
nixl_status_t status_of(int error);

} // namespace pier_nixl

#endif
