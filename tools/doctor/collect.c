/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <pier/pier.h>

#include "info/facts.h"
#include "report.h"

struct collection {
	struct facts *facts;
	const char *device, *memory;
	struct pier_device_info *devices;
	uint32_t device_count;
	struct pier_memory_unit *units;
	uint32_t unit_count;
};

static void keep_backends(struct facts *facts)
{
	struct pier_backend_info *list = NULL;
	uint32_t count = 0;

	if (pier_backend_list(&list, &count, sizeof(*list)) < 0)
		return;
	for (size_t i = 0; i < count; i++) {
		if (list[i].available)
			facts_set(facts, list[i].detail, "pier/backend/%s", list[i].name);
		else
			facts_set_error(facts, list[i].detail, "pier/backend/%s",
					list[i].name);
	}
	free(list);
}

/* A page of each kind of memory is allocated and exported. */
static void keep_export(struct facts *facts, const char *spec)
{
	struct pier_buffer *buffer = NULL;
	struct pier_buffer_info info;
	struct pier_dmabuf dmabuf = { .fd = -1 };
	int error = pier_buffer_alloc(spec, (size_t)sysconf(_SC_PAGESIZE), &buffer);

	if (!error)
		error = pier_buffer_query(buffer, &info, sizeof(info));
	if (!error)
		error = pier_dmabuf_export(buffer, 0, pier_buffer_length(buffer),
					   PIER_MAPPING_AUTO, &dmabuf);
	if (error)
		facts_set_error(facts, pier_error_message(), "pier/export/%s", spec);
	else
		facts_set(facts, info.kind, "pier/export/%s", spec);
	pier_dmabuf_close(&dmabuf);
	pier_buffer_free(buffer);
}

/* The units of pier_buffer_alloc() beside the GPU's own memory. */
static void keep_exports(struct facts *facts, const char *gpu)
{
	static const struct {
		const char *backend, *kinds[2];
	} backends[] = {
		{ "cuda:", { "vmm", "host" } },
		{ "hip:", { "fine", "host" } },
		{ "level_zero:", { "host", "shared" } },
	};
	char spec[FACT_NAME_MAX];

	keep_export(facts, gpu);
	for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
		if (strncmp(gpu, backends[i].backend, strlen(backends[i].backend)) != 0)
			continue;
		for (size_t j = 0; j < 2; j++) {
			snprintf(spec, sizeof(spec), "%s:%s", gpu, backends[i].kinds[j]);
			keep_export(facts, spec);
		}
	}
}

static void keep_gpus(const struct collection *collection)
{
	struct facts *facts = collection->facts;

	for (size_t i = 0; i < collection->unit_count; i++) {
		const struct pier_memory_unit *unit = &collection->units[i];

		facts_set(facts, unit->name, "pier/gpu/%s", unit->spec);
		facts_set(facts, unit->detail, "pier/gpu/%s/detail", unit->spec);
		facts_set(facts, unit->location.pci, "pier/gpu/%s/pci", unit->spec);
		if (strncmp(unit->spec, "cuda:", 5) == 0 && unit->location.pci[0])
			keep_nvml(facts, unit->spec, unit->location.pci);
		/* Other GPUs are left alone: a context takes memory of theirs. */
		if (!collection->memory ||
		    strncmp(collection->memory, unit->spec, strlen(unit->spec)) == 0)
			keep_exports(facts, unit->spec);
	}
}

static void keep_gid(struct facts *facts, struct pier_device *device, uint32_t port,
		     int index)
{
	struct pier_gid_entry entry;
	char address[INET6_ADDRSTRLEN], text[96];

	if (index < 0 || !read_gid(device, port, (uint32_t)index, &entry, address))
		return;
	snprintf(text, sizeof(text), "%d (%s) %s", index, gid_type_name(entry.type),
		 address);
	facts_set(facts, text, "pier/nic/%s/ports/%u/gid", pier_device_name(device),
		  port);
}

/* Keep the GID and the traffic class that a channel of this port takes. */
static void keep_choices(struct facts *facts, struct pier_device *device, uint32_t port)
{
	const char *nic = pier_device_name(device);
	struct pier_channel *channel = NULL;
	struct pier_channel_attr attr;
	struct pier_pd *pd = NULL;
	int error = pier_pd_alloc(device, &pd);

	pier_channel_attr_init(&attr);
	attr.port = port;
	if (!error)
		error = pier_channel_create(pd, &attr, &channel);
	if (error) {
		facts_set_error(facts, pier_error_message(), "pier/nic/%s/ports/%u/%s",
				nic, port, error == -EADDRNOTAVAIL ? "gid" : "channel");
	} else {
		pier_channel_query(channel, &attr, sizeof(attr));
		keep_gid(facts, device, port, attr.gid_index);
		facts_set_number(facts, attr.traffic_class,
				 "pier/nic/%s/ports/%u/traffic_class", nic, port);
	}
	pier_channel_destroy(channel);
	pier_pd_dealloc(pd);
}

static void keep_port(struct facts *facts, struct pier_device *device, uint32_t number)
{
	const char *nic = pier_device_name(device);
	struct pier_port_attr port;

	if (pier_device_query_port(device, number, &port, sizeof(port)) < 0)
		return;
	facts_set(facts, link_layer_name(port.link_layer),
		  "pier/nic/%s/ports/%u/link_layer", nic, number);
	facts_set_number(facts, port.active_mtu, "pier/nic/%s/ports/%u/active_mtu", nic,
			 number);
	facts_set_number(facts, port.max_mtu, "pier/nic/%s/ports/%u/max_mtu", nic,
			 number);
	if (port.active && pier_device_check_channels(device) == 0)
		keep_choices(facts, device, number);
}

static void keep_distances(const struct collection *collection,
			   struct pier_device *device)
{
	struct pier_location location;

	if (pier_device_location(device, &location) < 0 || !location.pci[0])
		return;
	for (size_t i = 0; i < collection->unit_count; i++)
		facts_set(collection->facts,
			  pier_distance_name(pier_location_distance(
				  &collection->units[i].location, &location)),
			  "pier/distance/%s/%s", collection->units[i].spec,
			  pier_device_name(device));
}

enum {
	PROBE_BYTES = 64 << 10,
	PROBE_TIMEOUT_MS = 10000,
};

/* Both ends of a connection on one NIC, host memory, and the memory in question. */
struct probe {
	struct pier_pd *pd;
	struct pier_channel *near, *far;
	struct pier_mr *host, *mr;
	struct pier_buffer *buffer;
	uint8_t sent[PROBE_BYTES], came[PROBE_BYTES];
};

static int open_probe(struct probe *probe, struct pier_device *device, const char *memory)
{
	int error = pier_pd_alloc(device, &probe->pd);

	if (!error)
		error = pier_mr_reg(probe->pd, probe->sent,
				    sizeof(probe->sent) + sizeof(probe->came),
				    PIER_ACCESS_LOCAL_WRITE, &probe->host);
	if (!error)
		error = pier_buffer_alloc(memory, PROBE_BYTES, &probe->buffer);
	if (!error)
		error = pier_mr_reg_buffer(probe->pd, probe->buffer, 0, PROBE_BYTES,
					   PIER_ACCESS_SHARED, PIER_POLICY_PEERMEM,
					   &probe->mr);
	return error;
}

/* In this order: what is in use cannot be closed. */
static void close_probe(struct probe *probe)
{
	pier_channel_destroy(probe->near);
	pier_channel_destroy(probe->far);
	pier_mr_dereg(probe->mr);
	pier_mr_dereg(probe->host);
	pier_buffer_free(probe->buffer);
	pier_pd_dealloc(probe->pd);
}

static int connect_probe(struct probe *probe, uint32_t port)
{
	struct pier_channel_attr attr;
	struct pier_endpoint near, far;
	int error;

	pier_channel_attr_init(&attr);
	attr.port = port;
	error = pier_channel_create(probe->pd, &attr, &probe->near);
	if (!error)
		error = pier_channel_create(probe->pd, &attr, &probe->far);
	if (!error)
		error = pier_channel_endpoint(probe->near, &near);
	if (!error)
		error = pier_channel_endpoint(probe->far, &far);
	if (!error)
		error = pier_channel_connect(probe->near, &far);
	if (!error)
		error = pier_channel_connect(probe->far, &near);
	return error;
}

/* The NIC writes the bytes into the memory, and reads them from there. */
static int move_bytes(struct probe *probe)
{
	struct pier_gather from;
	struct pier_scatter to;
	struct pier_remote remote;
	int error = pier_mr_gather(probe->host, (uintptr_t)probe->sent, PROBE_BYTES,
				   &from);

	if (!error)
		error = pier_mr_scatter(probe->host, (uintptr_t)probe->came, PROBE_BYTES,
					&to);
	if (!error)
		error = pier_mr_remote(probe->mr, &remote);
	if (!error)
		error = pier_channel_write(probe->near, &from, 1, &remote,
					   PROBE_TIMEOUT_MS);
	if (!error)
		error = pier_mr_sync_for_device(probe->mr, 0, PROBE_BYTES);
	if (!error)
		error = pier_channel_read(probe->near, &to, 1, &remote, PROBE_TIMEOUT_MS);
	return error;
}

static size_t first_difference(const uint8_t *a, const uint8_t *b)
{
	size_t at = 0;

	while (at < PROBE_BYTES && a[at] == b[at])
		at++;
	return at;
}

/* Through the NIC, and through the memory's own copies. */
static void compare_bytes(struct facts *facts, struct probe *probe, const char *memory,
			  const char *nic)
{
	size_t at = first_difference(probe->sent, probe->came);
	const char *reader = "the NIC";
	char text[160];

	if (at == PROBE_BYTES) {
		reader = "a copy from the memory";
		memset(probe->came, 0, PROBE_BYTES);
		if (pier_buffer_copy_from(probe->buffer, 0, probe->came, PROBE_BYTES)) {
			facts_set_error(facts, pier_error_message(),
					"pier/transfer/%s/%s", memory, nic);
			return;
		}
		at = first_difference(probe->sent, probe->came);
	}
	if (at == PROBE_BYTES) {
		snprintf(text, sizeof(text),
			 "%d bytes written and read within the NIC, all equal",
			 PROBE_BYTES);
		facts_set(facts, text, "pier/transfer/%s/%s", memory, nic);
		return;
	}
	snprintf(text, sizeof(text),
		 "%s returned other bytes than were written: the first is at %zu", reader,
		 at);
	facts_set_error(facts, text, "pier/transfer/%s/%s", memory, nic);
}

static void keep_reach(struct facts *facts, const struct probe *probe, const char *memory,
		       const char *nic)
{
	struct pier_mr_info info;

	pier_mr_query(probe->mr, &info, sizeof(info));
	facts_set(facts, pier_path_name(info.path), "pier/reach/%s/%s", memory, nic);
	facts_set(facts, info.reason, "pier/reach/%s/%s/reason", memory, nic);
	facts_set(facts, info.canary, "pier/reach/%s/%s/canary", memory, nic);
	if (info.mapping != PIER_MAPPING_AUTO)
		facts_set(facts, pier_mapping_name(info.mapping),
			  "pier/reach/%s/%s/mapping", memory, nic);
}

/*
 * Register memory on a device, write random bytes to it and read them back through the
 * NIC, and compare.
 *
 * port  for both ends of the connection, between which packets do not leave the NIC; 0:
 *       only register the memory
 *
 * Returns the error of the transfer, or 0.
 */
static int probe_memory(struct facts *facts, struct pier_device *device, uint32_t port,
			const char *memory)
{
	const char *nic = pier_device_name(device), *spec = memory;
	static struct probe probe;
	char plain[FACT_NAME_MAX];
	int error = 0;

	memset(&probe, 0, sizeof(probe));
	make_fact_name(spec, plain);
	memory = plain;
	if (open_probe(&probe, device, spec)) {
		facts_set_error(facts, pier_error_message(), "pier/reach/%s/%s", memory,
				nic);
		close_probe(&probe);
		return 0;
	}
	keep_reach(facts, &probe, memory, nic);
	if (getrandom(probe.sent, sizeof(probe.sent), 0) < 0)
		memset(probe.sent, 0x5a, sizeof(probe.sent));
	if (port > 0) {
		error = connect_probe(&probe, port);
		if (!error)
			error = move_bytes(&probe);
		if (error)
			facts_set_error(facts, pier_error_message(),
					"pier/transfer/%s/%s", memory, nic);
		else
			compare_bytes(facts, &probe, memory, nic);
	}
	close_probe(&probe);
	return error;
}

/* A NIC that does not answer is not asked again: each wait takes seconds. */
static void probe_next(const struct collection *collection, struct pier_device *device,
		       uint32_t *port, const char *memory)
{
	int error = probe_memory(collection->facts, device, *port, memory);

	if (error == -ETIMEDOUT || error == -EHOSTUNREACH)
		*port = 0;
}

/* "host", and either the memory that was named or all kinds that work. */
static void probe_memories(const struct collection *collection,
			   struct pier_device *device, uint32_t port)
{
	static const char *const kinds[] = { "memfd", "udmabuf", "dma_heap" };

	probe_next(collection, device, &port, "host");
	if (collection->memory) {
		if (strcmp(collection->memory, "host") != 0)
			probe_next(collection, device, &port, collection->memory);
		return;
	}
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (facts_get(collection->facts, "pier/backend/%s", kinds[i]))
			probe_next(collection, device, &port, kinds[i]);
	for (size_t i = 0; i < collection->unit_count; i++)
		probe_next(collection, device, &port, collection->units[i].spec);
}

/* The first port with channels; 0: none. */
static uint32_t find_active_port(struct pier_device *device, uint32_t count)
{
	struct pier_port_attr port;

	if (pier_device_check_channels(device) < 0)
		return 0;
	for (uint32_t number = 1; number <= count; number++)
		if (pier_device_query_port(device, number, &port, sizeof(port)) == 0 &&
		    port.active)
			return number;
	return 0;
}

static void keep_nic(const struct collection *collection, const char *name)
{
	struct facts *facts = collection->facts;
	struct pier_device *device;
	struct pier_device_attr attr;
	char plain[FACT_NAME_MAX];

	if (pier_device_open(name, &device) < 0) {
		make_fact_name(name, plain);
		facts_set_error(facts, pier_error_message(), "pier/nic/%s", plain);
		return;
	}
	name = pier_device_name(device);
	if (pier_device_query(device, &attr, sizeof(attr)) < 0) {
		facts_set_error(facts, pier_error_message(), "pier/nic/%s", name);
		pier_device_close(device);
		return;
	}
	facts_set(facts, attr.provider, "pier/nic/%s", name);
	facts_set(facts, attr.firmware, "pier/nic/%s/firmware", name);
	facts_set(facts, attr.dmabuf ? "yes" : "no", "pier/nic/%s/dmabuf", name);
	if (pier_device_check_channels(device) < 0)
		facts_set_error(facts, pier_error_message(), "pier/nic/%s/channels",
				name);
	for (uint32_t port = 1; port <= attr.port_count; port++)
		keep_port(facts, device, port);
	keep_distances(collection, device);
	probe_memories(collection, device, find_active_port(device, attr.port_count));
	pier_device_close(device);
}

/* A counter is read again after the transfers; facts_get() reads a file once. */
static void keep_counter_after(struct facts *facts, const char *nic, const char *port,
			       const char *kind, const char *name)
{
	char path[FACT_PATH_MAX], text[32];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%s/%s/%s", nic, port,
		 kind, name);
	file = fopen(path, "re");
	if (!file)
		return;
	if (fgets(text, sizeof(text), file))
		facts_set(facts, text, "pier/nic/%s/ports/%s/after/%s", nic, port, name);
	fclose(file);
}

static void keep_port_counters(struct facts *facts, const char *nic, const char *port,
			       const char *kind, bool after)
{
	struct names names = facts_names(facts, "/sys/class/infiniband/%s/ports/%s/%s",
					 nic, port, kind);

	for (size_t i = 0; i < names.count; i++) {
		const char *name = names.list[i];

		if (counts_errors(name) && after)
			keep_counter_after(facts, nic, port, kind, name);
		else if (counts_errors(name))
			facts_get(facts, "/sys/class/infiniband/%s/ports/%s/%s/%s", nic,
				  port, kind, name);
	}
	facts_free_names(&names);
}

/* Of each NIC before and after the transfers. */
static void keep_counters(struct facts *facts, bool after)
{
	struct names nics = facts_names(facts, "/sys/class/infiniband");

	for (size_t i = 0; i < nics.count; i++) {
		struct names ports = facts_names(facts, "/sys/class/infiniband/%s/ports",
						 nics.list[i]);

		for (size_t j = 0; j < ports.count; j++) {
			keep_port_counters(facts, nics.list[i], ports.list[j], "counters",
					   after);
			keep_port_counters(facts, nics.list[i], ports.list[j],
					   "hw_counters", after);
		}
		facts_free_names(&ports);
	}
	facts_free_names(&nics);
}

/* The name of a device with a fault plan becomes "fault:NAME" when it is opened. */
static void keep_only(const struct collection *collection)
{
	struct names names;

	keep_nic(collection, collection->device);
	names = facts_names(collection->facts, "pier/nic");
	if (names.count > 0)
		facts_set(collection->facts, names.list[0], "pier/only");
	facts_free_names(&names);
}

static void keep_nics(const struct collection *collection)
{
	bool none = true;

	if (collection->device) {
		keep_only(collection);
		return;
	}
	for (size_t i = 0; i < collection->device_count; i++) {
		if (strcmp(collection->devices[i].name, PIER_SOFT_DEVICE) == 0)
			continue;
		none = false;
		keep_nic(collection, collection->devices[i].name);
	}
	if (none)
		keep_nic(collection, PIER_SOFT_DEVICE);
}

void collect_facts(struct facts *facts, const char *device, const char *memory)
{
	struct collection collection = { .facts = facts,
					 .device = device,
					 .memory = memory };
	const char *reason;

	keep_process(facts);
	keep_kernel_config(facts);
	keep_backends(facts);
	if (pier_memory_unit_list(&collection.units, &collection.unit_count,
				  sizeof(*collection.units)) < 0)
		collection.unit_count = 0;
	if (pier_device_list(&collection.devices, &collection.device_count,
			     sizeof(*collection.devices)) < 0)
		collection.device_count = 0;
	reason = read_no_device_reason(collection.devices, collection.device_count);
	if (reason)
		facts_set_error(facts, reason, "pier/no_nic");
	keep_gpus(&collection);
	keep_counters(facts, false);
	keep_nics(&collection);
	keep_counters(facts, true);
	free(collection.devices);
	free(collection.units);
}
