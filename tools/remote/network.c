/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "network.h"

/* Whether it is an address of this host that a peer can connect to: not link-local. */
static bool is_own_address(const char *text)
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

/* The user has not set PIER_SOFT_PEERS. */
static bool peers_are_ours;

/*
 * sshd(8) sets SSH_CONNECTION to the client's address and port and the server's address
 * and port. Other remote shells do not provide the address: listen on all of them.
 */
void listen_for_client(void)
{
	const char *connection = secure_getenv("SSH_CONNECTION");
	char address[INET6_ADDRSTRLEN] = "";

	if (connection)
		sscanf(connection, "%*s %*s %45s", address);
	setenv("PIER_SOFT_ADDRESS", is_own_address(address) ? address : "::", 0);
	peers_are_ours = !secure_getenv("PIER_SOFT_PEERS");
	setenv("PIER_SOFT_PEERS", "none", 0);
}

void connect_onward_to(const char *addresses)
{
	if (!peers_are_ours || !addresses[0])
		return;
	setenv("PIER_SOFT_PEERS", addresses, 1);
	/* If both ends listen, either may have to call, and the next server never does.
	 */
	unsetenv("PIER_SOFT_ADDRESS");
}

/* Returns false if the address is not added: soft0 cannot use link-local ones. */
static bool add_address(struct peers *peers, const struct addrinfo *one)
{
	char text[INET6_ADDRSTRLEN], *list = peers->list;
	size_t size = sizeof(peers->list), used = strlen(list);

	if (getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof(text), NULL, 0,
			NI_NUMERICHOST) != 0 ||
	    strchr(text, '%') || used + strlen(text) + 2 > size)
		return false;
	snprintf(list + used, size - used, "%s%s", used ? "," : "", text);
	return true;
}

static bool resolve_host(const char *name, struct peers *peers)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	int count = 0;

	if (getaddrinfo(name, NULL, &hints, &found) != 0)
		return false;
	peers->list[0] = '\0';
	for (const struct addrinfo *one = found; one && count < PEER_ADDRESSES_MAX;
	     one = one->ai_next)
		count += add_address(peers, one);
	freeaddrinfo(found);
	return count > 0;
}

static bool find_addresses(const char *host, const struct shell *shell,
			   struct peers *peers)
{
	const char *user_end = strrchr(host, '@');
	char name[NI_MAXHOST];

	if (resolve_host(user_end ? user_end + 1 : host, peers))
		return true;
	return shell_is_ssh(shell) && ask_ssh_for_host(shell, host, name, sizeof(name)) &&
	       resolve_host(name, peers);
}

void find_peer_addresses(const char *host, const struct shell *shell, const char *device,
			 struct peers *ret_peers)
{
	/* Only soft0 connects to addresses. */
	bool may_call = !*device || strstr(device, "soft");

	if (!may_call || secure_getenv("PIER_SOFT_PEERS") ||
	    !find_addresses(host, shell, ret_peers))
		strcpy(ret_peers->list, "none");
}

void connect_only_to(const struct peers *peers)
{
	peers_are_ours = !secure_getenv("PIER_SOFT_PEERS");
	setenv("PIER_SOFT_PEERS", peers->list, 0);
}

void forget_peers(void)
{
	if (peers_are_ours)
		unsetenv("PIER_SOFT_PEERS");
}
