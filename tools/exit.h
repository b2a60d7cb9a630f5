/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_EXIT_H
#define PIER_TOOLS_EXIT_H

/* Exit statuses of the program, as documented in pier(1) and `pier help`. */
enum exit_status {
	EXIT_OK = 0,
	EXIT_FILE = 1,	   /* a file on either side could not be read or written */
	EXIT_USAGE = 2,	   /* unknown command, option, unit, or a missing argument */
	EXIT_DEVICE = 3,   /* a device or memory is unavailable or rejects the request */
	EXIT_PEER = 4,	   /* the other side, or the connection to it, failed */
	EXIT_VERIFY = 5,   /* the bytes that arrived differ from those that were sent */
	EXIT_WARNINGS = 6, /* pier doctor has warnings */
	EXIT_ERRORS = 7,   /* pier doctor has errors */
	EXIT_SIGNAL = 128, /* plus the number of the signal that ended either side */
};

#endif
