/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <pier/pier.h>

#include "collect.h"
#include "facts.h"

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
	int error = pier_alloc_pd(device, &probe->pd);

	if (!error)
		error = pier_reg_mr(probe->pd, probe->sent,
				    sizeof(probe->sent) + sizeof(probe->came),
				    PIER_ACCESS_LOCAL_WRITE, &probe->host);
	if (!error)
		error = pier_buffer_alloc(memory, PROBE_BYTES, &probe->buffer);
	if (!error)
		error = pier_reg_buffer_mr(probe->pd, probe->buffer, 0, PROBE_BYTES,
					   PIER_ACCESS_SHARED, PIER_POLICY_PEERMEM,
					   &probe->mr);
	return error;
}

/* In this order: what is in use cannot be closed. */
static void close_probe(struct probe *probe)
{
	pier_channel_destroy(probe->near);
	pier_channel_destroy(probe->far);
	pier_dereg_mr(probe->mr);
	pier_dereg_mr(probe->host);
	pier_buffer_free(probe->buffer);
	pier_dealloc_pd(probe->pd);
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

int probe_memory(struct facts *facts, struct pier_device *device, uint32_t port,
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
