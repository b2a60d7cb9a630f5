/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two hosts. A TCP connection carries the endpoints of the channel and the description
 * of the server's memory; the NICs carry the bytes.
 *
 *	two_hosts PORT             the server; port 0: any. It prints its port
 *	two_hosts HOST PORT        the client, which writes into the server's memory
 *
 * Without RDMA NICs set PIER_DEVICE=soft0, and PIER_SOFT_ADDRESS=:: on two hosts.
 */
#include <err.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <pier/pier.h>

enum {
	SIZE = 1 << 20,
};

struct side {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_mr *mr;
	struct pier_channel *channel;
};

static unsigned char bytes[SIZE];

/* Print the port, and wait for one connection. */
static int accept_client(int listener)
{
	struct sockaddr_storage name;
	socklen_t length = sizeof(name);
	char port[NI_MAXSERV];

	if (listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&name, &length) ||
	    getnameinfo((struct sockaddr *)&name, length, NULL, 0, port, sizeof(port),
			NI_NUMERICSERV))
		err(1, "listen");
	printf("waiting on port %s\n", port);
	fflush(stdout);
	return accept(listener, NULL, NULL);
}

/* Connect to the host, or wait for a client if it is NULL. */
static int open_socket(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
	int (*use)(int, const struct sockaddr *, socklen_t) = host ? connect : bind;
	struct addrinfo *list, *address;
	int error = getaddrinfo(host, port, &hints, &list), fd = -1, yes = 1;

	if (error)
		errx(1, "%s: %s", host ? host : port, gai_strerror(error));
	/* A name can have several addresses: the first that works. */
	for (address = list; address; address = address->ai_next) {
		fd = socket(address->ai_family, address->ai_socktype, 0);
		if (fd >= 0 &&
		    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
		    use(fd, address->ai_addr, address->ai_addrlen) == 0)
			break;
		if (fd >= 0)
			close(fd);
	}
	if (!address)
		err(1, "port %s", port);
	freeaddrinfo(list);
	return host ? fd : accept_client(fd);
}

static int open_side(struct side *side, int socket)
{
	return pier_device_open(NULL, &side->device) ||
	       pier_pd_alloc(side->device, &side->pd) ||
	       pier_mr_reg(side->pd, bytes, SIZE, PIER_ACCESS_SHARED, &side->mr) ||
	       pier_channel_create(side->pd, NULL, &side->channel) ||
	       pier_channel_handshake(side->channel, socket, socket,
				      PIER_TIMEOUT_DEFAULT);
}

static int close_side(struct side *side)
{
	return pier_channel_destroy(side->channel) || pier_mr_dereg(side->mr) ||
	       pier_pd_dealloc(side->pd) || pier_device_close(side->device);
}

/* The client's immediate data announces that all bytes are in place. */
static int serve(struct side *side, int socket)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_remote remote;
	struct pier_result result;

	if (pier_mr_remote(side->mr, &remote))
		return -1;
	pier_remote_pack(&remote, wire);
	if (send(socket, wire, sizeof(wire), MSG_NOSIGNAL) != sizeof(wire))
		err(1, "send");
	if (pier_channel_recv(side->channel, NULL, 0, PIER_TIMEOUT_DEFAULT, &result))
		return -1;
	printf("%u bytes arrived, the last is '%c'\n", result.immediate, bytes[SIZE - 1]);
	return 0;
}

static int write_memory(struct side *side, int socket)
{
	uint8_t wire[PIER_REMOTE_WIRE_SIZE];
	struct pier_gather piece;
	struct pier_remote remote;
	struct pier_request request = {
		.opcode = PIER_OP_WRITE,
		.flags = PIER_POST_IMMEDIATE,
		.gather = &piece,
		.num_sge = 1,
		.immediate = SIZE,
		.remote = &remote,
	};

	memset(bytes, 'p', SIZE);
	if (recv(socket, wire, sizeof(wire), MSG_WAITALL) != sizeof(wire))
		errx(1, "the server is gone");
	return pier_remote_unpack(wire, sizeof(wire), &remote) ||
	       pier_mr_gather(side->mr, (uintptr_t)bytes, SIZE, &piece) ||
	       pier_channel_run_request(side->channel, &request, PIER_TIMEOUT_DEFAULT,
					NULL);
}

int main(int argc, char **argv)
{
	const char *host = argc == 3 ? argv[1] : NULL;
	struct side side;
	int socket;

	if (argc != 2 && argc != 3)
		errx(2, "usage: two_hosts [HOST] PORT");
	socket = open_socket(host, argv[argc - 1]);
	if (socket < 0)
		err(1, "accept");
	if (open_side(&side, socket) ||
	    (host ? write_memory(&side, socket) : serve(&side, socket)) ||
	    close_side(&side))
		errx(1, "%s", pier_error_message());
	close(socket);
	return 0;
}
