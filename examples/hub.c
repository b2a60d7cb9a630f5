/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One thread receives messages from 64 clients. Their channels share a completion queue,
 * so the thread waits for one fd. They share a receive queue, that of a pool, so memory
 * is needed for messages that arrive at the same time, not for every client. Without an
 * RDMA NIC run it with PIER_DEVICE=soft0.
 */
#include <err.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

enum {
	CLIENTS = 64,
	MESSAGES = 10, /* of each client; an empty one follows */
};

struct hub {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_cq *cq;
	struct pier_recv_pool *pool;
	int epoll, clients, received;
};

static int open_hub(struct hub *hub)
{
	struct epoll_event event = { .events = EPOLLIN };

	if (pier_device_open(NULL, &hub->device) ||
	    pier_pd_alloc(hub->device, &hub->pd) ||
	    pier_cq_create(hub->pd, NULL, &hub->cq) ||
	    /* 16 slots of 4 KiB. If all are in use, the NICs of the clients try again. */
	    pier_recv_pool_create(hub->pd, NULL, &hub->pool))
		return -1;
	hub->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_ctl(hub->epoll, EPOLL_CTL_ADD, pier_cq_fd(hub->cq), &event))
		err(1, "epoll_ctl");
	return 0;
}

static int add_client(struct hub *hub, int socket)
{
	struct pier_channel *channel;
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.cq = hub->cq;
	attr.srq = pier_recv_pool_srq(hub->pool);
	attr.max_send_wr = 1;	  /* it only receives; all channels fit into the queue */
	attr.keepalive_ms = 5000; /* a client that dies breaks its channel */
	hub->clients++;
	return pier_channel_create(hub->pd, &attr, &channel) ||
	       pier_channel_handshake(channel, socket, socket, PIER_TIMEOUT_DEFAULT);
}

/* Take the messages that are there. A client ends with an empty one, or by an error. */
static int take_messages(struct hub *hub)
{
	struct pier_pool_message message;
	int taken;

	while ((taken = pier_recv_pool_wait(hub->pool, 0, &message)) != 0) {
		if (taken < 0 && taken != -EPIPE)
			return -1;
		if (taken < 0) /* a broken channel breaks no other: go on without it */
			fprintf(stderr, "hub: %s\n", pier_error_message());
		else if (pier_recv_pool_release(hub->pool, &message))
			return -1;
		if (taken == 1 && message.length > 0) {
			hub->received++; /* its bytes were at message.pointer */
			continue;
		}
		hub->clients--;
		if (pier_channel_destroy(message.channel))
			return -1;
	}
	return 0;
}

static int serve_clients(struct hub *hub)
{
	struct pier_channel *ready[16];
	struct epoll_event event;

	while (hub->clients > 0) {
		int armed = pier_cq_arm(hub->cq);

		if (armed == 0 &&
		    epoll_wait(hub->epoll, &event, 1, pier_cq_next_ms(hub->cq)) < 0 &&
		    errno != EINTR)
			err(1, "epoll_wait");
		/* The pool knows which channels have messages. */
		if (armed < 0 || pier_cq_poll(hub->cq, ready, 16) < 0 ||
		    take_messages(hub))
			return -1;
	}
	printf("%d messages from %d clients\n", hub->received, CLIENTS);
	close(hub->epoll);
	return pier_recv_pool_destroy(hub->pool) || pier_cq_destroy(hub->cq) ||
	       pier_pd_dealloc(hub->pd) || pier_device_close(hub->device);
}

static int run_client(int socket)
{
	static char text[] = "a message";
	struct pier_device *device;
	struct pier_channel *channel;
	struct pier_gather piece;
	struct pier_pd *pd;
	struct pier_mr *mr;

	if (pier_device_open(NULL, &device) || pier_pd_alloc(device, &pd) ||
	    pier_mr_reg(pd, text, sizeof(text), PIER_ACCESS_LOCAL_READ, &mr) ||
	    pier_mr_gather(mr, (uintptr_t)text, sizeof(text), &piece) ||
	    pier_channel_create(pd, NULL, &channel) ||
	    pier_channel_handshake(channel, socket, socket, PIER_TIMEOUT_DEFAULT))
		return -1;
	for (int i = 0; i <= MESSAGES; i++)
		if (pier_channel_send(channel, &piece, i < MESSAGES,
				      PIER_TIMEOUT_DEFAULT))
			return -1;
	return pier_channel_destroy(channel) || pier_mr_dereg(mr) ||
	       pier_pd_dealloc(pd) || pier_device_close(device);
}

int main(void)
{
	int sockets[CLIENTS][2], status, failed = 0;
	struct hub hub = { 0 };

	/* Each process opens the device: an open device does not survive fork(). */
	for (int i = 0; i < CLIENTS; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]))
			err(1, "socketpair");
		if (fork() == 0) {
			if (run_client(sockets[i][1]))
				errx(1, "client %d: %s", i, pier_error_message());
			return 0;
		}
		close(sockets[i][1]);
	}
	failed = open_hub(&hub);
	for (int i = 0; i < CLIENTS && !failed; i++)
		failed = add_client(&hub, sockets[i][0]);
	if (failed || serve_clients(&hub))
		errx(1, "hub: %s", pier_error_message());
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}
