/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "remote/control.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"

/* Each write becomes a packet. A signal can end a command between two of them. */
static void short_frame_is_one_write(void **state)
{
	static const size_t lengths[] = { 0, 1, 8, PIPE_BUF - 8 };
	static uint8_t packet[2 * PIPE_BUF];
	struct failure failure = { 0 };
	struct control control = {
		.in = -1,
		.signal_fd = -1,
		.timeout_ms = 60000,
		.failure = &failure,
	};
	int ends[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	control.out = ends[0];
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct wire_writer writer = { .length = lengths[i] };
		struct wire_reader reader = { packet, 8, false };

		memset(writer.data, 0x5a, lengths[i]);
		assert_int_equal(control_send(&control, FRAME_READY, &writer), 0);
		assert_int_equal(recv(ends[1], packet, sizeof(packet), MSG_DONTWAIT),
				 8 + lengths[i]);
		assert_int_equal(get_u32(&reader), lengths[i]);
		assert_int_equal(get_u32(&reader), FRAME_READY);
		assert_memory_equal(packet + 8, writer.data, lengths[i]);
	}
	control_close(&control);
	close(ends[1]);
	assert_int_equal(failure.status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(short_frame_is_one_write),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
