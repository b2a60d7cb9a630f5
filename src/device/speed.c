/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "speed.h"
#include "sysfs.h"

enum {
	PORTS_MAX = 255, /* a port number has 8 bits in verbs */
};

/*
 * A number with at most one decimal place and then `unit`, times 10; or 0. It has less
 * than 7 digits.
 */
static uint32_t read_tenths(const char *text, const char *unit)
{
	unsigned int whole, tenth = 0;
	int length = 0;

	if (sscanf(text, "%6u%n", &whole, &length) != 1)
		return 0;
	text += length;
	if (text[0] == '.' && text[1] >= '0' && text[1] <= '9') {
		tenth = (unsigned int)(text[1] - '0');
		text += 2;
	}
	return strncmp(text, unit, strlen(unit)) == 0 ? 10 * whole + tenth : 0;
}

/*
 * "4: ACTIVE" and "100 Gb/sec (4X EDR)": state_show() and rate_show() in
 * drivers/infiniband/core/sysfs.c. Returns false if there is no such port.
 */
static bool read_port(const char *sysfs, const char *name, unsigned int port,
		      uint32_t *ret_speed)
{
	char state[32], rate[64];

	*ret_speed = 0;
	if (!pier_read_sysfs(state, sizeof(state),
			     "%s/class/infiniband/%s/ports/%u/state", sysfs, name, port))
		return false;
	if (strncmp(state, "4:", 2) == 0 &&
	    pier_read_sysfs(rate, sizeof(rate), "%s/class/infiniband/%s/ports/%u/rate",
			    sysfs, name, port))
		*ret_speed = 100 * read_tenths(rate, " Gb/sec");
	return true;
}

/*
 * "16.0 GT/s PCIe" and "16": current_link_speed_show() and current_link_width_show() in
 * drivers/pci/pci-sysfs.c; older kernels print "16 GT/s". The first two generations send
 * 10 bits for 8, the later ones 130 for 128 (PCI Express Base Specification, 4.2).
 */
static uint32_t link_speed(const char *sysfs, const char *pci, const char *below)
{
	char speed[32], width[16];
	uint32_t tenths, lanes;

	if (!pier_read_sysfs(speed, sizeof(speed),
			     "%s/bus/pci/devices/%s%s/current_link_speed", sysfs, pci,
			     below) ||
	    !pier_read_sysfs(width, sizeof(width),
			     "%s/bus/pci/devices/%s%s/current_link_width", sysfs, pci,
			     below))
		return 0;
	tenths = read_tenths(speed, " GT/s");
	lanes = read_tenths(width, "") / 10;
	if (tenths > 1280 || lanes > 32)
		return 0;
	return tenths < 80 ? 100 * tenths * lanes / 10 * 8
			   : (uint32_t)(100ull * tenths * lanes * 128 / 130);
}

uint32_t pier_nic_speed(const char *sysfs, const char *name,
			const struct pier_location *location)
{
	uint32_t fastest = 0, link = 0, speed;

	for (unsigned int port = 1;
	     port <= PORTS_MAX && read_port(sysfs, name, port, &speed); port++)
		fastest = speed > fastest ? speed : fastest;
	/* A virtual function reports no link of its own (PCI_EXP_LNKSTA reads as 0). */
	if (location->pci[0])
		link = link_speed(sysfs, location->pci, "/physfn");
	if (location->pci[0] && !link)
		link = link_speed(sysfs, location->pci, "");
	return link && (link < fastest || !fastest) ? link : fastest;
}

uint32_t pier_slow_port_speed(const char *sysfs, const char *name, uint32_t port,
			      uint32_t count)
{
	uint32_t own, other, fastest = 0;

	for (uint32_t i = 1; i <= count; i++) {
		read_port(sysfs, name, i, &other);
		fastest = other > fastest ? other : fastest;
	}
	read_port(sysfs, name, port, &own);
	return own < fastest ? own : 0;
}
