/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_FAKES_NIC_PARTS_H
#define PIER_FAKES_NIC_PARTS_H

#include "nic.h"

/* The parts of the NIC: each adds its functions to the provider of fake_reset(). */

void fake_add_memory(struct pier_provider *provider);
void fake_add_completions(struct pier_provider *provider);
void fake_add_queue_pairs(struct pier_provider *provider);
void fake_add_requests(struct pier_provider *provider);
void fake_add_device_events(struct pier_provider *provider);

/* Count a call. Returns whether it fails, with errno set. */
bool fake_fails(void);

/* Remove the completions of a queue pair from the CQ. */
void fake_clean_cq(uint32_t qpn);

/* Complete the receives of a queue pair with an error. */
void fake_flush_receives(uint32_t qpn);

/* The kernel drops the events of an object that is destroyed: ib_uverbs_release_uevent().
 */
void fake_drop_events_of(const void *object);

#endif
