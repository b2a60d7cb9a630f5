/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_NIC_H
#define PIER_TOOLS_DOCTOR_NIC_H

/*
 * The configuration space of a PCI device, in hexadecimal, as facts_get() returns it.
 * Only root reads more than its first 64 bytes. The offsets are those of pci_regs.h in
 * the kernel.
 */

enum {
	PCI_RELAXED_ORDERING = 1 << 4, /* in Device Control */
	/* ACS sends requests between devices below to the host bridge. */
	PCI_ACS_REDIRECTS = 1 << 2 | 1 << 3,
};

/* ACS Control; -1: it cannot be read; -2: the device has no ACS. */
long pci_acs_control(const char *config);

#endif
