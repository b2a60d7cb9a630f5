/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>

#include <pier/mr.h>

#include "device.h"
#include "probe.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"

enum {
	HUAWEI = 0x19e5,
};

/*
 * An errno that is about this process or this moment: a cgroup's rdma.max (EAGAIN), a
 * container's rights, a limit of fds.
 */
static bool is_no_answer(int error)
{
	return error == EAGAIN || error == EPERM || error == EACCES || error == EMFILE ||
	       error == ENFILE || error == EBUSY || error == EINTR || error == ENOSPC;
}

/*
 * Why the device registers no dma-bufs, from the errno of registering fd -1; NULL: it
 * does. Drivers return EBADF, and a driver that returns something else may well do, too
 * (NCCL takes it for a yes). The kernel's mlx5 driver looks for UMR before the fd.
 */
static const char *explain_no_dmabuf(const struct pier_device *device, int error)
{
	if (error == EINVAL && device->limits.vendor_id == PIER_VENDOR_MELLANOX)
		return "mlx5 needs UMR for them, which this device lacks (EINVAL), as "
		       "virtual functions do that are not granted it: ask the "
		       "administrator of the host, or use the physical function";
	if (error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS ||
	    error == ENOTTY)
		return "its driver or its libibverbs provider lacks the operation";
	return NULL;
}

/* No memory is no answer to keep. 0 or an errno. */
static int probe_dmabuf(struct pier_device *device, struct ibv_pd *pd)
{
	const struct pier_provider *provider = device->provider;
	struct ibv_mr *mr;
	int error;

	errno = 0;
	mr = provider->reg_dmabuf_mr(pd, 0, pier_host_page(), 0, -1,
				     IBV_ACCESS_LOCAL_WRITE);
	error = errno;
	if (mr)
		provider->dereg_mr(mr);
	if (!mr && error == ENOMEM)
		return error;
	device->no_dmabuf = explain_no_dmabuf(device, error);
	device->dmabuf = !mr && !device->no_dmabuf;
	return 0;
}

/* Create the smallest queue pair of the kind that channels have. 0 or an errno. */
static int try_queue_pair(const struct pier_device *device, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = NULL;
	int error;

	errno = 0;
	pier_clear_error();
	init.send_cq = device->provider->create_cq(device->context, 1, NULL, NULL, 0);
	init.recv_cq = init.send_cq;
	if (init.send_cq)
		qp = pier_create_direct_qp(device->provider, pd, &init);
	error = errno ? errno : EIO;
	if (qp)
		device->provider->destroy_qp(qp);
	if (init.send_cq)
		device->provider->destroy_cq(init.send_cq);
	return qp ? 0 : error;
}

/*
 * EFA creates no RC queue pair: EOPNOTSUPP, efa_qp_validate_attr() in efa_verbs.c. An
 * iWARP device (siw, cxgb4; irdma, qedr and erdma in that mode) creates one, but brings
 * it to RTS only over a TCP connection that rdma_cm has made: "no socket" and "no MPA" in
 * siw_qp_nextstate_from_idle(), siw_qp.c. No memory is no answer; after others that are
 * none, the first channel gets one. 0 or an errno.
 */
static int probe_channels(struct pier_device *device, struct ibv_pd *pd)
{
	int error;

	if (device->context->device->transport_type == IBV_TRANSPORT_IWARP) {
		snprintf(device->no_channels, sizeof(device->no_channels),
			 "%s is an iWARP device, whose queue pairs only rdma_cm "
			 "connects, which channels do not use",
			 device->name);
		return 0;
	}
	error = try_queue_pair(device, pd);
	if (!error || error == ENOMEM)
		return error;
	if (is_no_answer(error)) {
		pier_info("whether %s has channels is not known: its first queue pair "
			  "fails with errno %d",
			  device->name, error);
		return 0;
	}
	pier_fail_because(error, "%s creates no reliable connected (RC) queue pairs",
			  device->name);
	snprintf(device->no_channels, sizeof(device->no_channels), "%s",
		 pier_error_message());
	return 0;
}

/*
 * The kernel reports windows whether or not the driver in libibverbs can allocate them
 * (bnxt_re cannot: EOPNOTSUPP), and channels need type 2 (irdma reports no type before
 * Linux 6.18). No memory is no answer. 0 or an errno.
 */
static int probe_windows(const struct pier_device *device, struct ibv_pd *pd,
			 bool *ret_windows)
{
	const unsigned int types = IBV_DEVICE_MEM_WINDOW_TYPE_2A |
				   IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	struct ibv_mw *mw;

	*ret_windows = false;
	if (!(device->limits.device_cap_flags & types) || !device->provider->alloc_mw)
		return 0;
	errno = 0;
	mw = device->provider->alloc_mw(pd, IBV_MW_TYPE_2);
	if (!mw) {
		*ret_windows = is_no_answer(errno);
		return errno == ENOMEM ? ENOMEM : 0;
	}
	device->provider->dealloc_mw(mw);
	*ret_windows = true;
	return 0;
}

/* A device that cannot be asked has it not. */
static int find_lacking_access(const struct pier_device *device, bool windows)
{
	bool on_demand = false;
	int lacking = 0;

	if (device->limits.atomic_cap == IBV_ATOMIC_NONE)
		lacking |= PIER_ACCESS_REMOTE_ATOMIC;
	if (!windows)
		lacking |= PIER_ACCESS_MW_BIND;
	if (!device->provider->query_on_demand ||
	    device->provider->query_on_demand(device->context, &on_demand) || !on_demand)
		lacking |= PIER_ACCESS_ON_DEMAND;
	return lacking;
}

static int probe_in_pd(struct pier_device *device, struct ibv_pd *pd)
{
	int error = probe_dmabuf(device, pd);
	bool windows;

	if (error)
		return pier_fail_because(error, "asking whether %s registers dma-bufs",
					 device->name);
	error = probe_channels(device, pd);
	if (error)
		return pier_fail_because(error, "asking whether %s has channels",
					 device->name);
	error = probe_windows(device, pd, &windows);
	if (error)
		return pier_fail_because(error, "asking whether %s has memory windows",
					 device->name);
	device->lacking_access = find_lacking_access(device, windows);
	return 0;
}

static int probe_objects(struct pier_device *device)
{
	struct ibv_pd *pd;
	int error;

	errno = 0;
	pd = device->provider->alloc_pd(device->context);
	if (!pd)
		return pier_fail_because(errno ? errno : EIO,
					 "asking whether %s registers dma-bufs",
					 device->name);
	error = probe_in_pd(device, pd);
	device->provider->dealloc_pd(pd);
	return error;
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
	error = probe_objects(device);
	if (error)
		return error;
	if (device->switches.dmabuf == PIER_SWITCH_OFF) {
		device->dmabuf = false;
		device->no_dmabuf = "PIER_DMABUF=off switched them off";
	}
	/*
	 * libhns has the kernel put short messages into completions or requests of the
	 * receive queue, and copies them (handle_recv_inl_data() there);
	 * hnsdv.h has no flag against it.
	 */
	device->copies_receives = device->limits.vendor_id == HUAWEI;
	/*
	 * rxe looks at a window's rights and queue pair and at the bounds of the region
	 * beneath, but not at the window's own: check_rkey() in rxe_resp.c.
	 */
	device->unbounded_windows = pier_is_rxe(&device->limits);
	return 0;
}

/*
 * Whether a channel can use the port. A port whose link layer is neither InfiniBand nor
 * Ethernet does not count, as in NCCL (ncclIbInitDevices() in net_ib/init.cc).
 */
static bool is_active(const struct pier_device *device, uint8_t port)
{
	struct ibv_port_attr attr = { 0 };

	return device->provider->query_port(device->context, port, &attr) == 0 &&
	       attr.state == IBV_PORT_ACTIVE &&
	       (attr.link_layer == IBV_LINK_LAYER_INFINIBAND ||
		attr.link_layer == IBV_LINK_LAYER_ETHERNET);
}

bool pier_has_active_port(const struct pier_device *device)
{
	for (unsigned int port = 1; port <= device->limits.phys_port_cnt; port++) {
		if (is_active(device, (uint8_t)port))
			return true;
	}
	return false;
}
