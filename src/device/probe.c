/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>

#include <pier/mr.h>

#include "device.h"
#include "probe.h"
#include "core/error.h"
#include "core/page.h"

/*
 * Registering fd -1 is refused with EBADF by whoever can register dma-bufs. No
 * memory says nothing about that, and is no answer to keep. 0 or an errno.
 */
static int probe_dmabuf(const struct pier_provider *provider, struct ibv_context *context,
			bool *ret_dmabuf)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int error;

	errno = 0;
	pd = provider->alloc_pd(context);
	if (!pd)
		return errno ? errno : EIO;
	mr = provider->reg_dmabuf_mr(pd, 0, pier_host_page(), 0, -1,
				     IBV_ACCESS_LOCAL_WRITE);
	error = errno;
	if (mr)
		provider->dereg_mr(mr);
	provider->dealloc_pd(pd);
	if (!mr && error == ENOMEM)
		return error;
	*ret_dmabuf = !mr && error == EBADF;
	return 0;
}

/* A device that cannot be asked has it not. */
static int find_lacking_access(const struct pier_device *device)
{
	const unsigned int windows = IBV_DEVICE_MEM_WINDOW |
				     IBV_DEVICE_MEM_WINDOW_TYPE_2A |
				     IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	bool on_demand = false;
	int lacking = 0;

	if (device->limits.atomic_cap == IBV_ATOMIC_NONE)
		lacking |= PIER_ACCESS_REMOTE_ATOMIC;
	if (!(device->limits.device_cap_flags & windows))
		lacking |= PIER_ACCESS_MW_BIND;
	if (!device->provider->query_on_demand ||
	    device->provider->query_on_demand(device->context, &on_demand) || !on_demand)
		lacking |= PIER_ACCESS_ON_DEMAND;
	return lacking;
}

bool pier_is_rxe(const struct ibv_device_attr *limits)
{
	return limits->vendor_id == 0xffffff;
}

static int read_switches(struct pier_switches *switches)
{
	int error = pier_read_switch("PIER_DMABUF", &switches->dmabuf);

	if (!error)
		error = pier_read_switch("PIER_PEERMEM", &switches->peermem);
	if (!error)
		error = pier_read_switch("PIER_CANARY", &switches->canary);
	if (!error)
		error = pier_read_switch("PIER_RELAXED_ORDERING",
					 &switches->relaxed_ordering);
	return error;
}

int pier_probe_device(struct pier_device *device)
{
	int error = read_switches(&device->switches);

	if (error)
		return error;
	error = device->provider->query_device(device->context, &device->limits);
	if (error)
		return pier_fail_because(error, "querying %s", device->name);
	error = probe_dmabuf(device->provider, device->context, &device->dmabuf);
	if (error)
		return pier_fail_because(error, "asking whether %s registers dma-bufs",
					 device->name);
	if (device->switches.dmabuf == PIER_SWITCH_OFF)
		device->dmabuf = false;
	device->lacking_access = find_lacking_access(device);
	/*
	 * rxe looks at a window's rights and queue pair and at the bounds of the region
	 * beneath, but not at the window's own: check_rkey() in rxe_resp.c.
	 */
	device->unbounded_windows = pier_is_rxe(&device->limits);
	return 0;
}

bool pier_has_active_port(const struct pier_device *device)
{
	struct ibv_port_attr attr;

	for (unsigned int port = 1; port <= device->limits.phys_port_cnt; port++) {
		if (device->provider->query_port(device->context, (uint8_t)port, &attr) ==
			    0 &&
		    attr.state == IBV_PORT_ACTIVE)
			return true;
	}
	return false;
}
