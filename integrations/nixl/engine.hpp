/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_ENGINE_HPP
#define PIER_NIXL_ENGINE_HPP

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "connection.hpp"
#include "door.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include "nixl_abi.hpp"
#include "visitor.hpp"

namespace pier_nixl
{

/*
 * The backend of one agent. Each virtual function is described in NIXL's
 * backend_engine.h.
 *
 * Threads: any thread may call any function, whatever the agent's thread mode is; a
 * request belongs to one thread at a time.
 */
class engine : public nixlBackendEngine
{
      public:
	explicit engine(const nixlBackendInitParams *params);
	~engine() override;

	bool supportsRemote() const override;
	bool supportsLocal() const override;
	bool supportsNotif() const override;
	nixl_mem_list_t getSupportedMems() const override;
	nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type,
				  nixlBackendMD *&out) override;
	nixl_status_t deregisterMem(nixlBackendMD *meta) override;
	nixl_status_t connect(const std::string &agent) override;
	nixl_status_t disconnect(const std::string &agent) override;
	nixl_status_t unloadMD(nixlBackendMD *input) override;
	nixl_status_t prepXfer(const nixl_xfer_op_t &operation,
			       const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *options) const override;
	nixl_status_t postXfer(const nixl_xfer_op_t &operation,
			       const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *options) const override;
	nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;
	nixl_status_t getPublicData(const nixlBackendMD *meta,
				    std::string &bytes) const override;
	nixl_status_t getConnInfo(std::string &bytes) const override;
	nixl_status_t loadRemoteConnInfo(const std::string &agent,
					 const std::string &bytes) override;
	nixl_status_t loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type,
				   const std::string &agent,
				   nixlBackendMD *&output) override;
	nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) override;
	nixl_status_t getNotifs(notif_list_t &list) override;
	nixl_status_t genNotif(const std::string &agent,
			       const std::string &message) const override;
	nixl_status_t estimateXferCost(
		const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
		const nixl_meta_dlist_t &remote, const std::string &agent,
		nixlBackendReqH *const &handle, std::chrono::microseconds &duration,
		std::chrono::microseconds &margin, nixl_cost_t &method,
		const nixl_opt_args_t *options) const override;

      private:
	/* An agent whose metadata was loaded. */
	struct peer {
		std::mutex lock; /* guards `link` */
		agent_address address;
		std::shared_ptr<connection> link;
		/* It did not answer, and is not called again before this time. */
		std::atomic<time_point> rests_until{};
	};

	struct memory_group {
		uint8_t number;
		std::set<std::shared_ptr<local_memory>> members;
	};

	settings chosen;
	device_list devices; /* outlives all that follows */
	agent_address own;
	inbox messages;
	mutable losses lost;
	mutable std::mutex lock; /* guards the following four */
	mutable std::map<std::string, std::shared_ptr<peer>> peers;
	/* All connections that this agent made, also those of peers that were removed. */
	mutable std::vector<std::shared_ptr<connection>> links;
	std::vector<std::shared_ptr<visitor>> visitors;
	/* By their flush_group; "" holds what needs no flush. Groups stay. */
	std::map<std::string, memory_group> memories;
	mutable driver progress;
	mutable door entrance;

	class greeting;
	class call;

	int start();
	std::unique_ptr<meeting> greet(owned_fd &&socket, const agent_hello &hello);
	/* of  that the peer must suit; NULL: any peer does */
	nixl_status_t find_link(const std::string &agent, const request *of,
				std::shared_ptr<connection> &ret_link) const;
	int make_link(const std::string &agent, const std::shared_ptr<peer> &of) const;
	bool flush_devices(const flush_set &written);
	void deliver(std::vector<arrival> &&arrived, notif_list_t &list);
};

} // namespace pier_nixl

#endif
