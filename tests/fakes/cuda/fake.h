/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAKES_CUDA_FAKE_H
#define TESTS_FAKES_CUDA_FAKE_H

/* What the parts of the fake driver share. All of it is under one lock. */

#include <stdbool.h>

#include "abi.h"
#include "control.h"

#define FAKE_GRANULARITY (2ull << 20)
/* What new memory has: that of a real device is not zero either. */
#define FAKE_STALE_BYTE	 0xa5

struct CUctx_st {
	CUcontext next;
	int device;
	bool primary;
	bool alive;
	unsigned int flags;
};

/* Memory of one kind that is one memfd. */
struct fake_backing {
	struct fake_backing *next;
	enum fake_cuda_kind kind;
	int device;
	uint64_t address; /* of the application; 0: none, made by cuMemCreate() */
	uint64_t size;	  /* whole pages */
	int fd;
	char *bytes;	 /* mapped for the driver alone */
	uint64_t block;	 /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID */
	uint32_t pieces; /* that lie in it */
	/* What was exported of it; equal: nothing. */
	uint64_t exported_from;
	uint64_t exported_to;
};

/* What cuMemCreate() made. */
struct fake_handle {
	struct fake_handle *next;
	struct fake_backing *backing;
	CUmemAllocationProp properties;
	uint32_t references;
	uint32_t mappings;
};

/* An allocation, a registration, a reservation or a mapping. */
struct fake_piece {
	struct fake_piece *next;
	enum fake_cuda_kind kind;
	uint64_t address;
	uint64_t size; /* as the application asked */
	uint64_t id;
	struct fake_backing *backing; /* NULL: registered, reserved */
	uint64_t offset;	      /* in the backing */
	CUcontext context;	      /* NULL: of mappings and pools */
	int device;
	struct fake_handle *handle; /* of a mapping */
	bool reachable;		    /* cuMemSetAccess() */
	bool reached_by_cpu;	    /* the same, of memory on the host */
	bool sync_memops;
};

struct fake_driver {
	struct fake_cuda control;
	bool initialized;
	int pid; /* that initialized it */
	struct CUctx_st primary[FAKE_CUDA_MAX_DEVICES];
	CUcontext contexts; /* of cuCtxCreate(), dead ones too */
	struct fake_piece *pieces;
	struct fake_backing *backings;
	struct fake_handle *handles;
	uint64_t last_id;
};

extern struct fake_driver fake_driver;

enum fake_need {
	FAKE_NEEDS_NOTHING,
	FAKE_NEEDS_INIT,    /* cuInit() was called, in this process */
	FAKE_NEEDS_CURRENT, /* ..., and a context is current */
	FAKE_NEEDS_DEVICE   /* ..., whose device is not lost */
};

struct fake_scope {
	bool locked;
	CUresult result;   /* what the call fails with, or CUDA_SUCCESS */
	CUcontext current; /* or NULL */
	int device;	   /* of it, or -1 */
};

struct fake_scope fake_enter(const char *name, enum fake_need need);
void fake_leave(struct fake_scope *scope);
/* For what is nobody's call: fake_leave() ends it. */
struct fake_scope fake_enter_unseen(void);

/* One call: what it counts as and needs. Returns where the call has to fail. */
#define FAKE_ENTER(name, need)                                                         \
	struct fake_scope scope                                                        \
		__attribute__((cleanup(fake_leave), unused)) = fake_enter(name, need); \
                                                                                       \
	if (scope.result != CUDA_SUCCESS)                                              \
	return scope.result

/* driver.c: a device that there is, and counting a call that works on one. */
bool fake_has_device(int device);
struct fake_cuda_device *fake_device(int device);
CUresult fake_use_device(int device);

/* context.c */
CUcontext fake_current(void);
bool fake_is_context(CUcontext context);

/* arena.c: addresses of the application, which nothing can be read at. */
bool fake_open_arena(void);
uint64_t fake_take_addresses(uint64_t size, uint64_t alignment);
void fake_give_addresses(uint64_t address, uint64_t size);
bool fake_in_arena(uint64_t address);
uint64_t fake_page(void);
uint64_t fake_round_up(uint64_t value, uint64_t unit);

/* backing.c */
CUresult fake_make_backing(enum fake_cuda_kind kind, int device, uint64_t address,
			   uint64_t size, struct fake_backing **ret_backing);
void fake_drop_backing(struct fake_backing *backing);
/* Sealed as it has to be; -1: there is none to be had. */
int fake_make_memfd(uint64_t size);
/* Let the application read and write it at its address, or no more. */
bool fake_show(const struct fake_backing *backing, uint64_t address);
void fake_hide(uint64_t address, uint64_t size);

/* piece.c */
struct fake_piece *fake_add_piece(enum fake_cuda_kind kind, uint64_t address,
				  uint64_t size);
void fake_remove_piece(struct fake_piece *piece);
/* The memory, or the reservation, around an address; NULL: none. */
struct fake_piece *fake_find(uint64_t address);
struct fake_piece *fake_find_reservation(uint64_t address);
/* Exactly this one. */
struct fake_piece *fake_find_base(enum fake_cuda_kind kind, uint64_t address);
/* Where the driver has [address, address + size), or a first part of it; NULL: nowhere.
 */
void *fake_at(uint64_t address, uint64_t size, uint64_t *ret_size);

/* memory.c */
CUresult fake_allocate(enum fake_cuda_kind kind, CUcontext context, uint64_t size,
		       uint64_t *ret_address);
void fake_free(struct fake_piece *piece);
/* Of one that is destroyed. */
void fake_free_context_memory(CUcontext context);

/* stream.c */
bool fake_is_stream(CUstream stream);
/* Whether this thread may work beside what others capture. */
bool fake_is_relaxed(void);
/* Whether what is put into it would ever be done: see kernel_polls. */
CUresult fake_use_stream(CUstream stream);

/* Between host memory and the device's. */
struct fake_copy {
	uint64_t address;
	void *host;
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

/* environment.c: what a program is told by its environment. */
void fake_read_environment(struct fake_cuda *ret_control);

/* entries.c: the names in the control block. */
void fake_name_calls(struct fake_cuda *ret_control);

#endif
