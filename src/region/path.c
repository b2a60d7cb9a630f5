/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "buffer/buffer.h"
#include "buffer/locate.h"
#include "buffer/topology_file.h"
#include "canary.h"
#include "core/error.h"
#include "core/log.h"
#include "core/page.h"
#include "device/device.h"
#include "device/topology.h"
#include "path.h"
#include "plan.h"
#include "sync.h"

enum {
	/*
	 * ENOTSUPP of the kernel (include/linux/errno.h), which is not for programs, but
	 * which exporters return: nv_dma_buf_attach() of NVIDIA's nv-dmabuf.c (seen in
	 * UCX's pull request 11571).
	 */
	KERNEL_ENOTSUPP = 524,
	/*
	 * MLX5_MAX_UMR_PAGES in the kernel's mlx5 driver: without the capability
	 * umr_extended_translation_offset a dma-buf of that many pages is EINVAL.
	 */
	UMR_PAGES = 65536,
	HINT = 256,
};

/* A hint for the user about the errno of a registration, or "". */
static const char *registration_hint(int error, const struct pier_pd *pd, uint64_t length,
				     enum pier_path path, char text[HINT])
{
	uint64_t umr = UMR_PAGES * (uint64_t)pier_host_page();
	struct rlimit limit;

	if (error == EFAULT && path == PIER_PATH_HOST)
		return " (not mapped, not writable, or a mapping of device memory, which "
		       "has to be registered as a dma-buf)";
	if (error == EFAULT && path == PIER_PATH_PEERMEM)
		return " (the kernel has no peer memory module for this memory, such as "
		       "nvidia-peermem)";
	if (error == KERNEL_ENOTSUPP)
		return " (the driver of the memory does not let this NIC attach: their "
		       "places in the PCIe tree or the mapping do not suit; dmesg has "
		       "the reason)";
	if (error == EINVAL && path == PIER_PATH_DMABUF && length >= umr &&
	    pd->device->limits.vendor_id == PIER_VENDOR_MELLANOX) {
		snprintf(text, HINT,
			 " (maybe UMR of this mlx5 device, such as a virtual function, "
			 "has no extended translation offsets: it then takes only "
			 "dma-bufs of less than %" PRIu64 " MiB)",
			 umr >> 20);
		return text;
	}
	/*
	 * pier's own rules hold. amdgpu_dma_buf_pin() returns EINVAL, and older versions
	 * of amdgpu_dma_buf_map() EBUSY, for memory that cannot leave the device.
	 */
	if ((error == EINVAL || error == EBUSY) && path == PIER_PATH_DMABUF)
		return " (maybe the driver of the memory cannot pin it where this NIC "
		       "reaches it, as amdgpu if the two have no peer-to-peer; dmesg has "
		       "the reason)";
	/* Memory of the device, which no limit of the process covers. */
	if (error == ENOMEM && (path == PIER_PATH_DMABUF || path == PIER_PATH_PEERMEM))
		return " (of a GPU's memory: is its BAR used up?)";
	/* Too many pages are ENOMEM, a limit of 0 is EPERM (ib_umem_get()). */
	if ((error != ENOMEM && error != EPERM) || getrlimit(RLIMIT_MEMLOCK, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY)
		return "";
	snprintf(text, HINT, " (RLIMIT_MEMLOCK is %" PRIu64 " KiB; see ulimit -l)",
		 (uint64_t)limit.rlim_cur / 1024);
	return text;
}

/*
 * Drivers may take longer regions than they report: ionic counts pages of 4 KiB, and its
 * kernel driver checks nothing (ionic_query_device()). So they are asked first.
 */
static bool is_too_long(int error, const struct pier_pd *pd, uint64_t length)
{
	return length > pd->device->limits.max_mr_size &&
	       (error == EINVAL || error == E2BIG || error == EFBIG ||
		error == EOVERFLOW);
}

int pier_fail_registration(int error, const struct pier_pd *pd, uint64_t length,
			   enum pier_path path)
{
	static const char *const names[] = {
		[PIER_PATH_HOST] = "host memory",
		[PIER_PATH_DMABUF] = "a dma-buf",
		[PIER_PATH_PEERMEM] = "peer memory",
		[PIER_PATH_BOUNCE] = "a bounce buffer",
		[PIER_PATH_MIXED] = "ranges of several kinds",
		[PIER_PATH_NIC] = "the NIC's own memory",
	};
	char text[HINT];

	if (is_too_long(error, pd, length))
		return pier_fail(E2BIG,
				 "registering %" PRIu64 " bytes as %s on %s: errno %d; "
				 "its max_mr_size is %" PRIu64 " bytes",
				 length, names[path], pd->device->name, error,
				 pd->device->limits.max_mr_size);
	return pier_fail_because(error == KERNEL_ENOTSUPP ? EOPNOTSUPP : error,
				 "registering %" PRIu64 " bytes as %s on %s%s", length,
				 names[path], pd->device->name,
				 registration_hint(error, pd, length, path, text));
}

static void set_part(const struct pier_part_request *segment, struct ibv_mr *mr,
		     enum pier_path path, struct pier_mr_part *ret_part)
{
	*ret_part = (struct pier_mr_part){
		.mr = mr,
		.start = segment->start,
		.length = segment->range.length,
		.iova = segment->iova,
		.path = path,
	};
}

static struct ibv_mr *reg_addr(const struct pier_part_request *segment, void *addr)
{
	const struct pier_mr *region = segment->region;
	const struct pier_provider *provider = region->pd->device->provider;
	struct pier_reg_attr attr = {
		.comp_mask = PIER_REG_ADDR | PIER_REG_IOVA | PIER_REG_DMAH,
		.addr = addr,
		.length = segment->range.length,
		.iova = segment->iova,
		.access = (int)region->access,
		.dmah = region->dmah,
	};

	if (region->dmah)
		return provider->reg_mr_ex(region->pd->pd, &attr);
	return provider->reg_mr(region->pd->pd, addr, attr.length, attr.iova,
				attr.access);
}

static struct ibv_mr *reg_fd(const struct pier_part_request *segment, int fd,
			     uint64_t offset)
{
	const struct pier_mr *region = segment->region;
	const struct pier_provider *provider = region->pd->device->provider;
	struct pier_reg_attr attr = {
		.comp_mask = PIER_REG_FD | PIER_REG_FD_OFFSET | PIER_REG_IOVA |
			     PIER_REG_DMAH,
		.fd = fd,
		.fd_offset = offset,
		.length = segment->range.length,
		.iova = segment->iova,
		.access = (int)region->access,
		.dmah = region->dmah,
	};

	if (region->dmah)
		return provider->reg_mr_ex(region->pd->pd, &attr);
	return (segment->data_direct ? provider->reg_data_direct_mr
				     : provider->reg_dmabuf_mr)(
		region->pd->pd, offset, attr.length, attr.iova, fd, attr.access);
}

/* addr: the CPU's, or with PIER_PATH_PEERMEM the device's */
static int register_pages(const struct pier_part_request *segment, void *addr,
			  enum pier_path path, struct pier_mr_part *ret_part)
{
	const struct pier_pd *pd = segment->region->pd;
	uint64_t length = segment->range.length;
	uint32_t access = segment->region->access;
	int error = 0;
	struct ibv_mr *mr;

	if (!segment->checked)
		error = pier_check_host(pd->device, (uintptr_t)addr, length,
					segment->iova, access);
	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = reg_addr(segment, addr);
	if (!mr)
		return pier_fail_registration(pier_last_errno(), pd, length, path);
	set_part(segment, mr, path, ret_part);
	return 0;
}

static int register_fd(const struct pier_part_request *segment, int fd, uint64_t offset,
		       struct pier_mr_part *ret_part)
{
	const struct pier_pd *pd = segment->region->pd;
	uint64_t length = segment->range.length, iova = segment->iova;
	uint32_t access = segment->region->access;
	int error = 0, refusal;
	struct ibv_mr *mr;

	if (!segment->checked)
		error = pier_check_dmabuf_numbers(pd->device, offset, length, iova, fd,
						  access);
	if (error)
		return error;
	pier_clear_error();
	errno = 0;
	mr = reg_fd(segment, fd, offset);
	if (mr) {
		set_part(segment, mr, PIER_PATH_DMABUF, ret_part);
		return 0;
	}
	refusal = pier_last_errno();
	/* Name the rule that is broken, if pier knows it. */
	error = pier_check_dmabuf(pd->device, offset, length, iova, fd, access);
	return error ? error
		     : pier_fail_registration(refusal, pd, length, PIER_PATH_DMABUF);
}

struct pier_export_use pier_export_use_of(const struct pier_mr *region,
					  enum pier_mapping mapping)
{
	bool writes = region->access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					IBV_ACCESS_REMOTE_ATOMIC);

	return (struct pier_export_use){
		.mapping = mapping,
		.access = PIER_BACKEND_READ | (writes ? PIER_BACKEND_WRITE : 0),
		.importer = region->pd->device->name,
	};
}

/*
 * A GPU that is joined to the CPU by NVLink-C2C has two paths to a NIC, and a dma-buf is
 * for one of them. The wrong one is no error at the registration, and only shows once
 * data moves (libfabric's pull request 12864). A NIC below the same PCIe bridge as the
 * GPU needs the mapping PCIe, every other one the default mapping
 * (ncclTopoCheckGdr() in NCCL's paths.cc). NICs of mlx5 reach the GPU over PCIe only
 * through their Data Direct engine, a PCIe function of its own
 * (uct_cuda_copy_md_get_dmabuf_fd() in UCX's cuda_copy_md.c).
 */

/* EOPNOTSUPP: NICs of this kind have no such engines. */
static int ask_data_direct(const struct pier_device *device, char *ret_path, size_t size)
{
	int error;

	if (!device->provider->query_data_direct)
		return EOPNOTSUPP;
	pier_clear_error();
	error = device->provider->query_data_direct(device->context, ret_path, size);
	ret_path[size - 1] = '\0';
	return error;
}

/* Where the NIC's requests to the GPU come from, if not from the CPU; false: unknown. */
static bool find_requester(const struct pier_topology *topology,
			   const struct pier_device *device,
			   struct pier_location *ret_location)
{
	char path[PATH_MAX] = "";
	const char *name;
	uint32_t speed;
	int error = ask_data_direct(device, path, sizeof(path));

	if (error && error != EOPNOTSUPP)
		return false;
	name = strrchr(path, '/');
	if (error)
		pier_topology_find_nic(topology, device->context->device->name,
				       ret_location, &speed);
	else
		pier_settle_location(topology->sysfs, name ? name + 1 : path, -1,
				     ret_location);
	return true;
}

static enum pier_mapping choose_by_topology(const char *sysfs,
					    const struct pier_part_request *segment)
{
	const struct pier_device *device = segment->region->pd->device;
	struct pier_location nic, memory;
	enum pier_distance distance = PIER_DISTANCE_UNKNOWN;
	struct pier_topology topology;

	pier_topology_open_leniently(sysfs, &topology);
	if (find_requester(&topology, device, &nic) &&
	    pier_locate_buffer(sysfs, segment->range.buffer, &memory) == 0)
		distance = pier_topology_distance(&topology, &nic, &memory);
	pier_topology_close(&topology);
	pier_debug("distance between %s and coherent memory of %s: %s", device->name,
		   segment->range.buffer->backend->name, pier_distance_name(distance));
	return distance <= PIER_DISTANCE_SWITCHES ? PIER_MAPPING_PCIE
						  : PIER_MAPPING_DEFAULT;
}

enum pier_mapping pier_choose_mapping(const char *sysfs,
				      const struct pier_part_request *segment)
{
	const struct pier_memory_facts *facts = &segment->range.buffer->facts;

	if (facts->coherent)
		return choose_by_topology(sysfs, segment);
	return facts->mapping == PIER_MAPPING_PCIE ? PIER_MAPPING_PCIE
						   : PIER_MAPPING_DEFAULT;
}

/*
 * Whether dma-bufs of a mapping go through the NIC's Data Direct engine.
 *
 * Errors: -EOPNOTSUPP they have to, and the NIC has none.
 */
static int find_data_direct(const struct pier_part_request *segment,
			    enum pier_mapping mapping, bool *ret_data_direct)
{
	const struct pier_device *device = segment->region->pd->device;
	char path[PATH_MAX]; /* not read: clearing it would cost more than the rest */
	int error;

	*ret_data_direct = false;
	if (mapping != PIER_MAPPING_PCIE || !segment->range.buffer->facts.coherent)
		return 0;
	error = ask_data_direct(device, path, sizeof(path));
	if (error && error != EOPNOTSUPP)
		return pier_fail_because(EOPNOTSUPP,
					 "%s reaches this memory over PCIe only through "
					 "Data Direct",
					 device->name);
	if (!error && segment->region->dmah)
		return pier_fail(EOPNOTSUPP,
				 "%s reaches this memory over PCIe only through Data "
				 "Direct, which takes no TPH hint",
				 device->name);
	*ret_data_direct = !error;
	return 0;
}

/*
 * Allocations are whole pages, and the rest of the last page belongs to no caller.
 * Memory that was wrapped belongs to its owner up to the last byte.
 */
static void set_padding(const struct pier_part_request *segment, struct ibv_mr *mr)
{
	const struct pier_provider *provider = segment->region->pd->device->provider;
	const struct pier_buffer *buffer = segment->range.buffer;
	uint64_t end = buffer->address + buffer->length;
	uint64_t padding = buffer->memory.address + buffer->memory.length - end;

	if (provider->set_padding && !buffer->wrapped && padding < pier_host_page() &&
	    segment->range.offset + segment->range.length == buffer->length)
		provider->set_padding(mr, padding);
}

/*
 * Data Direct needs a page-aligned iova (reg_user_mr_dmabuf_by_data_direct() in the
 * kernel's mlx5 driver). A region from the start of the page on, as in torchcomms' pull
 * request 3410, would have a key for bytes that the range does not have.
 */
static bool is_inside_page(const struct pier_part_request *segment)
{
	return segment->iova & (pier_host_page() - 1);
}

/*
 * whole: with a dma-buf of all of the allocation; the key still covers the range alone
 *
 * Errors, with ret_exported true: of the registration.
 */
static int register_dmabuf(const struct pier_part_request *segment,
			   enum pier_mapping mapping, bool whole,
			   struct pier_mr_part *ret_part, bool *ret_exported)
{
	struct pier_export_use use = pier_export_use_of(segment->region, mapping);
	struct pier_buffer *buffer = segment->range.buffer;
	struct pier_backend_export dmabuf;
	uint64_t offset = 0;
	int error;

	use.whole = whole;
	error = pier_export_range(buffer, segment->range.offset, segment->range.length,
				  &use, &dmabuf, &offset);
	*ret_exported = !error;
	if (error)
		return error;
	error = register_fd(segment, dmabuf.fd, offset, ret_part);
	if (error == -EOPNOTSUPP && segment->data_direct && is_inside_page(segment))
		error = pier_fail(EOPNOTSUPP,
				  "%s; Data Direct takes ranges from the start of a page "
				  "on, and this range begins %" PRIu64
				  " bytes into a page: align it",
				  pier_error_message(),
				  segment->iova & (pier_host_page() - 1));
	/* The verbs region has its own reference to the dma-buf. */
	buffer->backend->close_export(&dmabuf);
	return error;
}

/*
 * Of a GPU. Some IOMMUs map whole allocations only, and refuse a dma-buf of a part:
 * torchcomms' pull request 1027 (GB300, SMMU). The first refusal is the one to report.
 */
static int register_whole(const struct pier_part_request *segment,
			  enum pier_mapping mapping, int refusal,
			  struct pier_mr_part *ret_part)
{
	const struct pier_mr_range *range = &segment->range;
	char cause[384];
	bool exported;

	if ((segment->data_direct && is_inside_page(segment)) ||
	    !range->buffer->backend->mappings ||
	    !pier_export_widens(range->buffer, range->offset, range->length))
		return refusal;
	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	if (register_dmabuf(segment, mapping, true, ret_part, &exported))
		return pier_fail(-refusal, "%s", cause);
	pier_debug("%s takes a dma-buf of the whole allocation, but: %s",
		   segment->region->pd->device->name, cause);
	return 0;
}

/* Errors that neither the other mapping nor a wider dma-buf would avoid. */
static bool is_unrelated_error(int error)
{
	return error == -EXDEV || error == -EMFILE || error == -ENFILE ||
	       error == -ERANGE || error == -E2BIG;
}

static int register_export(const struct pier_part_request *segment,
			   struct pier_mr_part *ret_part);

static int register_with_mapping(const struct pier_part_request *segment,
				 enum pier_mapping mapping, struct pier_mr_part *ret_part)
{
	struct pier_pair *pair = pier_canary_pair(segment);
	struct pier_part_request mapped = *segment;
	bool exported;
	int error = pier_check_canary(pair, mapping);

	if (!error)
		error = find_data_direct(segment, mapping, &mapped.data_direct);
	if (error)
		return error;
	error = register_dmabuf(&mapped, mapping, false, ret_part, &exported);
	if (error && exported && error != -ENOMEM && !is_unrelated_error(error))
		error = register_whole(&mapped, mapping, error, ret_part);
	if (error)
		return error;
	ret_part->mapping = mapping;
	set_padding(segment, ret_part->mr);
	error = pier_send_canary(segment, pair, mapping, register_export);
	if (error)
		segment->region->pd->device->provider->dereg_mr(ret_part->mr);
	return error;
}

/*
 * Over C2C a NIC needs no BAR, and nv_dma_buf_map() of NVIDIA's nv-dmabuf.c returns NULL,
 * which becomes ENOMEM, for every failure. Elsewhere memory is short with either mapping.
 */
static bool may_help(const struct pier_part_request *segment, int error)
{
	if (error == -ENOMEM)
		return segment->range.buffer->facts.coherent;
	return !is_unrelated_error(error);
}

static int try_other_mapping(const struct pier_part_request *segment,
			     enum pier_mapping first, int error,
			     struct pier_mr_part *ret_part)
{
	enum pier_mapping other = first == PIER_MAPPING_DEFAULT ? PIER_MAPPING_PCIE
								: PIER_MAPPING_DEFAULT;
	char cause[384];

	snprintf(cause, sizeof(cause), "%s", pier_error_message());
	if (register_with_mapping(segment, other, ret_part))
		return pier_fail(-error, "with the mapping \"%s\": %s; with \"%s\": %s",
				 pier_mapping_name(first), cause,
				 pier_mapping_name(other), pier_error_message());
	pier_info("%s takes dma-bufs of %s with the mapping \"%s\"; with \"%s\": %s",
		  segment->region->pd->device->name, segment->range.buffer->backend->name,
		  pier_mapping_name(other), pier_mapping_name(first), cause);
	return 0;
}

/*
 * Try the mapping that was last registered for this NIC and this memory, or else the one
 * that suits them; then the other one. Each is tried for the range and, if the NIC
 * refuses that, for the whole allocation. Remember only success, and not if the first
 * mapping failed for this range or this moment alone.
 */
static int register_export(const struct pier_part_request *segment,
			   struct pier_mr_part *ret_part)
{
	const struct pier_device *device = segment->region->pd->device;
	const struct pier_buffer *buffer = segment->range.buffer;
	bool asked = segment->mapping != PIER_MAPPING_AUTO;
	bool chosen = !asked && buffer->backend->mappings, lasting;
	enum pier_mapping mapping = asked ? segment->mapping : PIER_MAPPING_DEFAULT;
	struct pier_pair *pair = NULL;
	int error;

	if (buffer->facts.no_export[0])
		return pier_fail(EOPNOTSUPP, "%s", buffer->facts.no_export);
	if (!device->dmabuf)
		return pier_fail_no_dmabuf(device);
	if (chosen) {
		pair = pier_find_pair(segment->region->pd->device, buffer->backend->name,
				      buffer->facts.unit);
		mapping = pair ? atomic_load(&pair->mapping) : PIER_MAPPING_AUTO;
		if (mapping == PIER_MAPPING_AUTO)
			mapping = pier_choose_mapping(PIER_SYSFS, segment);
	}
	error = register_with_mapping(segment, mapping, ret_part);
	/*
	 * Data Direct may have refused this range alone, and a BAR that is used up has
	 * room again later: the next registration begins with the first mapping.
	 */
	lasting = !error || (error != -ENOMEM && !is_inside_page(segment));
	if (error && chosen && may_help(segment, error))
		error = try_other_mapping(segment, mapping, error, ret_part);
	if (!error && pair && lasting)
		atomic_store(&pair->mapping, ret_part->mapping);
	if (!error && !asked && !chosen)
		ret_part->mapping = PIER_MAPPING_AUTO;
	if (error && !is_unrelated_error(error) && buffer->facts.remedy[0])
		error = pier_fail(-error, "%s; %s", pier_error_message(),
				  buffer->facts.remedy);
	return error;
}

/*
 * The paths to a buffer's memory. The first is the one that the memory is made for, a
 * dma-buf or host memory; peer memory follows, and a bounce buffer comes last.
 */

enum {
	CAUSES_SIZE = 768,
};

bool pier_wants_dmabuf(const struct pier_pd *pd, const struct pier_buffer *buffer)
{
	if (buffer->backend->dmabuf)
		return !buffer->memory.cpu || !buffer->facts.host;
	return buffer->backend->memfd && pd->device->provider->takes_memfd;
}

int pier_reach_buffer(const struct pier_buffer *buffer, uint64_t offset, void **ret_addr)
{
	if (!buffer->memory.cpu)
		return pier_fail(EOPNOTSUPP,
				 "memory of the backend %s cannot be registered as host "
				 "memory: the CPU does not reach it",
				 buffer->backend->name);
	*ret_addr = (char *)buffer->memory.cpu +
		    (buffer->address + offset - buffer->memory.address);
	return 0;
}

/*
 * Memory of the region's own NIC that is registered as such. A region with a requested
 * key or a TPH hint is registered by the memory's dma-buf.
 */
static struct ibv_dm *find_dm(const struct pier_part_request *segment)
{
	const struct pier_mr *region = segment->region;

	if (region->requested_key || region->tph != PIER_TPH_NONE)
		return NULL;
	return pier_nic_memory_on(region->pd->device, segment->range.buffer);
}

/* Such a region is zero-based: its part has addresses of its own. */
static int register_dm(const struct pier_part_request *segment, struct ibv_dm *dm,
		       struct pier_mr_part *ret_part)
{
	const struct pier_mr *region = segment->region;
	const struct pier_buffer *buffer = segment->range.buffer;
	uint64_t offset = buffer->address - buffer->memory.address +
			  segment->range.offset;
	uint64_t length = segment->range.length;
	struct ibv_mr *mr;

	pier_clear_error();
	errno = 0;
	mr = region->pd->device->provider->reg_dm_mr(region->pd->pd, dm, offset, length,
						     region->access |
							     IBV_ACCESS_ZERO_BASED);
	if (!mr)
		return pier_fail_registration(pier_last_errno(), region->pd, length,
					      PIER_PATH_NIC);
	set_part(segment, mr, PIER_PATH_NIC, ret_part);
	ret_part->iova = 0;
	return 0;
}

static int register_host(const struct pier_part_request *segment,
			 struct pier_mr_part *ret_part)
{
	void *addr = NULL;
	int error = pier_reach_buffer(segment->range.buffer, segment->range.offset,
				      &addr);

	return error ? error : register_pages(segment, addr, PIER_PATH_HOST, ret_part);
}

static int register_peermem(const struct pier_part_request *segment,
			    struct pier_mr_part *ret_part)
{
	const struct pier_buffer *buffer = segment->range.buffer;
	const struct pier_device *device = segment->region->pd->device;
	uint64_t address = buffer->address + segment->range.offset;
	struct pier_pair *pair;
	int result = 0;

	if (device->switches.peermem == PIER_SWITCH_OFF)
		return pier_fail(EOPNOTSUPP, "PIER_PEERMEM=off switched it off");
	pair = pier_canary_pair(segment);
	result = pier_check_canary(pair, PIER_MAPPING_AUTO);
	if (result != 0)
		return result;
	pier_clear_error();
	if (buffer->backend->expose)
		result = buffer->backend->expose(&buffer->memory);
	if (result != 0)
		return pier_fail_because(pier_backend_errno(result),
					 "preparing memory of %s for a NIC",
					 buffer->backend->name);
	result = register_pages(segment, (void *)(uintptr_t)address, PIER_PATH_PEERMEM,
				ret_part);
	if (result != 0)
		return result;
	result = pier_send_canary(segment, pair, PIER_MAPPING_AUTO, register_peermem);
	if (result != 0)
		device->provider->dereg_mr(ret_part->mr);
	return result;
}

/* Register the bounce buffer in place of the memory. */
static int register_bounce(const struct pier_part_request *segment,
			   struct pier_mr_part *ret_part)
{
	struct pier_bounce *bounce;
	struct pier_part_request shadow;
	int error = pier_bounce_get(segment, &bounce);

	if (error)
		return error;
	shadow = pier_bounce_segment(bounce, segment);
	error = pier_register_segment(&shadow, ret_part);
	if (error) {
		pier_bounce_put(bounce);
		return error;
	}
	free(ret_part->reason);
	ret_part->reason = NULL;
	ret_part->mapping = PIER_MAPPING_AUTO;
	ret_part->path = PIER_PATH_BOUNCE;
	ret_part->bounce = bounce;
	ret_part->bounce_offset = segment->range.offset - bounce->offset;
	return 0;
}

/* The kinds of memory that a fallback is for. */
enum reach {
	REACH_DEVICE,	/* memory that the CPU does not reach */
	REACH_HOST,	/* memory that the CPU reaches */
	REACH_EXPORTED, /* memory that the CPU reaches and that has dma-bufs */
	REACH_ANY,
};

/* The paths to fall back to, in this order. */
static const struct fallback {
	enum pier_policy policy; /* the strictest that accepts it */
	enum reach reach;
	const char *name;
	pier_path_function *take;
} fallbacks[] = {
	{ PIER_POLICY_PEERMEM, REACH_DEVICE, "peer memory", register_peermem },
	{ PIER_POLICY_ANY, REACH_HOST, "host memory", register_host },
	{ PIER_POLICY_ANY, REACH_EXPORTED, "a dma-buf", register_export },
	{ PIER_POLICY_BOUNCE, REACH_ANY, "a bounce buffer", register_bounce },
};

/* dmabuf: a dma-buf was tried first */
static bool is_possible(const struct fallback *fallback,
			const struct pier_part_request *segment, bool dmabuf)
{
	const struct pier_buffer *buffer = segment->range.buffer;

	if (segment->policy < fallback->policy)
		return false;
	switch (fallback->reach) {
	case REACH_DEVICE:
		return !buffer->memory.cpu && !buffer->facts.moves;
	case REACH_HOST:
		return buffer->memory.cpu && dmabuf;
	case REACH_EXPORTED:
		return buffer->memory.cpu && !dmabuf && buffer->backend->dmabuf;
	default:
		return true;
	}
}

static int take_fallback(const struct fallback *fallback,
			 const struct pier_part_request *segment, const char *causes,
			 struct pier_mr_part *ret_part)
{
	char *reason = strdup(causes);
	int error;

	if (!reason)
		return pier_fail(ENOMEM, "no memory for the reason for a path");
	error = fallback->take(segment, ret_part);
	if (error) {
		free(reason);
		return error;
	}
	ret_part->reason = reason;
	pier_warning("%s memory is registered as %s, not %s",
		     segment->range.buffer->backend->name, fallback->name, causes);
	return 0;
}

/* Fall back after the first path failed with `error` and a sentence. */
static int fall_back(const struct pier_part_request *segment, bool dmabuf, int error,
		     struct pier_mr_part *ret_part)
{
	char causes[CAUSES_SIZE] = "";
	const char *name = dmabuf ? "a dma-buf" : "host memory";
	bool tried = false;
	size_t used;

	for (size_t i = 0; i < sizeof(fallbacks) / sizeof(fallbacks[0]); i++) {
		if (!is_possible(&fallbacks[i], segment, dmabuf))
			continue;
		used = strlen(causes);
		snprintf(causes + used, CAUSES_SIZE - used, "%sas %s: %s",
			 used ? "; " : "", name, pier_error_message());
		error = take_fallback(&fallbacks[i], segment, causes, ret_part);
		if (!error)
			return 0;
		name = fallbacks[i].name;
		tried = true;
	}
	if (!tried && error == -EXDEV)
		return pier_fail(EOPNOTSUPP, "%s; it cannot be registered under one key",
				 pier_error_message());
	if (!tried)
		return error;
	return pier_fail(-error, "%s; before that, %s", pier_error_message(), causes);
}

int pier_register_segment(const struct pier_part_request *segment,
			  struct pier_mr_part *ret_part)
{
	const struct pier_mr_range *range = &segment->range;
	struct ibv_dm *dm;
	bool dmabuf, only;
	int error;

	if (range->source == PIER_MR_HOST)
		return register_pages(segment, range->addr, PIER_PATH_HOST, ret_part);
	if (range->source == PIER_MR_DMABUF)
		return register_fd(segment, range->fd, range->offset, ret_part);
	/* Two paths to the same bytes would overwrite each other's writes. */
	if (segment->region->base && pier_base_has_bounce(segment))
		return register_bounce(segment, ret_part);
	dm = find_dm(segment);
	dmabuf = pier_wants_dmabuf(segment->region->pd, range->buffer);
	/* The program's own memory has no other path. */
	only = !dmabuf && range->buffer->memory.cpu && !range->buffer->backend->dmabuf;
	if (dm)
		error = register_dm(segment, dm, ret_part);
	else
		error = dmabuf ? register_export(segment, ret_part)
			       : register_host(segment, ret_part);
	if (!error || only || (error == -EXDEV && pier_part_request_splits(segment)))
		return error;
	return fall_back(segment, dmabuf, error, ret_part);
}
