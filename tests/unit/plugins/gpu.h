/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_UNIT_PLUGINS_GPU_H
#define TESTS_UNIT_PLUGINS_GPU_H

#include <stdbool.h>

#include <pier/backend.h>

/*
 * Behaviour and log of the backend "gpu": device memory that the CPU cannot reach, made
 * of memfds, in segments of whole pages ("gpu:3": of 3), with one of two mappings for the
 * NIC.
 */
struct gpu_control {
	/* Set by the test. */
	enum pier_mapping takes;		   /* the NIC cannot use other exports */
	bool no_pcie;				   /* the driver does not support it */
	int export_error, copy_error, flush_error; /* positive errno, or 0 */
	int fail_export_at; /* only the nth export fails with export_error; 0: all */
	bool seams;	    /* no export across several segments */
	bool host;	    /* it is host memory that the CPU can reach */
	bool moves;	    /* its pages move */
	bool says_no_export;
	bool any_order;	 /* a NIC may write it out of order */
	bool reads_back; /* a flush needs a read by the NIC */
	/* Copies to the host need a flush first, as those of AMD's host data path do. */
	bool holds_back;
	/* Bits of mappings: these exports are of other pages than the device uses. */
	unsigned int foreign_pages;
	bool lies_about_segments;
	bool udmabuf; /* exports are dma-bufs, which need /dev/udmabuf; else memfds */
	bool partial; /* an export ends with its segment, and reports that */
	uint64_t granularity;
	int fail_copy_at; /* copies fail with copy_error from the nth on; 0: all */
	/* The device is lost at the nth copy in that direction, from 1 on: ENODEV. */
	int lost_at_to, lost_at_from;
	void (*before_copy)(void); /* called on the thread that copies, or NULL */
	/* Arguments of the calls. */
	int exports, open_exports, exports_by[3], flushes, flushes_by[3], copies, locks,
		unlocks, live;
	int copies_to, copies_from, allocs, describes;
	struct pier_backend_request request; /* the last one */
	struct pier_backend_flush flushed;   /* the last range */
	char importer[64], flusher[64];	     /* their devices */
};

#define GPU_CONTROL_SYMBOL "gpu_control"

#endif
