/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two processes connected by a socket, as two machines would be. The parent reads
 * the child's memory while the child sleeps. Without an RDMA NIC run it with
 * PIER_DEVICE=soft0.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

#define SIZE 65536

struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *mr;
	struct pier_channel *channel;
	unsigned char *bytes;
};

/* Allocate memory, register it, and connect a channel over the socket. */
static int open_side(struct side *side, int socket)
{
	void *bytes;

	/* Each process opens the device: an open device does not survive fork(). */
	if (pier_device_open(NULL, &side->device) ||
	    pier_pd_alloc(side->device, &side->pd) ||
	    pier_buffer_alloc("host", SIZE, &side->buffer) ||
	    pier_buffer_map(side->buffer, &bytes) ||
	    pier_mr_reg_buffer(side->pd, side->buffer, 0, SIZE, PIER_ACCESS_SHARED,
			       PIER_POLICY_DIRECT, &side->mr) ||
	    pier_channel_create(side->pd, NULL, &side->channel))
		return -1;
	side->bytes = bytes;
	return pier_channel_handshake(side->channel, socket, socket,
				      PIER_TIMEOUT_DEFAULT);
}

static int close_side(struct side *side)
{
	return pier_channel_destroy(side->channel) || pier_mr_dereg(side->mr) ||
	       pier_buffer_free(side->buffer) || pier_pd_dealloc(side->pd) ||
	       pier_device_close(side->device);
}

static int report_failure(const char *who)
{
	fprintf(stderr, "%s: %s\n", who, pier_error_message());
	return 1;
}

/* Describe the memory to the parent, then wait until the socket is closed. */
static int serve_memory(int socket)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	struct side side;

	if (open_side(&side, socket) || pier_mr_remote(side.mr, &remote))
		return report_failure("child");
	memset(side.bytes, 'p', SIZE);
	pier_remote_pack(&remote, wire);
	if (write(socket, wire, sizeof(wire)) != sizeof(wire))
		return 1;
	while (read(socket, wire, sizeof(wire)) > 0)
		;
	return close_side(&side) ? report_failure("child") : 0;
}

static int fetch_memory(int socket)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	struct pier_scatter piece;
	struct side side;

	if (open_side(&side, socket))
		return report_failure("parent");
	if (recv(socket, wire, sizeof(wire), MSG_WAITALL) != sizeof(wire))
		return 1;
	if (pier_remote_unpack(wire, sizeof(wire), &remote) ||
	    pier_mr_scatter(side.mr, pier_buffer_address(side.buffer), SIZE, &piece) ||
	    pier_channel_read(side.channel, &piece, 1, &remote, PIER_TIMEOUT_DEFAULT))
		return report_failure("parent");
	printf("%u bytes read from the other process, the last is '%c'\n", SIZE,
	       side.bytes[SIZE - 1]);
	return close_side(&side) ? report_failure("parent") : 0;
}

int main(void)
{
	int sockets[2], status, child_status;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		return 1;
	child = fork();
	if (child < 0)
		return 1;
	if (child == 0) {
		close(sockets[0]);
		_exit(serve_memory(sockets[1]));
	}
	close(sockets[1]);
	status = fetch_memory(sockets[0]);
	close(sockets[0]);
	if (waitpid(child, &child_status, 0) != child || child_status)
		return 1;
	return status;
}
