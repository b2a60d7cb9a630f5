/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_DEVICE_SPEED_H
#define PIER_DEVICE_SPEED_H

#include <stdint.h>

#include <pier/topology.h>

/*
 * How fast a NIC can move bytes, in Mbit/s: the rate of its fastest active port, or that
 * of its PCIe link if it is slower. 0: sysfs reports neither.
 *
 * sysfs  its root, as in topology.h
 * name   in libibverbs
 */
uint32_t pier_nic_speed(const char *sysfs, const char *name,
			const struct pier_location *location);

/* The rate of one port of `count`, if another one is faster; 0: none is. */
uint32_t pier_slow_port_speed(const char *sysfs, const char *name, uint32_t port,
			      uint32_t count);

#endif
