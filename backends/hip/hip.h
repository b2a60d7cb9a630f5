/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_BACKENDS_HIP_HIP_H
#define PIER_BACKENDS_HIP_HIP_H

#include <stdbool.h>

#include "backends/backend.h"
#include "api.h"

/*
 * Open the runtimes, or take those that the process has. Any thread.
 *
 * Errors: -EOPNOTSUPP there are none, they lack a function, or the process is a child
 * of one that used them; -ENOMEM.
 */
int pier_hip_open(const struct pier_hip **ret_hip);

/* The runtimes if this process has opened them, by pier or otherwise; or NULL. */
const struct pier_hip *pier_hip_opened(void);

/*
 * Whether the memory of a runtime is out of reach, because fork(2) made this process:
 * the driver refuses its descriptors here, and HIP's threads are not here.
 */
bool pier_hip_inherited(const struct pier_hip *hip);
/* -EOPNOTSUPP, and why, where it is. */
int pier_hip_check_owner(const struct pier_hip *hip);

/* "6.2", of hipRuntimeGetVersion(). */
void pier_hip_version(const struct pier_hip *hip, char *ret_text, size_t size);

/* The positive errno of a hipError_t or hsa_status_t. */
int pier_hip_errno(unsigned int error);
int pier_hsa_errno(unsigned int status);

/*
 * pier_fail() for a call that failed: the sentence, the error's name and number, and
 * what can be done about it where something can.
 */
int pier_hip_fail(const struct pier_hip *hip, unsigned int error, const char *format, ...)
	PIER_PRINTF(3, 4);
int pier_hsa_fail(unsigned int status, const char *format, ...) PIER_PRINTF(2, 3);

/* What a thread had before it called HIP for pier. */
struct pier_hip_scope {
	int device;	   /* its current device */
	unsigned int mode; /* in which it respects captures of streams */
	bool changed;	   /* that device was */
	bool relaxed;	   /* that mode was */
	bool clean;	   /* hipPeekAtLastError() knew of no error */
};

/*
 * Begin calls on a device, and give the thread back what it had: its current device,
 * its mode of capturing, and no last error that is not its own. Every enter has a leave,
 * also one that failed.
 *
 * device  its ordinal, or -1: the current one
 */
int pier_hip_enter(const struct pier_hip *hip, int device,
		   struct pier_hip_scope *ret_scope);
void pier_hip_leave(const struct pier_hip *hip, const struct pier_hip_scope *scope);

/*
 * How many devices there are, at least one. It leaves the last error.
 *
 * Errors: -EOPNOTSUPP none, with the reason as far as it can be found out; others of
 * HIP.
 */
int pier_hip_count_devices(const struct pier_hip *hip, int *ret_count);

/* "0000:c1:00.0" in lower case, or "". */
void pier_hip_locate(const struct pier_hip *hip, int device, char ret_pci[16]);

/* Kinds of memory, by who made it. */
enum pier_hip_kind {
	PIER_HIP_DEVICE,
	PIER_HIP_FINE,
	PIER_HIP_HOST,
	PIER_HIP_REGISTERED,
	PIER_HIP_MANAGED,
	PIER_HIP_POOL,
	PIER_HIP_VIRTUAL,
	PIER_HIP_IPC,
	PIER_HIP_GRAPHICS,
};

/* The state of a struct pier_memory. */
struct pier_hip_memory {
	const struct pier_hip *hip;
	enum pier_hip_kind kind;
	int device;	   /* its ordinal */
	uint32_t segments; /* of hipMemMap(), if there are several */
	uint32_t number; /* of memory that others made: what tells it from later; or 0 */
	/* Writing to it flushes the device's host data path; NULL: it has none. */
	volatile uint32_t *flush;
};

/* Whether it is host memory. */
bool pier_hip_on_host(enum pier_hip_kind kind);
void pier_hip_describe(const struct pier_memory *memory,
		       struct pier_memory_facts *ret_facts);

/*
 * HSA's answer about a pointer. false: HSA has not been initialised, so HIP has not
 * either, and must not be because of this question.
 */
bool pier_hip_ask_hsa(const struct pier_hip *hip, uint64_t address,
		      struct pier_hsa_pointer_info *ret_info);

/* The bounds that HIP has of what is around an address; false: it knows of nothing. */
bool pier_hip_read_segment(const struct pier_hip *hip, uint64_t address,
			   uint64_t *ret_start, uint64_t *ret_length);
/* To memory that was just found: those that follow it, as long as `wanted` is behind. */
void pier_hip_add_segments(struct pier_memory *memory, uint64_t wanted);
int pier_hip_segment(const struct pier_memory *memory, uint64_t address,
		     uint64_t *ret_start, uint64_t *ret_length);

/* The register of the device that has an address, or NULL. */
volatile uint32_t *pier_hip_flush_register(const struct pier_hip *hip, uint64_t address);

/* Of the table of a backend: see <pier/backend.h>. */
int pier_hip_find(uint64_t address, struct pier_memory *ret_memory);
int pier_hip_find_range(uint64_t address, uint64_t length,
			struct pier_memory *ret_memory);
void pier_hip_release(struct pier_memory *memory);
int pier_hip_identity(uint64_t address, uint64_t *ret_identity);

/*
 * That memory which others made was not freed since. Between enter and leave.
 *
 * Errors: -EFAULT it was.
 */
int pier_hip_check_live(const struct pier_memory *memory);

/* A stream of pier's on the current device, `device`; it is kept. Errors: HIP's. */
int pier_hip_take_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t **ret_stream);
/*
 * After use. Whether the stream was gone before it was used, so that a new one may do:
 * hipDeviceReset() destroys them all.
 *
 * error  of the calls on it
 */
bool pier_hip_put_stream(const struct pier_hip *hip, int device,
			 struct ihipStream_t *stream, unsigned int error);

/* Fill new memory with zeros. With its device entered. */
int pier_hip_clear(const struct pier_hip_memory *state, void *pointer, uint64_t length);

int pier_hip_copy_to(const struct pier_memory *memory, uint64_t offset,
		     const void *source, uint64_t length);
int pier_hip_copy_from(const struct pier_memory *memory, uint64_t offset,
		       void *destination, uint64_t length);
int pier_hip_flush(const struct pier_memory *memory);
int pier_hip_lock_host(const struct pier_memory *memory, void *addr, uint64_t length);
void pier_hip_unlock_host(const struct pier_memory *memory, void *addr);

int pier_hip_export(const struct pier_memory *memory, uint64_t address, uint64_t length,
		    struct pier_backend_export *ret_export);
int pier_hip_export_mapped(const struct pier_memory *memory, uint64_t address,
			   uint64_t length, enum pier_mapping mapping,
			   struct pier_backend_export *ret_export);
void pier_hip_close_export(struct pier_backend_export *dmabuf);

#endif
