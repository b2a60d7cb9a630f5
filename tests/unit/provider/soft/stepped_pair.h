/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_STEPPED_PAIR_H
#define TESTS_UNIT_STEPPED_PAIR_H

/* Include after cmocka.h. */

#include <stdbool.h>
#include <stdint.h>

#include <pier/channel.h>

#include "device/device.h"
#include "provider/provider.h"

/*
 * Two connected channels. Each has a software NIC of its own, which acts only when told
 * to, one event at a time.
 */

enum {
	PAIR_MEMORY = 1 << 13,
};

struct pair_end {
	struct pier_provider provider; /* soft0's, wrapped by the functions below */
	struct pier_device device;
	struct pier_pd *pd;
	struct pier_channel *channel;
	struct pier_mr *mr;
	uint8_t *memory;
};

struct pair {
	struct pair_end ends[2];
	/* Called before each verbs call that examines completions or events; or NULL. */
	void (*before_verb)(struct pair *pair, const struct pair_end *end);
};

void pair_open(struct pair *pair, const struct pier_channel_attr *attr);
void pair_close(struct pair *pair);

/*
 * Let one end take one step. Returns whether there was anything to do. A timer that
 * expires within two milliseconds is waited for, so that it always has expired.
 */
bool pair_step(struct pair *pair, unsigned int end);
/* Until neither end has anything to do. */
void pair_settle(struct pair *pair);

bool pair_readable(const struct pair *pair, unsigned int end);
struct pier_gather pair_gather(const struct pair *pair, unsigned int end, size_t offset,
			       uint32_t length);
struct pier_scatter pair_scatter(const struct pair *pair, unsigned int end, size_t offset,
				 uint32_t length);
struct pier_remote pair_remote(const struct pair *pair, unsigned int end, size_t offset,
			       uint32_t length);

#endif
