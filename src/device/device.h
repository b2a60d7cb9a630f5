/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_DEVICE_H
#define PIER_DEVICE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include <pier/buffer.h>
#include <pier/device.h>
#include <pier/topology.h>
#include <pier/verbs.h>

#include "device_events.h"
#include "gid_table.h"
#include "provider/provider.h"
#include "core/environment.h"
#include "core/list.h"
#include "core/object.h"

struct pier_read_back;

struct pier_device {
	struct pier_object object;
	struct pier_list link; /* of registry.c */
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
	struct pier_list pairs; /* of pair.c; under `pairs_lock` */
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
	struct pier_read_back *read_back; /* of read_back.c, or NULL; under its lock */
	/*
	 * A window may be deregistered by one thread while another destroys its
	 * channel: held for what window.h says.
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
