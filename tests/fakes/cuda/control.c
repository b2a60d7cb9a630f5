/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "fake.h"

#define DEFAULT_MEMORY (1ull << 30)

static void set_device(struct fake_cuda_device *device, int ordinal)
{
	static const char *const addresses[FAKE_CUDA_MAX_DEVICES] = {
		"0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0",
		"0001:17:00.0", "0001:65:00.0", "0001:ca:00.0", "0001:e3:00.0",
	};
	/* These counts are kept. */
	uint64_t calls = device->calls, memory = device->memory_used;
	uint64_t bar = device->bar_used;
	uint32_t users = device->primary_users;

	*device = (struct fake_cuda_device){
		.name = "Fake GPU",
		.numa_node = ordinal < FAKE_CUDA_MAX_DEVICES / 2 ? 0 : 1,
		.compute_major = 9,
		.memory = DEFAULT_MEMORY,
		.dmabuf = true,
		.host_dmabuf = true,
		.rdma = true,
		.vmm = true,
		.vmm_rdma = true,
		.pools = true,
		.ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
		.flush_options = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST |
				 CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS,
		.calls = calls,
		.memory_used = memory,
		.bar_used = bar,
		.primary_users = users,
	};
	memcpy(device->pci, addresses[ordinal], strlen(addresses[ordinal]) + 1);
}

static void set_all(struct fake_cuda *control)
{
	control->version = 13000;
	control->devices = 2;
	control->windows = FAKE_CUDA_WINDOWS_REFUSED;
	control->peer_memory = false;
	control->no_mapping_ids = false;
	control->kernel_polls = false;
	control->no_host_ranges = false;
	control->maps_host = false;
	control->launching = false;
	control->capturing = false;
	control->no_ipc = control->contained = control->no_peers = false;
	control->udmabuf = fake_has_udmabuf();
	for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++)
		set_device(&control->device[i], i);
	for (int i = 0; i < FAKE_CUDA_MAX_CALLS; i++) {
		struct fake_cuda_call *call = &control->call[i];

		call->fail_in = call->fail_more = call->calls = 0;
		call->fail_result = 0;
	}
	fake_read_environment(control);
}

static void restore(void)
{
	struct fake_scope scope = fake_enter_unseen();

	set_all(&fake_driver.control);
	fake_leave(&scope);
}

__attribute__((constructor)) static void load(void)
{
	fake_name_calls(&fake_driver.control);
	fake_driver.control.restore = restore;
	fake_driver.control.read = fake_read;
	fake_driver.control.write = fake_write;
	fake_driver.control.attach = fake_attach;
	set_all(&fake_driver.control);
}

__attribute__((visibility("default"))) struct fake_cuda *fake_cuda_control(void)
{
	return &fake_driver.control;
}
