/* SPDX-License-Identifier: BSD-3-Clause */
#include "request.hpp"

#include <algorithm>

#include "report.hpp"

namespace pier_nixl
{

static bool is_inside(uint64_t addr, uint64_t length, const nixlMetaDesc &desc)
{
	return desc.addr >= addr && desc.len <= length &&
	       desc.addr - addr <= length - desc.len;
}

/* Neighbours in a list are usually in the same memory. */
template <class T>
static void keep(std::vector<std::shared_ptr<T>> &kept, const std::shared_ptr<T> &one)
{
	if (kept.empty() || kept.back() != one)
		kept.push_back(one);
}

static void keep_group(std::vector<const local_memory *> &kept, const local_memory *one)
{
	if (!one->flush_group.empty() &&
	    std::ranges::none_of(kept, [&](const local_memory *other) {
		    return other == one || other->flush_group == one->flush_group;
	    }))
		kept.push_back(one);
}

bool request::uses(const local_memory *memory) const
{
	return std::ranges::any_of(
		locals, [&](const auto &one) { return one.get() == memory; });
}

bool request::has_gone() const
{
	return std::ranges::any_of(
		locals, [](const auto &one) { return one->is_gone.load(); });
}

nixl_status_t request::prepare(nixl_xfer_op_t kind, const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote)
{
	int count = local.descCount();

	if (count != remote.descCount()) {
		report_line("%d local descriptors and %d remote ones", count,
			    remote.descCount());
		return NIXL_ERR_INVALID_PARAM;
	}
	operation = kind;
	spans.clear();
	spans.reserve((size_t)count);
	for (size_t i = 0; i < (size_t)count; i++) {
		const std::shared_ptr<const local_memory> mine =
			static_cast<const local_share *>(local[i].metadataP)->memory;
		const std::shared_ptr<const remote_memory> theirs =
			static_cast<const remote_share *>(remote[i].metadataP)->memory;

		keep(locals, mine);
		keep(remotes, theirs);
		if (i == 0) {
			process = theirs->process;
			peer_devices = theirs->regions.size();
		}
		if (theirs->regions.size() != peer_devices) {
			report_line("the remote descriptors are of different numbers of "
				    "devices");
			return NIXL_ERR_INVALID_PARAM;
		}
		if (theirs->process != process) {
			report_line("the remote descriptors are of several processes: the "
				    "peer has started again");
			return NIXL_ERR_INVALID_PARAM;
		}
		if (local[i].len != remote[i].len ||
		    !is_inside(mine->addr, mine->length, local[i]) ||
		    !is_inside(theirs->addr, theirs->length, remote[i])) {
			report_line("descriptor %zu: %zu bytes at %#llx and %zu bytes of "
				    "the peer at %#llx differ in length, or are outside "
				    "their registered memory",
				    i, local[i].len, (unsigned long long)local[i].addr,
				    remote[i].len, (unsigned long long)remote[i].addr);
			return NIXL_ERR_INVALID_PARAM;
		}
		if (kind == NIXL_READ)
			keep_group(to_flush, mine.get());
		else if (theirs->type == VRAM_SEG)
			written.groups |= flush_set::bit(theirs->flush_number);
		bytes += local[i].len;
		if (local[i].len > 0)
			spans.push_back({ mine.get(), theirs.get(),
					  local[i].addr - mine->addr,
					  remote[i].addr - theirs->addr, local[i].len });
	}
	return NIXL_SUCCESS;
}

} // namespace pier_nixl
