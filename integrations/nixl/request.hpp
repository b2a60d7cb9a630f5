/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_REQUEST_HPP
#define PIER_NIXL_REQUEST_HPP

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "clock.hpp"
#include "memory.hpp"
#include "nixl_abi.hpp"

namespace pier_nixl
{

class connection;

/* A transfer of NIXL: a list of ranges, moved in one direction. */
class request : public nixlBackendReqH
{
      public:
	/* A descriptor: bytes that are contiguous at both ends. */
	struct span {
		const local_memory *local;
		const remote_memory *remote;
		uint64_t local_offset, remote_offset, length;
	};

	/*
	 * Fill in the spans. Returns NIXL_SUCCESS, or NIXL_ERR_INVALID_PARAM if the
	 * lists do not match, a descriptor is outside its memory, or the remote memory is
	 * that of several processes, or of different numbers of devices.
	 */
	nixl_status_t prepare(nixl_xfer_op_t kind, const nixl_meta_dlist_t &local,
			      const nixl_meta_dlist_t &remote);

	bool uses(const local_memory *memory) const;
	/* Whether memory of this end was deregistered. */
	bool has_gone() const;

	/* Constant between prepare() calls. */
	nixl_xfer_op_t operation = NIXL_WRITE;
	std::vector<span> spans;
	/* The memories of the spans, which NIXL may give up at any time. */
	std::vector<std::shared_ptr<const local_memory>> locals;
	std::vector<std::shared_ptr<const remote_memory>> remotes;
	/* Of the remote memory; "": the lists are empty. No other process is sent any. */
	std::string process;
	size_t peer_devices = 0; /* with which each remote memory is registered */
	uint64_t bytes = 0;
	/* The device memory of this end that it reads into: one of each flush_group. */
	std::vector<const local_memory *> to_flush;

	/* The connection on which it was posted. */
	std::shared_ptr<connection> on;
	/* NIXL_IN_PROG: `on` works on it, and the fields below belong to its lock. */
	std::atomic<nixl_status_t> status{ NIXL_ERR_NOT_POSTED };

	size_t next = 0;	/* the span that is posted next */
	uint64_t offset = 0;	/* in that span, in bytes */
	uint32_t in_flight = 0; /* pieces that were posted and have not completed */
	bool is_released = false; /* nobody waits for it: `on` deletes it */
	uint64_t devices = 0; /* of this end, of pieces that completed, as in flush_set */
	flush_set written;    /* of the peer */
	bool has_notice = false;
	bool notice_queued = false, notice_sent = false;
	std::string message; /* of the notice */
	time_point started;

	bool is_posted() const
	{
		return next == spans.size();
	}
};

} // namespace pier_nixl

#endif
