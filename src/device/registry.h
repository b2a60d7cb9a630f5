/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_REGISTRY_H
#define PIER_DEVICE_REGISTRY_H

#include <infiniband/verbs.h>

struct pier_device;

/*
 * The devices of this process, by their verbs contexts, so that a protection domain that
 * is imported finds the device that its context already has.
 */

/* A device with its name, and nothing else. NULL without memory. */
struct pier_device *pier_new_device(const char *prefix, const char *name);

/* Free a device and what was learned about it; its context is closed or borrowed. */
void pier_free_device(struct pier_device *device);

void pier_add_device(struct pier_device *device);
void pier_remove_device(struct pier_device *device);

/*
 * Count one more protection domain on the device of a context.
 *
 * device  NULL, or added if the context has no device yet
 *
 * Returns the device of the context, or NULL.
 */
struct pier_device *pier_hold_device(const struct ibv_context *context,
				     struct pier_device *device);

/* One protection domain less. Frees the device if it is borrowed and has no other. */
void pier_release_device(struct pier_device *device);

#endif
