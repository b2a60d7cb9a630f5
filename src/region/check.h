/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CHECK_H
#define PIER_REGION_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The kernel's rules for registrations. They are checked before the system call, so
 * that the sentence can name the value and the rule. Each function returns 0 or the
 * kernel's errno, negated. If several rules are broken, it is the errno of the rule that
 * the kernel checks first.
 */

/* The properties of a device that the checks need. */
struct pier_check_limits {
	uint64_t page;	       /* of the host */
	int lacking_access;    /* flags of enum pier_access that the device lacks */
	bool dmabuf;	       /* it registers dma-bufs */
	bool takes_memfd;      /* and takes memfds for them */
	const char *no_dmabuf; /* why it registers none, or NULL */
	const char *device;    /* its name, for sentences */
};

/* The kinds of fds that matter to a registration. */
enum pier_fd_kind {
	PIER_FD_CLOSED,
	PIER_FD_OTHER,
	PIER_FD_MEMFD,
	PIER_FD_DMABUF,
};

/* Classify an fd; *ret_size is its size in bytes if it is memory. */
enum pier_fd_kind pier_classify_fd(int fd, uint64_t *ret_size);

/* Refuse dma-bufs on a device that cannot register them: -EOPNOTSUPP. reason: or NULL */
int pier_fail_no_dmabuf(const char *device, const char *reason);

int pier_check_host(const struct pier_check_limits *limits, uint64_t address,
		    uint64_t length, uint64_t iova, int access);

/*
 * pier_check_dmabuf() without system calls. It examines the fd only if something else is
 * wrong, so that the error is that of the first rule of the kernel that is broken.
 */
int pier_check_dmabuf_numbers(const struct pier_check_limits *limits, uint64_t offset,
			      uint64_t length, uint64_t iova, int fd, int access);

int pier_check_dmabuf(const struct pier_check_limits *limits, uint64_t offset,
		      uint64_t length, uint64_t iova, int fd, int access);

#endif
