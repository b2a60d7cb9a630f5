/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A server with an epoll loop. It sleeps until a message or a client arrives. By
 * keepalive it notices that the client died (on soft0 at once, without a keepalive), and
 * it connects its channel to the next client. Without an RDMA NIC run it with
 * PIER_DEVICE=soft0.
 */
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

struct server {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_channel *channel;
	struct pier_recv_pool *pool;
	int listener, epoll;
};

static void watch(const struct server *server, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event))
		err(1, "epoll_ctl");
}

static int open_server(struct server *server)
{
	struct pier_recv_pool_attr pool;
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.keepalive_ms = 500;
	attr.retry_count =
		3; /* with the default timeout: broken after 4.8 s of silence */
	pier_recv_pool_attr_init(&pool);
	if (pier_device_open(NULL, &server->device) ||
	    pier_pd_alloc(server->device, &server->pd) ||
	    pier_channel_create(server->pd, &attr, &server->channel))
		return -1;
	pool.channel = server->channel;
	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	watch(server, pier_channel_fd(server->channel)); /* it survives every reset */
	watch(server, server->listener);
	return pier_recv_pool_create(server->pd, &pool, &server->pool);
}

/* The next client takes the place of the last one, whatever became of that. */
static int connect_client(struct server *server)
{
	int socket = accept(server->listener, NULL, NULL), error;

	if (socket < 0)
		err(1, "accept");
	error = pier_channel_reset(server->channel) ||
		pier_channel_handshake(server->channel, socket, socket,
				       PIER_TIMEOUT_DEFAULT);
	close(socket);
	return error;
}

/* Returns 1 after an empty message, which ends the server. */
static int take_messages(struct server *server)
{
	struct pier_pool_message message;
	int taken;

	while ((taken = pier_recv_pool_wait(server->pool, 0, &message)) == 1) {
		printf("server: %.*s\n", (int)message.length,
		       (const char *)message.pointer);
		if (pier_recv_pool_release(server->pool, &message))
			return -1;
		if (message.length == 0)
			return 1;
	}
	if (taken != -EPIPE)
		return taken;
	printf("server: the client is gone: %s\n", pier_error_message());
	return pier_channel_reset(server->channel);
}

static int serve_clients(struct server *server)
{
	for (;;) {
		struct epoll_event event = { .data.fd = -1 };
		int taken, armed = pier_channel_arm(server->channel);

		if (armed == 0 && /* more than 0: take what is there before sleeping */
		    epoll_wait(server->epoll, &event, 1,
			       pier_channel_next_ms(server->channel)) < 0 &&
		    errno != EINTR)
			err(1, "epoll_wait");
		taken = armed < 0 ? armed : take_messages(server);
		if (taken != 0)
			return taken < 0 ? -1 : 0;
		if (event.data.fd == server->listener && connect_client(server))
			return -1;
	}
}

static int close_server(struct server *server)
{
	close(server->epoll);
	return pier_recv_pool_destroy(server->pool) ||
	       pier_channel_destroy(server->channel) || pier_pd_dealloc(server->pd) ||
	       pier_device_close(server->device);
}

/* Send three messages. Then die without a word, or end by an empty message. */
static int run_client(const struct sockaddr_un *address, socklen_t length, bool dies)
{
	static char text[] = "message";
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct pier_device *device;
	struct pier_channel *channel;
	struct pier_gather piece;
	struct pier_pd *pd;
	struct pier_mr *mr;

	if (connect(fd, (const struct sockaddr *)address, length))
		err(1, "connect");
	if (pier_device_open(NULL, &device) || pier_pd_alloc(device, &pd) ||
	    pier_mr_reg(pd, text, sizeof(text), PIER_ACCESS_LOCAL_READ, &mr) ||
	    pier_mr_gather(mr, (uintptr_t)text, sizeof(text) - 1, &piece) ||
	    pier_channel_create(pd, NULL, &channel) ||
	    pier_channel_handshake(channel, fd, fd, PIER_TIMEOUT_DEFAULT))
		return -1;
	for (int i = 0; i < 3; i++)
		if (pier_channel_send(channel, &piece, 1, PIER_TIMEOUT_DEFAULT))
			return -1;
	if (dies)
		raise(SIGKILL);
	return pier_channel_send(channel, NULL, 0, PIER_TIMEOUT_DEFAULT) ||
	       pier_channel_destroy(channel) || pier_mr_dereg(mr) ||
	       pier_pd_dealloc(pd) || pier_device_close(device);
}

int main(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t length = sizeof(address);
	struct server server = { 0 };
	int status;

	/* The kernel chooses a name: unix(7), "Autobind feature". */
	server.listener = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(server.listener, (struct sockaddr *)&address, sizeof(sa_family_t)) ||
	    getsockname(server.listener, (struct sockaddr *)&address, &length) ||
	    listen(server.listener, 1))
		err(1, "listen");
	if (fork() == 0) {
		bool dies = fork() == 0;

		if (!dies)
			wait(NULL); /* the second client comes after the first */
		if (run_client(&address, length, dies))
			errx(1, "client: %s", pier_error_message());
		return 0;
	}
	if (open_server(&server) || serve_clients(&server) || close_server(&server))
		errx(1, "server: %s", pier_error_message());
	return wait(&status) < 0 || status != 0;
}
