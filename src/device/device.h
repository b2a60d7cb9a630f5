/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_DEVICE_H
#define PIER_DEVICE_DEVICE_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/topology.h>
#include <pier/verbs.h>

#include "core/environment.h"
#include "core/list.h"
#include "core/object.h"
#include "device_events.h"
#include "gid_table.h"
#include "provider/provider.h"

struct pier_device;

/*
 * The devices of this process, by their verbs contexts, so that a protection domain that
 * is imported finds the device that its context already has.
 */

/* A device with its name, and nothing else. NULL without memory. */
struct pier_device *pier_new_device(const char *prefix, const char *name);

/* Free a device and what was learned about it; its context is closed or borrowed. */
void pier_free_device(struct pier_device *device);

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

/* The result of region/canary.c for one path between a NIC and memory. */
struct pier_canary_answer {
	/*
	 * NULL: it was not sent. pier_canary_passed; pier_canary_impossible: it never
	 * can be. Otherwise the sentence that refuses the path, from malloc(3).
	 */
	_Atomic(char *) text;
	/* Why it could not be sent the first time, from malloc(3); NULL: it could. */
	_Atomic(char *) obstacle;
	/* Registrations since an error that may pass, such as -ENOMEM; 0: there was none.
	 */
	atomic_uint untested;
};

extern char pier_canary_passed[], pier_canary_impossible[];

/* Findings about a NIC and the memory of one unit of a backend, such as a GPU. */
struct pier_pair {
	struct pier_list link;
	char memory[64]; /* the backend and its unit, as a spec names them: "cuda:0" */
	/* Of the last dma-buf that was registered; AUTO: none, or it has no choice. */
	_Atomic(enum pier_mapping) mapping;
	/* By the mapping; PIER_MAPPING_AUTO stands for peer memory. */
	struct pier_canary_answer canary[PIER_MAPPING_PCIE + 1];
	/* Memory that no canary is using; `free_spare` frees it. Under `pairs_lock`. */
	struct pier_list spares;
	void (*free_spare)(struct pier_list *spare);
};

/*
 * The record of a device and the memory of a unit. The first call makes it. It stays
 * until the device is closed. Any thread may read and write its atomic fields.
 *
 * unit  as in struct pier_memory_facts; "": the backend has none
 *
 * Returns NULL without memory.
 */
struct pier_pair *pier_find_pair(struct pier_device *device, const char *backend,
				 const char *unit);

struct pier_device;

/*
 * Find out what a device can do, once its context is open: its limits, whether it
 * registers dma-bufs and has channels, and which access flags it lacks.
 *
 * 0, or a negative errno with a sentence.
 */
int pier_probe_device(struct pier_device *device);

enum {
	PIER_VENDOR_MELLANOX = 0x02c9,
};

/* rxe is known by its vendor id, which is no vendor's (RXE_VENDOR_ID in rxe_param.h). */
bool pier_is_rxe(const struct ibv_device_attr *limits);

struct pier_read_back;

struct pier_device {
	struct pier_object object;
	struct pier_list link; /* of device.c */
	bool borrowed;	       /* the context is the program's: pier_import_pd() */
	const struct pier_provider *provider;
	struct ibv_context *context;
	struct ibv_device_attr limits;
	struct pier_switches {
		enum pier_switch dmabuf;	   /* PIER_DMABUF */
		enum pier_switch peermem;	   /* PIER_PEERMEM */
		enum pier_switch canary;	   /* PIER_CANARY */
		enum pier_switch relaxed_ordering; /* PIER_RELAXED_ORDERING */
	} switches;
	bool dmabuf;	       /* what the probe at opening found; not switched off */
	const char *no_dmabuf; /* why not; NULL: the operation is missing */
	char no_channels[256]; /* why it has no channels; "": it has them */
	int lacking_access;    /* flags of enum pier_access that it cannot honour */
	/*
	 * The CPU copies short messages to the addresses of the receive's elements, and
	 * no switch prevents it: those of memory with a far key (pd.h) are refused.
	 */
	bool copies_receives;
	/* A memory window lets the peer reach all of the region beneath. */
	bool unbounded_windows;
	pthread_mutex_t pairs_lock;
	struct pier_list pairs; /* under `pairs_lock` */
	atomic_uint pds;
	atomic_uint queues; /* completion queues with a vector that pier chose */
	char name[64];
	bool takes_events;	 /* pier takes its asynchronous events: device_events.h */
	atomic_uint gid_changes; /* how often its events may have changed addresses */
	pthread_mutex_t events_lock;
	struct pier_device_trouble trouble;
	pthread_mutex_t gids_lock;
	struct pier_known_gids gids[PIER_GID_PORTS];
};

enum {
	PIER_FAR_KEYS = 64 /* lists of them; a power of 2 */
};

struct pier_pd {
	struct pier_object object;
	struct pier_device *device;
	struct ibv_pd *pd;
	bool borrowed;		   /* pd is the program's: pier_import_pd() */
	atomic_uint children;	   /* regions, channels and the like */
	atomic_uint registrations; /* those of the children that are under way */
	pthread_mutex_t lock;
	struct pier_list users; /* of its regions; under `lock` */
	atomic_bool used;	/* `users` is not empty; without `lock` */
	struct pier_list far_keys[PIER_FAR_KEYS]; /* of pd.h; under `lock` */
	atomic_uint far_count;			  /* without `lock` */
	pthread_mutex_t read_back_lock;
	struct pier_read_back *read_back; /* of loop.c, or NULL; under its lock */
	/*
	 * A window may be deregistered by one thread while another destroys its
	 * channel: held for what region/mr.h says.
	 */
	pthread_mutex_t windows_lock;
};

/*
 * Open a device as pier_open_device() does. If neither `name` nor PIER_DEVICE names
 * one, open the first of `order` that works and has an active port. Without an order
 * (NULL, 0) try RDMA devices in the order of pier_device_list().
 */
int pier_open_in_order(const char *name, const struct pier_near_device *order,
		       size_t count, struct pier_device **ret_device);

#endif
