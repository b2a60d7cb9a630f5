/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cp_network.h"

enum {
	/* Fewer than soft0 takes. */
	ADDRESSES_MAX = 16
};

/* An address that peers can call too: not link-local, and one of this host's. */
static bool is_ours(const char *text)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST,
				  .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	bool ours;
	int fd;

	/* A scope, as in fe80::1%eth0, means nothing on another host. */
	if (strchr(text, '%') || getaddrinfo(text, NULL, &hints, &found) != 0)
		return false;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ours = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
	return ours;
}

/*
 * sshd(8) sets SSH_CONNECTION to client address, client port, server address, server
 * port. Other remote shells leave no trace of the address: then it is all of them.
 */
void listen_for_client(void)
{
	const char *connection = secure_getenv("SSH_CONNECTION");
	char address[INET6_ADDRSTRLEN] = "";

	if (connection)
		sscanf(connection, "%*s %*s %45s", address);
	setenv("PIER_SOFT_ADDRESS", is_ours(address) ? address : "::", 0);
	setenv("PIER_SOFT_PEERS", "none", 0);
}

/* False: an address of one link, which is not called. */
static bool add_address(char *list, size_t size, const struct addrinfo *one)
{
	char text[NI_MAXHOST];
	size_t used = strlen(list);

	if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof(text), NULL, 0,
			NI_NUMERICHOST) != 0 ||
	    strchr(text, '%') || used + strlen(text) + 2 > size)
		return false;
	snprintf(list + used, size - used, "%s%s", used ? "," : "", text);
	return true;
}

void call_host_only(const char *host)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
	const char *user_end = strrchr(host, '@');
	char list[ADDRESSES_MAX * INET6_ADDRSTRLEN] = "";
	int count = 0;

	if (secure_getenv("PIER_SOFT_PEERS"))
		return;
	if (getaddrinfo(user_end ? user_end + 1 : host, NULL, &hints, &found) != 0)
		found = NULL;
	for (const struct addrinfo *one = found; one && count < ADDRESSES_MAX;
	     one = one->ai_next)
		count += add_address(list, sizeof(list), one);
	if (found)
		freeaddrinfo(found);
	/* An alias of ssh's own, say. */
	setenv("PIER_SOFT_PEERS", count > 0 ? list : "attached", 0);
}
