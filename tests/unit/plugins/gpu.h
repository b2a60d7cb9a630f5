/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_PLUGINS_GPU_H
#define TESTS_UNIT_PLUGINS_GPU_H

#include <stdbool.h>

#include <pier/backend.h>

/*
 * What the backend "gpu" does and did: device memory that the CPU does not reach, of
 * memfds, in segments of whole pages ("gpu:3": of 3), with one of two mappings for the
 * NIC.
 */
struct gpu_control {
	/* The test's. */
	enum pier_mapping takes; /* exports of others are nothing that a NIC takes */
	bool no_pcie;		 /* the driver does not have it */
	int export_error, copy_error, flush_error; /* positive errno, or 0 */
	int fail_export_at; /* the nth alone is what export_error happens to; 0: all */
	bool seams;	    /* no export of several segments at once */
	bool host;	    /* it is host memory, which the CPU reaches */
	bool moves;	    /* its pages do */
	bool says_no_export;
	bool lies_about_segments;
	bool partial; /* an export ends with its segment, and reports that */
	uint64_t granularity;
	int fail_copy_at; /* from the nth on copy_error is what happens; 0: all */
	/* The device is lost at the nth copy in that direction, from 1 on: ENODEV. */
	int lost_at_to, lost_at_from;
	void (*before_copy)(void); /* or NULL: on the thread that copies */
	/* What was asked for. */
	int exports, open_exports, exports_by[3], flushes, copies, locks, unlocks, live;
	int copies_to, copies_from;
	struct pier_backend_request request; /* the last one */
	struct pier_backend_flush flushed;   /* the last range */
	char importer[64], flusher[64];	     /* their devices */
};

#define GPU_CONTROL_SYMBOL "gpu_control"

#endif
