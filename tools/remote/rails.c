/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdlib.h>

#include <pier/device.h>
#include <pier/error.h>

#include "rails.h"

/*
 * The library never chooses soft0: between processes of one host it will do. Between
 * hosts the user names it, for both sides.
 */
static int describe_rails(const struct pier_buffer *buffer, const char *devices,
			  bool local, struct wire_writer *writer, bool *ret_substitute,
			  struct failure *failure)
{
	const char *chosen = secure_getenv("PIER_DEVICE");
	int size = pier_rails_describe(buffer, devices[0] ? devices : NULL, writer->data,
				       sizeof(writer->data));
	bool none = size == -ENODEV && !devices[0] && !(chosen && chosen[0]);

	*ret_substitute = none && local;
	if (none && !local)
		return fail(failure, EXIT_DEVICE,
			    "%s; for both sides: --device soft0 --remote-device soft0",
			    pier_error_message());
	if (*ret_substitute)
		size = pier_rails_describe(buffer, PIER_SOFT_DEVICE, writer->data,
					   sizeof(writer->data));
	if (size < 0)
		return fail_pier(failure, EXIT_DEVICE);
	writer->length = (size_t)size;
	return 0;
}

int agree_on_rails(struct control *control, const struct pier_buffer *buffer,
		   const char *devices, bool local, struct pier_rail_pair *ret_pairs,
		   uint32_t most, bool *ret_substitute, int unreachable_status)
{
	struct wire_writer mine = { .length = 0 };
	struct frame theirs;
	int count;

	if (describe_rails(buffer, devices, local, &mine, ret_substitute,
			   control->failure) < 0 ||
	    control_send(control, FRAME_RAILS, &mine) < 0 ||
	    control_expect(control, FRAME_RAILS, &theirs) < 0)
		return -1;
	count = pier_rails_choose(mine.data, mine.length, theirs.payload, theirs.length,
				  ret_pairs, most, sizeof(ret_pairs[0]));
	if (count == -EBADMSG)
		return fail_pier(control->failure, EXIT_PEER);
	if (count == -EHOSTUNREACH)
		return fail_pier(control->failure, unreachable_status);
	return count < 0 ? fail_pier(control->failure, EXIT_DEVICE) : count;
}
