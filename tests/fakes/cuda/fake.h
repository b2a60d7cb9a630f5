/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_FAKE_H
#define TESTS_FAKES_CUDA_FAKE_H

/* Shared by the parts of the fake driver. One lock covers all of it. */

#include <stdbool.h>

#include "abi.h"
#include "control.h"

#define FAKE_GRANULARITY (2ull << 20)
/* Contents of new memory, which is not zero on a real device either. */
#define FAKE_STALE_BYTE	 0xa5

struct CUctx_st {
	CUcontext next;
	int device;
	bool primary;
	bool alive;
	unsigned int flags;
	unsigned long long id; /* of this life: a reset context gets another one */
};

/* Memory of one kind in one memfd. */
struct fake_backing {
	struct fake_backing *next;
	enum fake_cuda_kind kind;
	int device;
	uint64_t address; /* the application's; 0: none, made by cuMemCreate() */
	uint64_t size;	  /* whole pages */
	int fd;
	char *bytes;	 /* mapped for the driver only */
	uint64_t block;	 /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID */
	uint32_t pieces; /* number of pieces in it */
	bool shared;	 /* by cuIpcGetMemHandle() */
	/* The exported range; equal: nothing. */
	uint64_t exported_from;
	uint64_t exported_to;
};

/* Memory made by cuMemCreate(). */
struct fake_handle {
	struct fake_handle *next;
	struct fake_backing *backing;
	CUmemAllocationProp properties;
	uint32_t references;
	uint32_t mappings;
	bool rdma; /* gpuDirectRDMACapable was granted */
};

/* An allocation, a registration, a reservation or a mapping. */
struct fake_piece {
	struct fake_piece *next;
	enum fake_cuda_kind kind;
	uint64_t address;
	uint64_t size; /* as requested by the application */
	uint64_t id;
	struct fake_backing *backing; /* NULL: registered, reserved */
	uint64_t offset;	      /* offset in the backing */
	CUcontext context;	      /* NULL: of mappings and pools */
	int device;
	struct fake_handle *handle; /* of a mapping */
	bool reachable;		    /* cuMemSetAccess() */
	bool reached_by_cpu;	    /* the same, of memory on the host */
	bool sync_memops;
	/* Of memory that was opened: its owner's number for it, and how often. */
	int owner;
	uint64_t owned_id;
	uint32_t opens;
};

struct fake_driver {
	struct fake_cuda control;
	bool initialized;
	int pid; /* of the process that initialized the driver */
	struct CUctx_st primary[FAKE_CUDA_MAX_DEVICES];
	CUcontext contexts; /* of cuCtxCreate(), including destroyed ones */
	struct fake_piece *pieces;
	struct fake_backing *backings;
	struct fake_handle *handles;
	uint64_t last_id;
	unsigned long long last_context;
};

extern struct fake_driver fake_driver;

enum fake_need {
	FAKE_NEEDS_NOTHING,
	FAKE_NEEDS_INIT,    /* cuInit() was called in this process */
	FAKE_NEEDS_CURRENT, /* and a context is current */
	FAKE_NEEDS_DEVICE   /* and its device is not lost */
};

struct fake_scope {
	bool locked;
	CUresult result;   /* the call's error, or CUDA_SUCCESS */
	CUcontext current; /* or NULL */
	int device;	   /* of it, or -1 */
};

struct fake_scope fake_enter(const char *name, enum fake_need need);
void fake_leave(struct fake_scope *scope);
/* Enters the driver without counting a call. fake_leave() ends it. */
struct fake_scope fake_enter_unseen(void);

/*
 * Enters a call with its name and its needs. Returns from the caller if the call must
 * fail.
 */
#define FAKE_ENTER(name, need)                                                         \
	struct fake_scope scope                                                        \
		__attribute__((cleanup(fake_leave), unused)) = fake_enter(name, need); \
                                                                                       \
	if (scope.result != CUDA_SUCCESS)                                              \
	return scope.result

/* driver.c: checks that a device exists, and counts a call on one. */
bool fake_has_device(int device);
struct fake_cuda_device *fake_device(int device);
CUresult fake_use_device(int device);

/* context.c */
CUcontext fake_current(void);
bool fake_is_context(CUcontext context);

/* arena.c: the application's addresses, which cannot be accessed. */
bool fake_open_arena(void);
uint64_t fake_take_addresses(uint64_t size, uint64_t alignment);
void fake_give_addresses(uint64_t address, uint64_t size);
bool fake_in_arena(uint64_t address);
uint64_t fake_page(void);
uint64_t fake_round_up(uint64_t value, uint64_t unit);

/* ipc.c: aborts if another process has opened the memory that is freed. */
void fake_check_sharers(const struct fake_piece *piece);

/* backing.c */
CUresult fake_make_backing(enum fake_cuda_kind kind, int device, uint64_t address,
			   uint64_t size, struct fake_backing **ret_backing);
/* The same, of another process's memfd, which it takes over if it succeeds. */
CUresult fake_adopt_backing(int fd, int device, uint64_t address, uint64_t size,
			    struct fake_backing **ret_backing);
void fake_drop_backing(struct fake_backing *backing);
/* Returns a memfd with the necessary seals, or -1. */
int fake_make_memfd(uint64_t size);
/* Allow or forbid access at the application's address. */
bool fake_show(const struct fake_backing *backing, uint64_t address);
void fake_hide(uint64_t address, uint64_t size);

/* piece.c */
struct fake_piece *fake_add_piece(enum fake_cuda_kind kind, uint64_t address,
				  uint64_t size);
void fake_remove_piece(struct fake_piece *piece);
/* Returns the memory or the reservation that contains an address, or NULL. */
struct fake_piece *fake_find(uint64_t address);
struct fake_piece *fake_find_reservation(uint64_t address);
/* Returns the piece with exactly this address. */
struct fake_piece *fake_find_base(enum fake_cuda_kind kind, uint64_t address);
/*
 * Returns the driver's address of [address, address + size), or of a first part of it, or
 * NULL.
 */
void *fake_at(uint64_t address, uint64_t size, uint64_t *ret_size);

/* memory.c */
CUresult fake_allocate(enum fake_cuda_kind kind, CUcontext context, uint64_t size,
		       uint64_t *ret_address);
void fake_free(struct fake_piece *piece);
/* Frees the memory of a destroyed context. */
void fake_free_context_memory(CUcontext context);

/* stream.c */
/* Those of a context that is destroyed. */
void fake_drop_streams(CUcontext context);
bool fake_is_stream(CUstream stream);
/* True if this thread may make calls while others capture. */
bool fake_is_relaxed(void);
/* Fails if work in the stream would never complete: see kernel_polls. */
CUresult fake_use_stream(CUstream stream);

/* Between host memory and the device's, or from other memory of devices to it. */
struct fake_copy {
	uint64_t address;
	void *host;
	uint64_t source; /* with this, `host` is NULL */
	uint64_t size;
	bool to_host;
	int device; /* of the context that it was asked for in */
};

/* queue.c: copies that are asked for on a stream. */
CUresult fake_queue_copy(CUstream stream, const struct fake_copy *copy);
/* The number of the newest copy, of any stream. */
uint64_t fake_newest_copy(void);
/* Of those of a stream, up to that number: whether some are to be made; make them. */
bool fake_is_pending(CUstream stream, uint64_t number);
void fake_run_copies(CUstream stream, uint64_t number);
void fake_run_all_copies(void);
/* Those of a device that is lost are never made. */
void fake_drop_copies(int device);

/* copy.c */
CUresult fake_make_copy(const struct fake_copy *copy);
int fake_read(uint64_t address, void *ret_bytes, size_t length);
int fake_write(uint64_t address, const void *bytes, size_t length);

/* export.c */
bool fake_has_udmabuf(void);
int fake_attach(int fd);

/* environment.c: settings from the environment. */
void fake_read_environment(struct fake_cuda *ret_control);

/* entries.c: the names in the control block. */
void fake_name_calls(struct fake_cuda *ret_control);

#endif
