/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_SOFT_FAKE_H
#define PIER_TESTS_SOFT_FAKE_H

#include "provider/soft/connect/address.h"
#include "provider/soft/link/link.h"
#include "soft_fixture.h"

/* A peer made of raw bytes: it knows the secrets, but sends anything it likes. */
struct fake {
	union ibv_gid gid;
	uint32_t qpn;
	struct soft_address address;
	struct fixture_endpoint to_fixture;
};

void fake_make(struct fake *fake, struct soft_fixture *fixture);
void fake_connect(struct soft_fixture *fixture, const struct fake *fake);
int fake_dial(const struct soft_fixture *fixture);
/* Whether the other side hangs up before the deadline. */
bool fake_hangs_up(int fd);
void fake_say_hello(const struct fake *fake, int fd, uint8_t *ret_transcript);
void fake_prove(const struct fake *fake, int fd, const uint8_t *transcript);
int fake_call(const struct fake *fake, const struct soft_fixture *fixture);
void fake_send(int fd, struct soft_header header);
void fake_step(struct soft_fixture *fixture);
/* With a caller that does not wait for the welcome: the fixture must be stepped. */
int fake_call_stepped(const struct fake *fake, struct soft_fixture *fixture);
struct soft_header fake_next(int fd);

#endif
