/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BUFFER_SPREAD_H
#define PIER_BUFFER_SPREAD_H

#include "topology_file.h"

/*
 * A number by which GPUs and processes take different ones of several NICs that are
 * equally good. It is the same in each run.
 *
 * For memory of a PCI device, its position among the devices of the same class that are
 * as far from the NIC: the second of four GPUs below a switch has 1. For other memory,
 * the rank of this process on this host, if its launcher states it, and otherwise 0.
 *
 * nic  one of the NICs
 */
unsigned int pier_spread_number(const struct pier_topology *topology,
				const struct pier_location *memory,
				const struct pier_location *nic);

#endif
