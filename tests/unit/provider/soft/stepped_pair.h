/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_STEPPED_PAIR_H
#define TESTS_UNIT_STEPPED_PAIR_H

/* After cmocka.h. */

#include <stdbool.h>
#include <stdint.h>

#include <pier/channel.h>

#include "device/device.h"
#include "provider/provider.h"

/*
 * Two channels that are connected to each other, each on a software NIC of its own that
 * does nothing but when it is told to, one event at a time.
 */

enum {
	PAIR_MEMORY = 1 << 13,
};

struct pair_end {
	struct pier_provider provider; /* soft0's, with what is below */
	struct pier_device device;
	struct pier_pd *pd;
	struct pier_channel *channel;
	struct pier_mr *mr;
	uint8_t *memory;
};

struct pair {
	struct pair_end ends[2];
	/* Called before each call of verbs that looks at completions or events; or NULL.
	 */
	void (*before_verb)(struct pair *pair, const struct pair_end *end);
};

void pair_open(struct pair *pair, const struct pier_channel_attr *attr);
void pair_close(struct pair *pair);

/*
 * Let an end do one thing. Whether there was anything to do. A timer that rings within
 * two milliseconds is waited for, so that it always has rung.
 */
bool pair_step(struct pair *pair, unsigned int end);
/* Until neither has anything to do. */
void pair_settle(struct pair *pair);

bool pair_readable(const struct pair *pair, unsigned int end);
struct pier_gather pair_gather(const struct pair *pair, unsigned int end, size_t offset,
			       uint32_t length);
struct pier_scatter pair_scatter(const struct pair *pair, unsigned int end, size_t offset,
				 uint32_t length);
struct pier_remote pair_remote(const struct pair *pair, unsigned int end, size_t offset,
			       uint32_t length);

#endif
