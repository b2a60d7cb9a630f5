/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TESTS_HOSTILE_RELAY_H
#define PIER_TESTS_HOSTILE_RELAY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A machine on the path between two soft NICs: it forwards their TCP connection, and
 * does one thing to it. It knows the protocol, but no secret.
 */

enum relay_attack {
	RELAY_NONE,
	RELAY_FLIP,	/* one bit of the byte `at` behind the handshake */
	RELAY_CUT,	/* hang up there */
	RELAY_REPLAY,	/* send record `at` twice */
	RELAY_REORDER,	/* exchange record `at` and the next */
	RELAY_DROP,	/* leave record `at` out */
	RELAY_TRUNCATE, /* hang up behind record `at` */
	RELAY_REFLECT,	/* give record `at` back to its sender as well */
	RELAY_LENGTHEN	/* record `at` says that it is longer than any may be */
};

struct relay_stream {
	int from, to;
	uint64_t handshake; /* bytes of it that are still to come */
	uint64_t position;  /* behind the handshake */
	uint32_t records;
	size_t pending, held;
	uint8_t bytes[128 * 1024], holds[128 * 1024];
};

struct relay {
	int listeners[2];
	uint16_t targets[2]; /* ports that the listeners stand for */
	enum relay_attack attack;
	bool from_caller; /* which direction is attacked */
	uint64_t at;
	unsigned int bit;
	const char *needle;
	bool found;    /* the needle passed in the open */
	bool attacked; /* the moment came */
	pthread_t thread;
	struct relay_stream streams[2]; /* from the caller, from the listener */
};

/* Ports of this host, which stand for the ports of the two ends. */
void relay_listen(struct relay *relay, uint16_t *ret_ports);
void relay_start(struct relay *relay);
/* When both connections have ended. */
void relay_join(struct relay *relay);

#endif
