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
#include "provider/provider.h"

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

enum {
	/* Errors of objects that are remembered. All are logged. */
	PIER_OBJECT_TROUBLES = 8,
};

/* The errors that a device has reported. Under its events_lock. */
struct pier_device_trouble {
	bool fatal;	     /* DEVICE_FATAL */
	uint64_t ports_down; /* bits of the ports 1 to 63 */
	/* The queue pairs and completion queues that failed last, in a ring. */
	struct pier_object_trouble {
		enum ibv_event_type event;
		unsigned int qp_num; /* 0: a completion queue */
		const struct ibv_cq *cq;
	} objects[PIER_OBJECT_TROUBLES];
	unsigned int object_count; /* ever */
};

enum {
	/* The GIDs of a port that are worth offering to a peer. */
	PIER_GID_OFFERS = 10,
	/* Ports whose GIDs are kept; those of other ports are read each time. */
	PIER_GID_PORTS = 2,
};

/* The usable GIDs of a port, the best first. */
struct pier_gid_list {
	uint32_t count;
	struct ibv_gid_entry entries[PIER_GID_OFFERS];
};

/* A list that never changes. Channels that offer the same GIDs share one. */
struct pier_shared_gids {
	atomic_uint users;
	struct pier_gid_list list;
};

struct pier_known_gids {
	uint32_t changes; /* of the device when the list was read */
	bool valid;	  /* until the next change; otherwise it is read again */
	struct pier_shared_gids *gids; /* or NULL */
};

enum {
	PIER_VENDOR_MELLANOX = 0x02c9,
};

/* rxe is known by its vendor id, which is no vendor's (RXE_VENDOR_ID in rxe_param.h). */
bool pier_is_rxe(const struct ibv_device_attr *limits);

struct pier_loop;
struct pier_read_back;

struct pier_device {
	struct pier_object object;
	struct pier_list link; /* of device.c */
	bool borrowed;	       /* the context is the program's: pier_pd_import() */
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
	atomic_uint pds;	/* and buffers in its memory */
	atomic_uint queues;	/* completion queues with a vector that pier chose */
	char name[64];
	bool takes_events;	 /* pier_take_device_events() takes some */
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
	bool borrowed;		   /* pd is the program's: pier_pd_import() */
	atomic_uint children;	   /* regions, channels and the like */
	atomic_uint registrations; /* those of the children that are under way */
	pthread_mutex_t lock;
	struct pier_list users; /* of its regions; under `lock` */
	atomic_bool used;	/* `users` is not empty; without `lock` */
	struct pier_list far_keys[PIER_FAR_KEYS]; /* of pd.h; under `lock` */
	atomic_uint far_count;			  /* without `lock` */
	pthread_mutex_t read_back_lock;
	struct pier_read_back *read_back; /* of loop.c, or NULL; under its lock */
	struct pier_loop *left_loops;	  /* that were not destroyed; under that lock */
	/*
	 * A window may be deregistered by one thread while another destroys its
	 * channel: held for what region/mr.h says.
	 */
	pthread_mutex_t windows_lock;
};

/* A device with its name, and nothing else. NULL without memory. */
struct pier_device *pier_new_device(const char *prefix, const char *name);

/* Free a device and what was learned about it; its context is closed or borrowed. */
void pier_free_device(struct pier_device *device);

/*
 * The devices of this process are in a list, so that a protection domain that is imported
 * finds the device that its context already has.
 */
void pier_add_device(struct pier_device *device);

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

/*
 * The asynchronous events of a device (ibv_get_async_event(3)). They are taken by threads
 * that sleep, fail or look for a GID anyway; pier has no thread for them. Those of an
 * imported context are the program's.
 */

/* Make reading the events non-blocking, once the context is open. */
void pier_start_device_events(struct pier_device *device);

/* Take the events that have come, and log them. Returns whether pier takes them. */
bool pier_take_device_events(struct pier_device *device);

/* Errors: -EIO the device has failed as a whole. The sentence names the event. */
int pier_check_device_events(struct pier_device *device);

/*
 * Take the events, and name the one that explains why a channel with this queue pair and
 * port failed.
 *
 * Returns false if there is none.
 */
bool pier_explain_by_event(struct pier_device *device, const struct ibv_qp *qp,
			   unsigned int port, char *ret_text, size_t size);

/*
 * A queue pair begins a new connection: what was reported about it, or about an earlier
 * one with its number, explains nothing that follows. An event of its completion queue
 * still counts, because a queue that has failed stays failed.
 */
void pier_forget_qp_events(struct pier_device *device, unsigned int qp_num);

/* A completion queue is new: what was reported was about an earlier one. */
void pier_forget_cq_events(struct pier_device *device, const struct ibv_cq *cq);

/* Count one user of a list less, and free it with the last; accepts NULL. */
void pier_drop_gids(struct pier_shared_gids *gids);

#endif
