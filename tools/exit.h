/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_EXIT_H
#define PIER_TOOLS_EXIT_H

/* What the program exits with; pier(1) and `pier help` say the same. */
enum exit_status {
	EXIT_OK = 0,
	EXIT_FILE = 1,	   /* a file on either side could not be read or written */
	EXIT_USAGE = 2,	   /* unknown command, option, unit, or a missing argument */
	EXIT_DEVICE = 3,   /* device or memory is not there or refuses */
	EXIT_PEER = 4,	   /* the other side or the connection to it failed */
	EXIT_VERIFY = 5,   /* bytes arrived that were not sent */
	EXIT_SIGNAL = 128, /* and the number of the signal, on either side */
};

#endif
