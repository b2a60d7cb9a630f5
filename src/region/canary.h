/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CANARY_H
#define PIER_REGION_CANARY_H

#include "segment.h"

/*
 * The canary: before a NIC uses the memory of a device for the first time, bytes are sent
 * through both, in either direction. Some drivers hand out other pages than the device
 * uses, and nothing fails: the NIC's writes never reach the device. The canary has its
 * own memory, from the backend and the unit that hold the segment's, and of its kind.
 *
 * Only memory that the CPU does not reach is tested. The answer is kept for the device
 * and the kind of memory. An error that says nothing about them, such as -ENOMEM, is no
 * answer.
 */

/*
 * Where the canary's answers about a segment are kept. NULL: the memory needs no canary,
 * or it is switched off.
 */
struct pier_pair *pier_canary_pair(const struct pier_part_request *segment);

/*
 * Whether the canary has refused a path before.
 *
 * pair     of pier_canary_pair()
 * mapping  of the dma-buf; PIER_MAPPING_AUTO: the path is peer memory
 *
 * Errors: -EIO it has.
 */
int pier_check_canary(const struct pier_pair *pair, enum pier_mapping mapping);

/*
 * Send the canary over a path on which a segment has just been registered, if it was not
 * sent before. If it cannot be sent, the path is taken, and the reason is a warning: but
 * not under PIER_POLICY_DIRECT where the memory has several mappings.
 *
 * take  registers a segment on this path
 *
 * Errors: -EIO the path does not lead to the device's memory, or that was not tested.
 */
int pier_send_canary(const struct pier_part_request *segment, struct pier_pair *pair,
		     enum pier_mapping mapping, pier_path_function *take);

/* The canary's answer for the first part of a region: see struct pier_mr_info. */
const char *pier_describe_canary(const struct pier_mr *mr);

#endif
