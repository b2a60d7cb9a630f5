/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "info/facts.h"
#include "remote/rails.h"
#include "side.h"
#include "units.h"

/* The first line of a file, without its end; "" if there is none. */
static void read_line(const char *path, char *ret_line, size_t size)
{
	FILE *file = fopen(path, "re");

	ret_line[0] = '\0';
	if (!file)
		return;
	if (fgets(ret_line, (int)size, file))
		ret_line[strcspn(ret_line, "\n")] = '\0';
	fclose(file);
}

static bool has_name(const char *names, const char *name)
{
	size_t length = strlen(name);

	for (; *names; names += names[0] == ',') {
		size_t one = strcspn(names, ",");

		if (one == length && strncmp(names, name, one) == 0)
			return true;
		names += one;
	}
	return false;
}

/* Append a name to those before it, unless it is one of them. */
static void add_name(char *names, size_t size, const char *name)
{
	size_t used = strlen(names);

	if (name[0] && !has_name(names, name))
		snprintf(names + used, size - used, "%s%s", used ? "," : "", name);
}

/* The name of the kernel's driver; "" for soft0 and for rxe, which has no device. */
static void read_driver(const char *device, char *ret_driver, size_t size)
{
	char path[128], target[PATH_MAX];
	ssize_t length;

	ret_driver[0] = '\0';
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.64s/device/driver", device);
	length = readlink(path, target, sizeof(target) - 1);
	if (length < 0)
		return;
	target[length] = '\0';
	snprintf(ret_driver, size, "%s", basename(target));
}

static void read_link(const struct perf_rail *rail, uint32_t port, char *ret_link,
		      size_t size)
{
	struct pier_port_attr attr;
	char path[128], rate[48];

	ret_link[0] = '\0';
	if (pier_device_query_port(rail->device, port, &attr, sizeof(attr)) < 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/infiniband/%.63s/ports/%u/rate",
		 pier_device_name(rail->device), port);
	read_line(path, rate, sizeof(rate));
	snprintf(ret_link, size, "%s%s%s, MTU %u", link_layer_name(attr.link_layer),
		 rate[0] ? ", " : "", rate, attr.active_mtu);
}

static void read_device(const struct side *side, const struct perf_rail *rail,
			struct perf_report *report)
{
	const char *name = pier_device_name(rail->device);
	struct pier_device_attr attr;
	char text[PERF_TEXT_MAX];

	add_name(report->device, sizeof(report->device), name);
	read_driver(name, text, sizeof(text));
	add_name(report->driver, sizeof(report->driver), text);
	if (pier_device_query(rail->device, &attr, sizeof(attr)) == 0)
		add_name(report->firmware, sizeof(report->firmware), attr.firmware);
	if (rail == &side->rails[0]) {
		struct pier_channel_attr channel;

		pier_channel_query(side->lanes[0].channel, &channel, sizeof(channel));
		read_link(rail, channel.port, report->link, sizeof(report->link));
	}
}

/* The drivers of GPUs give their version here. */
static void read_memory_driver(const char *backend, char *ret_driver, size_t size)
{
	const char *module = strcmp(backend, "cuda") == 0  ? "nvidia"
			     : strcmp(backend, "hip") == 0 ? "amdgpu"
							   : NULL;
	char path[64], version[48];

	ret_driver[0] = '\0';
	if (!module)
		return;
	snprintf(path, sizeof(path), "/sys/module/%s/version", module);
	read_line(path, version, sizeof(version));
	snprintf(ret_driver, size, "%s%s%s", module, version[0] ? " " : "", version);
}

static void read_processor(char *ret_name, size_t size)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[256];

	ret_name[0] = '\0';
	while (file && fgets(line, sizeof(line), file)) {
		const char *value = strchr(line, ':');

		if (strncmp(line, "model name", strlen("model name")) != 0 || !value)
			continue;
		line[strcspn(line, "\n")] = '\0';
		snprintf(ret_name, size, "%.100s", value + 1 + strspn(value + 1, " "));
		break;
	}
	if (file)
		fclose(file);
}

/*
 * Add the facts to the side's report that make the result comparable later: devices,
 * drivers, firmware, kernel, processor. A fact that cannot be read stays "".
 */
static void read_environment(struct side *side)
{
	struct perf_report *report = &side->report;
	struct pier_buffer_info memory;
	struct utsname system;

	for (uint32_t i = 0; i < side->rail_count; i++)
		read_device(side, &side->rails[i], report);
	if (pier_buffer_query(side->buffer, &memory, sizeof(memory)) == 0) {
		snprintf(report->memory_kind, sizeof(report->memory_kind), "%s",
			 memory.kind);
		read_memory_driver(memory.backend, report->memory_driver,
				   sizeof(report->memory_driver));
	}
	if (uname(&system) == 0) {
		snprintf(report->host, sizeof(report->host), "%s", system.nodename);
		snprintf(report->kernel, sizeof(report->kernel), "%.20s %.65s %.40s",
			 system.sysname, system.release, system.machine);
	}
	read_processor(report->processor, sizeof(report->processor));
	snprintf(report->version, sizeof(report->version), "%s", pier_version());
}

static bool has_receives(const struct perf_settings *settings)
{
	return settings->opcode == PIER_OP_SEND || is_ping_pong(settings);
}

/* Of the most lanes: the number of rails is not known yet. */
static uint64_t memory_size(const struct side *side)
{
	return 2 * side->stride * side->settings->rails * side->settings->channels;
}

/* The library zeroes the memory, so its pages exist before they are registered. */
static int alloc_memory(struct side *side, const char *spec, struct failure *failure)
{
	struct pier_buffer_info info;
	void *memory;

	snprintf(side->report.memory, sizeof(side->report.memory), "%s", spec);
	if (pier_buffer_alloc(spec, memory_size(side), &side->buffer) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	if (pier_buffer_map(side->buffer, &memory) == 0)
		side->memory = memory;
	side->report.mapped = side->memory && !side->settings->staged;
	/* As perftest and UCX do with their memory, where the kernel has such pages. */
	if (pier_buffer_query(side->buffer, &info, sizeof(info)) == 0 &&
	    strcmp(info.backend, "host") == 0)
		madvise(memory, memory_size(side), MADV_HUGEPAGE);
	return 0;
}

/* Page-locked memory of the GPU, whose copies are the fast ones; else plain memory. */
static int alloc_staging(struct side *side, struct failure *failure)
{
	struct pier_buffer_info info;
	char spec[PERF_NAME_MAX] = "host";

	if (pier_buffer_query(side->buffer, &info, sizeof(info)) == 0 &&
	    (strcmp(info.backend, "cuda") == 0 || strcmp(info.backend, "hip") == 0))
		snprintf(spec, sizeof(spec), "%.16s:%.16s:host", info.backend, info.unit);
	if (pier_buffer_alloc(spec, perf_lane_size(side->settings) * side->lane_count,
			      &side->staging) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

static int open_device(struct side *side, struct perf_rail *rail, const char *name,
		       struct failure *failure)
{
	struct pier_device_attr attr;

	if (pier_device_open(name, &rail->device) < 0 ||
	    pier_device_query(rail->device, &attr, sizeof(attr)) < 0 ||
	    pier_pd_alloc(rail->device, &rail->pd) < 0)
		return fail_pier(failure, EXIT_DEVICE);
	if (side->buffer)
		return 0;
	/* soft0 copies directly to and from another process's memfd. */
	return alloc_memory(side, attr.memfd_as_dmabuf ? "memfd" : "host", failure);
}

static int memory_access(const struct perf_settings *settings)
{
	return is_atomic(settings->opcode)
		       ? PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC
		       : PIER_ACCESS_SHARED;
}

static int register_once(const struct side *side, struct perf_rail *rail)
{
	struct pier_buffer *buffer = side->staging ? side->staging : side->buffer;

	/* Nothing here copies to and from a bounce buffer of the library. */
	return pier_mr_reg_buffer(rail->pd, buffer, 0, pier_buffer_length(buffer),
				  memory_access(side->settings), PIER_POLICY_ANY,
				  &rail->mr);
}

/* The second registration is the one whose cost users pay again and again. */
static int measure_registration(struct side *side, struct perf_rail *rail)
{
	struct perf_report *report = &side->report;
	uint64_t start;
	int error = register_once(side, rail);

	start = now_ns();
	if (!error)
		error = pier_mr_dereg(rail->mr);
	rail->mr = NULL;
	report->deregister_ns = now_ns() - start;
	start = now_ns();
	if (!error)
		error = register_once(side, rail);
	report->register_ns = now_ns() - start;
	return error;
}

static int register_memory(struct side *side, struct perf_rail *rail,
			   struct failure *failure)
{
	struct perf_report *report = &side->report;
	bool first = rail == &side->rails[0];
	struct pier_mr_info info;
	int error;

	if (first && side->settings->staged && alloc_staging(side, failure) < 0)
		return -1;
	error = first ? measure_registration(side, rail) : register_once(side, rail);
	if (error)
		return fail(failure, EXIT_DEVICE, "%s%s", pier_error_message(),
			    side->settings->staged ? ""
						   : "; --path staged copies through "
						     "host memory instead");
	if (!first)
		return 0;
	pier_mr_query(rail->mr, &info, sizeof(info));
	report->registered = info.length;
	snprintf(report->path, sizeof(report->path), "%s%s",
		 side->settings->staged ? "staged, " : "", pier_path_name(info.path));
	if (info.mapping != PIER_MAPPING_AUTO)
		snprintf(report->mapping, sizeof(report->mapping), "%s",
			 pier_mapping_name(info.mapping));
	snprintf(report->reason, sizeof(report->reason), "%s", info.reason);
	return 0;
}

static int set_channel_attr(const struct side *side, uint32_t port,
			    struct pier_channel_attr *ret_attr)
{
	const struct perf_settings *settings = side->settings;

	pier_channel_attr_init(ret_attr);
	ret_attr->port = port;
	ret_attr->max_send_wr = settings->depth;
	ret_attr->max_recv_wr = has_receives(settings) ? settings->rx_depth : 1;
	ret_attr->max_send_sge = ret_attr->max_recv_sge = 1;
	ret_attr->access = memory_access(settings);
	ret_attr->timeout_ms = (int)settings->timeout_ms;
	/* The CPU copies inline data, so it must be able to reach the memory. */
	if (side->memory || settings->staged)
		ret_attr->max_inline = settings->inline_size;
	return pier_channel_attr_parse(ret_attr, settings->channel);
}

static int open_lane(struct side *side, uint32_t number,
		     const struct pier_rail_pair *pair)
{
	const struct perf_settings *settings = side->settings;
	const struct perf_rail *rail = &side->rails[number % side->rail_count];
	struct lane *lane = &side->lanes[number];
	struct pier_channel_attr attr;
	int error = set_channel_attr(side, pair->port, &attr);

	lane->side = side;
	lane->mr = rail->mr;
	lane->source = side->stride * number;
	lane->destination = side->stride * (side->lane_count + number);
	lane->staged_sends = perf_lane_size(side->settings) * number;
	lane->staged_recvs = lane->staged_sends + settings->depth * side->stride;
	lane->staged_counts = lane->staged_recvs + settings->rx_depth * side->stride;
	lane->receives = calloc(settings->rx_depth, sizeof(lane->receives[0]));
	if (!lane->receives)
		return -ENOMEM;
	if (!error)
		error = pier_channel_create(rail->pd, &attr, &lane->channel);
	if (error)
		return error;
	lane->depth = pier_channel_send_room(lane->channel);
	return 0;
}

static int open_lanes(struct side *side, const struct pier_rail_pair *pairs,
		      struct failure *failure)
{
	side->lanes = calloc(side->lane_count, sizeof(side->lanes[0]));
	if (!side->lanes)
		return fail(failure, EXIT_DEVICE, "out of memory");
	for (uint32_t i = 0; i < side->lane_count; i++)
		if (open_lane(side, i, &pairs[i % side->rail_count]) < 0)
			return fail_pier(failure, EXIT_DEVICE);
	return 0;
}

static int check_remote(const struct side *side, const struct pier_remote *remote,
			struct control *control)
{
	if (remote->length < perf_lane_size(side->settings) * side->lane_count)
		return fail(control->failure, EXIT_PEER, "%s offered too little memory",
			    control_peer_name(control));
	return 0;
}

/*
 * The server's endpoint contains the address to connect to. The client does not report
 * why connecting failed: a hostile server could scan the client's network.
 */
static int connect_lane(struct lane *lane, const struct lane_message *peer,
			struct control *control)
{
	lane->peer = peer->remote;
	if (pier_channel_connect(lane->channel, &peer->endpoint) == 0)
		return 0;
	control->reason_withheld = control->peer != NULL;
	return fail(control->failure, EXIT_PEER, "connecting failed: %s",
		    pier_error_message());
}

static int exchange_lane(struct side *side, struct lane *lane, struct control *control)
{
	struct lane_message mine, theirs;

	if (pier_channel_endpoint(lane->channel, &mine.endpoint) < 0 ||
	    pier_mr_remote(lane->mr, &mine.remote) < 0 ||
	    (has_receives(side->settings) && post_lane_receives(lane) < 0))
		return fail_pier(control->failure, EXIT_DEVICE);
	if (send_lane(control, &mine) < 0 || receive_lane(control, &theirs) < 0 ||
	    check_remote(side, &theirs.remote, control) < 0)
		return -1;
	return connect_lane(lane, &theirs, control);
}

static int connect_side(struct side *side, struct control *control)
{
	struct frame frame;

	for (uint32_t i = 0; i < side->lane_count; i++)
		if (exchange_lane(side, &side->lanes[i], control) < 0)
			return -1;
	read_environment(side);
	if (send_perf_report(control, &side->report) < 0 ||
	    receive_perf_report(control, &side->peer_report) < 0 ||
	    control_send(control, FRAME_READY, NULL) < 0)
		return -1;
	return control_expect(control, FRAME_READY, &frame);
}

static int choose_rails(struct side *side, const struct perf_place *place, bool local,
			struct pier_rail_pair *ret_pairs, struct control *control)
{
	int count = agree_on_rails(control, side->buffer, place->device, local, ret_pairs,
				   side->settings->rails, &side->substitute, EXIT_DEVICE);

	if (count < 0)
		return -1;
	side->rail_count = (uint32_t)count;
	side->lane_count = side->rail_count * side->settings->channels;
	return 0;
}

int open_side(struct side *side, const struct perf_settings *settings,
	      const struct perf_place *place, bool local, struct control *control)
{
	struct pier_rail_pair pairs[PERF_RAILS_MAX];

	side->settings = settings;
	side->stride = perf_stride(settings);
	/* Memory that the user chose comes first: NICs near it are then preferred. */
	if (place->memory[0] && alloc_memory(side, place->memory, control->failure) < 0)
		return -1;
	if (choose_rails(side, place, local, pairs, control) < 0)
		return -1;
	for (uint32_t i = 0; i < side->rail_count; i++)
		if (open_device(side, &side->rails[i], pairs[i].device,
				control->failure) < 0 ||
		    register_memory(side, &side->rails[i], control->failure) < 0)
			return -1;
	if (open_lanes(side, pairs, control->failure) < 0)
		return -1;
	return connect_side(side, control);
}

void close_side(struct side *side)
{
	for (uint32_t i = 0; side->lanes && i < side->lane_count; i++) {
		pier_channel_destroy(side->lanes[i].channel);
		free(side->lanes[i].receives);
	}
	for (uint32_t i = 0; i < PERF_RAILS_MAX; i++)
		pier_mr_dereg(side->rails[i].mr);
	pier_buffer_free(side->staging);
	pier_buffer_free(side->buffer);
	for (uint32_t i = 0; i < PERF_RAILS_MAX; i++) {
		pier_pd_dealloc(side->rails[i].pd);
		pier_device_close(side->rails[i].device);
	}
	free(side->lanes);
	memset(side, 0, sizeof(*side));
}
