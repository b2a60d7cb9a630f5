/* SPDX-License-Identifier: BSD-3-Clause */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../support/cmocka.h"
#include "tests/unit/provider/soft/soft_fixture.h"
#include "provider/soft/connect/address.h"

/*
 * A stranger's endpoint that says that its queue pair is at any address and port it
 * likes: nothing is called that this process was not set up to call. A listener there,
 * the canary, would see it.
 */

struct canary {
	int fd;
	uint16_t port;
};

static bool try_port(struct canary *canary, uint16_t port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port) };
	socklen_t size = sizeof(name);

	canary->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_true(canary->fd >= 0);
	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(canary->fd, (struct sockaddr *)&name, size) == 0 &&
	    listen(canary->fd, 1) == 0 &&
	    getsockname(canary->fd, (struct sockaddr *)&name, &size) == 0) {
		canary->port = ntohs(name.sin_port);
		return true;
	}
	close(canary->fd);
	return false;
}

static bool was_called(const struct canary *canary)
{
	struct pollfd waited = { .fd = canary->fd, .events = POLLIN };

	/* connect(2) to a listener of this host returns when it is in the backlog. */
	return poll(&waited, 1, 0) == 1;
}

/* The endpoint is right but for the address, and its name makes us call. */
static struct fixture_endpoint make_bait(uint16_t port)
{
	struct soft_address address = { .port = port, .count = 1 };
	struct fixture_endpoint bait = { .qpn = 77 };

	memset(bait.gid.raw, 0xff, sizeof(bait.gid.raw));
	memcpy(bait.gid.raw, "\xfd\0pier\0", 8);
	address.addresses[0].s6_addr[10] = address.addresses[0].s6_addr[11] = 0xff;
	address.addresses[0].s6_addr[12] = 127;
	address.addresses[0].s6_addr[15] = 1;
	bait.blob_length = pier_soft_pack_address(&address, bait.blob, sizeof(bait.blob));
	assert_true(bait.blob_length > 0);
	return bait;
}

static void set_or_unset(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

/* `word`: what the refusal names; NULL: it may call. */
static void check(const char *address, const char *peers, const struct canary *canary,
		  const char *word)
{
	struct fixture_endpoint bait = make_bait(canary->port);
	char port[16];
	struct soft_fixture fixture;

	set_or_unset("PIER_SOFT_ADDRESS", address);
	set_or_unset("PIER_SOFT_PEERS", peers);
	fixture_open(&fixture, NULL);
	assert_int_equal(pier_soft_provider.set_qp_address(fixture.qp, bait.blob,
							   bait.blob_length),
			 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_not_equal(fixture_to_rtr(&fixture, &bait), 0);
	assert_int_equal(was_called(canary), !word);
	if (word)
		test_assert_sentence(word);
	snprintf(port, sizeof(port), "port %u", canary->port);
	if (word && (address || peers))
		test_assert_sentence(port);
	fixture_close(&fixture);
	unsetenv("PIER_SOFT_ADDRESS");
	unsetenv("PIER_SOFT_PEERS");
}

static void test_tcp_is_off(void **state)
{
	struct canary canary;

	(void)state;
	assert_true(try_port(&canary, 0));
	check(NULL, NULL, &canary, "PIER_SOFT_ADDRESS");
	close(canary.fd);
}

static void test_address_that_is_not_listed(void **state)
{
	struct canary canary;

	(void)state;
	assert_true(try_port(&canary, 0));
	check(NULL, "192.0.2.0/24,2001:db8::/32", &canary, "PIER_SOFT_PEERS");
	check("127.0.0.1", "192.0.2.0/24", &canary, "PIER_SOFT_PEERS");
	close(canary.fd);
}

/* A service of this host that trusts whoever comes from this host. */
static void test_loopback_of_one_that_listens_elsewhere(void **state)
{
	struct canary canary;

	(void)state;
	assert_true(try_port(&canary, 0));
	check("::", NULL, &canary, "PIER_SOFT_PEERS");
	check(NULL, "attached", &canary, "PIER_SOFT_PEERS");
	close(canary.fd);
}

static void test_port_of_a_system_service(void **state)
{
	struct canary canary = { .fd = -1 };
	uint16_t port = 1023;

	(void)state;
	while (port > 512 && !try_port(&canary, port))
		port--;
	if (port == 512) {
		print_message("skip: no port below 1024 to be had here\n");
		skip();
	}
	check("127.0.0.1", NULL, &canary, "1024");
	check("127.0.0.1", "127.0.0.1", &canary, "1024");
	close(canary.fd);
}

/* So that the tests above do not pass because nothing is ever called. */
static void accept_and_hang_up(const struct canary *canary)
{
	int fd = accept4(canary->fd, NULL, NULL, SOCK_CLOEXEC);

	assert_true(fd >= 0);
	close(fd);
}

static void test_listed_address_is_called(void **state)
{
	struct canary canary;

	(void)state;
	assert_true(try_port(&canary, 0));
	check(NULL, "127.0.0.0/8", &canary, NULL);
	accept_and_hang_up(&canary);
	check("127.0.0.1", NULL, &canary, NULL);
	close(canary.fd);
}

/* A GID that would be a line of its own for a service that reads text. */
static void test_gid_that_is_not_of_a_soft_nic(void **state)
{
	struct fixture_endpoint bait;
	struct canary canary;
	struct soft_fixture fixture;

	(void)state;
	assert_true(try_port(&canary, 0));
	bait = make_bait(canary.port);
	memcpy(bait.gid.raw, "\r\nflush_all\r\n\r\n\r", sizeof(bait.gid.raw));
	setenv("PIER_SOFT_PEERS", "127.0.0.1", 1);
	fixture_open(&fixture, NULL);
	unsetenv("PIER_SOFT_PEERS");
	assert_int_equal(pier_soft_provider.set_qp_address(fixture.qp, bait.blob,
							   bait.blob_length),
			 0);
	assert_int_equal(fixture_to_init(&fixture), 0);
	assert_int_equal(fixture_to_rtr(&fixture, &bait), EINVAL);
	test_assert_sentence("GID");
	assert_false(was_called(&canary));
	fixture_close(&fixture);
	close(canary.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tcp_is_off),
		cmocka_unit_test(test_address_that_is_not_listed),
		cmocka_unit_test(test_loopback_of_one_that_listens_elsewhere),
		cmocka_unit_test(test_port_of_a_system_service),
		cmocka_unit_test(test_listed_address_is_called),
		cmocka_unit_test(test_gid_that_is_not_of_a_soft_nic),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
