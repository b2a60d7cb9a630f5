/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/mr.h>

#include "core/caller.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/object.h"
#include "core/page.h"
#include "core/text.h"
#include "device.h"
#include "open.h"
#include "topology.h"

/*
 * libibverbs lists devices under a lock of its own. If another thread forks meanwhile,
 * that lock stays locked in the child. So hold this mutex, for which fork(2) waits.
 */
static struct pier_fork_mutex list_mutex = PIER_FORK_MUTEX;

static struct ibv_device **get_device_list(const struct pier_provider *provider,
					   int *ret_count)
{
	struct ibv_device **list;

	pier_fork_lock(&list_mutex);
	errno = 0;
	list = provider->get_device_list(ret_count);
	pier_fork_unlock(&list_mutex);
	return list;
}

/*
 * Call visit() for each device of each provider until it returns true. A provider
 * without devices is no error: ibv_get_device_list(3) fails with ENOSYS if the kernel
 * has no RDMA. Returns the errno of the last provider that had no list, or 0.
 */
static int visit_devices(bool (*visit)(const struct pier_provider *provider,
				       struct ibv_device *device, void *argument),
			 void *argument)
{
	bool done = false;
	int error = 0;

	for (const struct pier_provider *const *provider = pier_providers;
	     *provider && !done; provider++) {
		struct ibv_device **list;
		int count = 0;

		list = get_device_list(*provider, &count);
		if (!list) {
			error = pier_last_errno();
			continue;
		}
		for (int i = 0; i < count && !done; i++)
			done = visit(*provider, list[i], argument);
		(*provider)->free_device_list(list);
	}
	return error;
}

/*
 * The reason, with a remedy if there is one, for an error of visit_devices().
 *
 * libibverbs returns ENOSYS if /sys/class/infiniband_verbs is missing. A build that opens
 * libibverbs at run time returns ELIBACC if it cannot (src/provider/ibverbs.c).
 */
static const char *explain_list_error(int error)
{
	if (error == ELIBACC)
		return "libibverbs.so.1 of rdma-core 34 or later cannot be opened "
		       "(PIER_LOG=info logs the reason): install rdma-core (Debian: "
		       "libibverbs1 and ibverbs-providers)";
	if (error == ENOSYS)
		return "the kernel has no RDMA support, or /dev/infiniband is not "
		       "visible here: modprobe ib_uverbs, or pass the device into the "
		       "container";
	return strerror(error);
}

struct listing {
	struct pier_device_info *list;
	uint32_t count;
	bool failed;
};

static bool append_device(const struct pier_provider *provider, struct ibv_device *device,
			  void *argument)
{
	struct listing *listing = argument;
	struct pier_device_info *grown;

	grown = realloc(listing->list, ((size_t)listing->count + 1) * sizeof(*grown));
	if (!grown) {
		listing->failed = true;
		return true;
	}
	listing->list = grown;
	grown += listing->count++;
	snprintf(grown->name, sizeof(grown->name), "%s", device->name);
	snprintf(grown->provider, sizeof(grown->provider), "%s", provider->name);
	return false;
}

static bool is_listed(const struct listing *listing, const char *name)
{
	for (uint32_t i = 0; i < listing->count; i++)
		if (strcmp(listing->list[i].name, name) == 0)
			return true;
	return false;
}

void pier_explain_unlisted(const char *sysfs, const char *name, char *ret_text,
			   size_t size)
{
	struct listing listing = { 0 };
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *folder;

	ret_text[0] = '\0';
	visit_devices(append_device, &listing);
	snprintf(path, sizeof(path), "%s/class/infiniband", sysfs);
	folder = opendir(path);
	while (folder && !ret_text[0] && (entry = readdir(folder))) {
		if (entry->d_name[0] == '.' || (name && strcmp(entry->d_name, name)) ||
		    is_listed(&listing, entry->d_name))
			continue;
		snprintf(ret_text, size,
			 "the kernel has %.64s, but libibverbs does not list it: the "
			 "library of its driver is missing (Debian: ibverbs-providers; "
			 "in a container, inside), or its /dev/infiniband/uverbsN is not "
			 "visible here",
			 entry->d_name);
	}
	if (folder)
		closedir(folder);
	free(listing.list);
}

int pier_device_list(struct pier_device_info **ret_list, uint32_t *ret_count, size_t size)
{
	PIER_REFUSE_NULL(ret_list, ret_count);
	struct listing listing = { 0 };
	int error = visit_devices(append_device, &listing);

	/* ENOSYS: the kernel has no RDMA, and this build no soft0. */
	if (listing.count == 0 && error && error != ENOSYS)
		return pier_fail(error, "listing devices: %s", explain_list_error(error));
	if (listing.failed) {
		free(listing.list);
		return pier_fail(ENOMEM, "listing devices: out of memory");
	}
	return pier_write_list(listing.list, sizeof(*listing.list), listing.count,
			       ret_list, ret_count, size);
}

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
	error = pier_last_errno();
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
		return pier_fail_because(pier_last_errno(),
					 "asking whether %s registers dma-bufs",
					 device->name);
	error = probe_in_pd(device, pd);
	device->provider->dealloc_pd(pd);
	return error;
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

/*
 * Whether an active port has InfiniBand or Ethernet. Of a device that pier_probe_device()
 * has looked at.
 */
static bool has_active_port(const struct pier_device *device)
{
	for (unsigned int port = 1; port <= device->limits.phys_port_cnt; port++) {
		if (is_active(device, (uint8_t)port))
			return true;
	}
	return false;
}

/* The prefix of the name of a device that is opened with a plan of faults. */
#define FAULT_PREFIX PIER_FAULT_DEVICE ":"

struct opening {
	const char *name; /* NULL: all */
	bool choosing;	  /* the first RDMA device that works and has an active port */
	const char *plan; /* of faults; NULL: none */
	size_t plan_length;
	struct pier_device *device;
	int error; /* of the device that was tried; 0: none has the name */
	/* Choosing: why each device was passed over, with "; " between them. */
	char reasons[600];
};

static void add_reason(struct opening *opening, const char *reason, const char *rest)
{
	pier_append_text(opening->reasons, sizeof(opening->reasons), "%s%s%s",
			 opening->reasons[0] ? "; " : "", reason, rest);
}

static void close_device(struct pier_device *device)
{
	device->provider->close_device(device->context);
	pier_free_device(device);
}

/* Open the context, with the plan of faults if there is one. 0 or a positive errno. */
static int open_context(struct pier_device *device, const struct pier_provider *provider,
			struct ibv_device *found, const struct opening *opening)
{
	device->provider = provider;
	if (opening->plan)
		return -pier_fault_open(provider, found, opening->plan,
					opening->plan_length, &device->provider,
					&device->context);
	errno = 0;
	device->context = provider->open_device(found);
	if (device->context)
		return 0;
	return pier_last_errno();
}

/* 0, or a negative errno with a sentence. */
static int make_device(const struct pier_provider *provider, struct ibv_device *found,
		       const struct opening *opening, struct pier_device **ret_device)
{
	struct pier_device *device = pier_new_device(opening->plan ? FAULT_PREFIX : "",
						     found->name);
	int error;

	if (!device)
		return pier_fail(ENOMEM, "opening %s: out of memory", found->name);
	pier_clear_error();
	error = open_context(device, provider, found, opening);
	if (error) {
		error = pier_fail_because(error, "opening %s", device->name);
		pier_free_device(device);
		return error;
	}
	error = pier_probe_device(device);
	if (error) {
		close_device(device);
		return error;
	}
	pier_start_device_events(device);
	if (opening->plan)
		pier_fault_opened(device->context);
	*ret_device = device;
	return 0;
}

static bool is_suitable(struct opening *opening, const struct pier_device *device)
{
	if (device->no_channels[0]) {
		add_reason(opening, device->no_channels, "");
		pier_info("%s is passed over: %s", device->name, device->no_channels);
		return false;
	}
	if (!has_active_port(device)) {
		add_reason(opening, device->name, " has no active port");
		pier_info("%s has no active port", device->name);
		return false;
	}
	return true;
}

static bool try_device(const struct pier_provider *provider, struct ibv_device *found,
		       void *argument)
{
	struct opening *opening = argument;
	struct pier_device *device = NULL;
	int error;

	if (opening->name && strcmp(opening->name, found->name) != 0)
		return false;
	/* The software NIC must be named. */
	if (opening->choosing && provider != &pier_verbs_provider)
		return false;
	error = make_device(provider, found, opening, &device);
	opening->error = -error;
	if (error && opening->choosing) {
		add_reason(opening, pier_error_message(), "");
		pier_warning("%s is passed over: %s", found->name, pier_error_message());
	}
	if (error)
		return !opening->choosing;
	if (opening->choosing && !is_suitable(opening, device)) {
		close_device(device);
		return false;
	}
	opening->device = device;
	return true;
}

static int fail_unknown(const char *name)
{
	const char *explanation = pier_explain_missing_device(name);
	char names[512] = "", unlisted[384];
	struct listing listing = { 0 };
	int error;

	pier_explain_unlisted(PIER_SYSFS, name, unlisted, sizeof(unlisted));
	if (!explanation && unlisted[0])
		explanation = unlisted;
	if (!explanation && strchr(name, ','))
		explanation = "one NIC is opened here; only pier cp and pier perf accept "
			      "a list";
	if (explanation)
		return pier_fail(ENODEV, "no RDMA device \"%s\": %s", name, explanation);
	error = visit_devices(append_device, &listing);
	for (uint32_t i = 0; i < listing.count; i++)
		pier_append_text(names, sizeof(names), "%s%s", i ? ", " : "",
				 listing.list[i].name);
	free(listing.list);
	return pier_fail(ENODEV, "no RDMA device \"%s\"; there are%s%s%s%s", name,
			 names[0] ? ": " : " none", names,
			 error ? "; libibverbs lists none: " : "",
			 error ? explain_list_error(error) : "");
}

/* list_error: why libibverbs lists none, or 0 */
static int fail_to_choose(const struct opening *opening, int list_error)
{
	const char *remedy = pier_explain_missing_device(PIER_SOFT_DEVICE);
	char unlisted[384];

	pier_explain_unlisted(PIER_SYSFS, NULL, unlisted, sizeof(unlisted));
	if (!remedy)
		remedy = "PIER_DEVICE=" PIER_SOFT_DEVICE " or the name " PIER_SOFT_DEVICE
			 " selects the software NIC";
	if (opening->reasons[0])
		return pier_fail(ENODEV, "no RDMA device can be used (%s): %s%s%s",
				 remedy, opening->reasons, unlisted[0] ? "; " : "",
				 unlisted);
	if (list_error)
		return pier_fail(ENODEV, "there is no RDMA device: %s%s%s (%s)",
				 explain_list_error(list_error), unlisted[0] ? "; " : "",
				 unlisted, remedy);
	return pier_fail(ENODEV, "there is no RDMA device%s%s (%s)",
			 unlisted[0] ? ": " : "", unlisted, remedy);
}

/*
 * Accept "fault:PLAN:NAME", and "fault:NAME" as pier_device_name() returns it. Names of
 * devices have no colon.
 */
static void take_plan(struct opening *opening)
{
	const size_t prefix = sizeof(FAULT_PREFIX) - 1;
	const char *last;

	if (!opening->name || strncmp(opening->name, FAULT_PREFIX, prefix) != 0)
		return;
	opening->plan = opening->name + prefix;
	last = strrchr(opening->plan, ':');
	opening->plan_length = last ? (size_t)(last - opening->plan) : 0;
	opening->name = last ? last + 1 : opening->plan;
}

/*
 * Try the devices of `order`, or all if there is none. Returns why libibverbs lists none,
 * as visit_devices() does.
 */
static int try_devices(struct opening *opening, const struct pier_near_device *order,
		       size_t count)
{
	int error = 0;

	if (!opening->choosing || !count)
		return visit_devices(try_device, opening);
	for (size_t i = 0; i < count && !opening->device; i++) {
		opening->name = order[i].name;
		error = visit_devices(try_device, opening);
	}
	return error;
}

int pier_open_in_order(const char *name, const struct pier_near_device *order,
		       size_t count, struct pier_device **ret_device)
{
	const char *chosen = secure_getenv("PIER_DEVICE");
	struct opening opening = { .name = name };
	int error = pier_watch_forks();
	int list_error;

	if (error)
		return error;
	if (name || !chosen || !chosen[0])
		chosen = NULL;
	if (chosen)
		opening.name = chosen;
	opening.choosing = !opening.name;
	take_plan(&opening);
	list_error = try_devices(&opening, order, count);
	if (!opening.device && opening.choosing)
		return fail_to_choose(&opening, list_error);
	if (!opening.device) {
		error = opening.error ? -opening.error : fail_unknown(opening.name);
		return chosen ? pier_fail_because(error, "PIER_DEVICE=%s", chosen)
			      : error;
	}
	pier_add_device(opening.device);
	pier_object_track(&opening.device->object, PIER_OBJECT_DEVICE, NULL);
	pier_info("opened %s (%s), dma-buf registration: %s, channels: %s",
		  opening.device->name, opening.device->provider->name,
		  opening.device->dmabuf ? "yes" : "no",
		  opening.device->no_channels[0] ? opening.device->no_channels : "yes");
	*ret_device = opening.device;
	return 0;
}

int pier_device_open(const char *name, struct pier_device **ret_device)
{
	PIER_REFUSE_NULL(ret_device);
	PIER_ENTRY();

	return pier_open_in_order(name, NULL, 0, ret_device);
}
