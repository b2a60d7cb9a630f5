/* SPDX-License-Identifier: BSD-3-Clause */
#include "engine.hpp"

#include <algorithm>
#include <cstdlib>

#include "report.hpp"

namespace pier_nixl
{

engine::engine(const nixlBackendInitParams *params) : nixlBackendEngine(params)
{
	initErr = read_settings(*params->customParams, chosen) || start();
}

/*
 * soft0 uses TCP only if the user says so. Other devices have peers on other hosts, and
 * these can only call by TCP.
 */
int engine::start()
{
	bool has_tcp;
	int error;

	error = devices.open_all(chosen);
	if (error) {
		report_failure(
			"no device can be used; PIER_DEVICE=soft0 selects the NIC in "
			"software");
		return error;
	}
	has_tcp = devices.has_hardware() || secure_getenv("PIER_SOFT_ADDRESS");
	own.rails = chosen.rails;
	own.description = devices.description;
	for (const device_list::device &one : devices.all)
		own.devices.push_back(one.name);
	error = entrance.open_sockets(chosen.address, has_tcp, own);
	if (!error)
		error = progress.start_thread();
	if (!error)
		error = entrance.start_thread(
			[this](owned_fd &&socket, const agent_hello &hello) {
				greet(std::move(socket), hello);
			});
	return error;
}

/* All channels end before their devices, and no thread is left that uses them. */
engine::~engine()
{
	entrance.stop_thread();
	progress.stop_thread();
	for (auto &one : peers)
		if (one.second->link)
			one.second->link->close_with(NIXL_ERR_CANCELED);
	for (const auto &one : visitors)
		one->close_now();
	for (local_memory *one : memories)
		delete one;
}

void engine::greet(owned_fd &&socket, const agent_hello &hello)
{
	auto made = std::make_shared<visitor>(messages, std::move(socket));

	if (made->welcome(hello, chosen.rails, devices))
		return;
	std::lock_guard<std::mutex> guard(lock);

	visitors.erase(std::remove_if(visitors.begin(), visitors.end(),
				      [](const std::shared_ptr<visitor> &one) {
					      return one->over.load();
				      }),
		       visitors.end());
	visitors.push_back(made);
	progress.add_end(made);
}

bool engine::supportsRemote() const
{
	return true;
}

bool engine::supportsLocal() const
{
	return true;
}

bool engine::supportsNotif() const
{
	return true;
}

nixl_mem_list_t engine::getSupportedMems() const
{
	return { DRAM_SEG, VRAM_SEG };
}

nixl_status_t engine::registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type,
				  nixlBackendMD *&out)
{
	auto made = std::make_unique<local_memory>(mem, type);
	int error;

	if (type != DRAM_SEG && type != VRAM_SEG)
		return NIXL_ERR_NOT_SUPPORTED;
	error = made->register_all(devices, chosen.policy, mem.metaInfo);
	if (error)
		return status_of(error);
	std::lock_guard<std::mutex> guard(lock);

	memories.insert(made.get());
	out = made.release();
	return NIXL_SUCCESS;
}

/* Memory of a request in progress stays registered, and the agent may try again. */
nixl_status_t engine::deregisterMem(nixlBackendMD *meta)
{
	auto *memory = static_cast<local_memory *>(meta);
	std::lock_guard<std::mutex> guard(lock);
	int error = memory->deregister_all();

	if (error) {
		report_failure("memory cannot be deregistered");
		return status_of(error);
	}
	memories.erase(memory);
	delete memory;
	return NIXL_SUCCESS;
}

nixl_status_t engine::getPublicData(const nixlBackendMD *meta, std::string &bytes) const
{
	int error = static_cast<const local_memory *>(meta)->write(bytes);

	if (error)
		report_failure("memory cannot be described");
	return status_of(error);
}

nixl_status_t engine::loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type,
				   const std::string &agent, nixlBackendMD *&output)
{
	auto made = std::make_unique<remote_memory>(input.addr, input.len, type);

	if (!made->read(input.metaInfo)) {
		report_line("the metadata of agent \"%s\" holds no memory of pier",
			    agent.c_str());
		return NIXL_ERR_MISMATCH;
	}
	output = made.release();
	return NIXL_SUCCESS;
}

nixl_status_t engine::loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output)
{
	auto *memory = static_cast<local_memory *>(input);
	nixlBlobDesc desc;
	nixl_status_t status;

	desc.addr = memory->addr;
	desc.len = memory->length;
	desc.devId = 0;
	status = getPublicData(memory, desc.metaInfo);
	return status ? status : loadRemoteMD(desc, memory->type, localAgent, output);
}

nixl_status_t engine::unloadMD(nixlBackendMD *input)
{
	delete input;
	return NIXL_SUCCESS;
}

nixl_status_t engine::getConnInfo(std::string &bytes) const
{
	bytes = own.write();
	return NIXL_SUCCESS;
}

/* An agent that was started again has another token, and its old connection is of no use.
 */
nixl_status_t engine::loadRemoteConnInfo(const std::string &agent,
					 const std::string &bytes)
{
	auto made = std::make_shared<peer>();

	if (!made->address.read(bytes)) {
		report_line("the metadata of agent \"%s\" holds no address of pier",
			    agent.c_str());
		return NIXL_ERR_MISMATCH;
	}
	std::lock_guard<std::mutex> guard(lock);
	std::shared_ptr<peer> &known = peers[agent];

	if (!known || known->address.token != made->address.token)
		known = made;
	return NIXL_SUCCESS;
}

/* The agent connects to itself when the backend is created; local transfers are rare. */
nixl_status_t engine::connect(const std::string &agent)
{
	std::shared_ptr<connection> link;

	return agent == localAgent ? NIXL_SUCCESS : find_link(agent, link);
}

nixl_status_t engine::disconnect(const std::string &agent)
{
	std::shared_ptr<peer> known;
	{
		std::lock_guard<std::mutex> guard(lock);
		auto found = peers.find(agent);

		if (found == peers.end())
			return NIXL_ERR_NOT_FOUND;
		known = found->second;
		peers.erase(found);
	}
	std::lock_guard<std::mutex> guard(known->lock);

	if (known->link)
		known->link->close_with(NIXL_ERR_REMOTE_DISCONNECT);
	return NIXL_SUCCESS;
}

/* Return the connection to an agent. One that is broken is replaced. */
nixl_status_t engine::find_link(const std::string &agent,
				std::shared_ptr<connection> &ret_link) const
{
	std::shared_ptr<peer> known;
	{
		std::lock_guard<std::mutex> guard(lock);
		std::shared_ptr<peer> &entry = peers[agent];

		if (!entry && agent == localAgent) {
			entry = std::make_shared<peer>();
			entry->address = own;
		}
		known = entry;
		if (!known) {
			peers.erase(agent);
			return NIXL_ERR_NOT_FOUND;
		}
	}
	std::lock_guard<std::mutex> guard(known->lock);

	if (!known->link || known->link->over) {
		auto made = std::make_shared<connection>();
		int error = made->call_agent(known->address, localAgent, chosen.rails,
					     devices);

		if (!error)
			error = progress.add_end(made);
		if (error)
			return status_of(error);
		known->link = made;
	}
	ret_link = known->link;
	return NIXL_SUCCESS;
}

nixl_status_t engine::prepXfer(const nixl_xfer_op_t &operation,
			       const nixl_meta_dlist_t &local,
			       const nixl_meta_dlist_t &remote, const std::string &agent,
			       nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const
{
	auto made = std::make_unique<request>();
	nixl_status_t status = made->prepare(operation, local, remote);

	if (status == NIXL_SUCCESS)
		status = find_link(agent, made->on);
	if (status == NIXL_SUCCESS)
		handle = made.release();
	return status;
}

nixl_status_t engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
			       const nixl_meta_dlist_t &, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *options) const
{
	auto *of = static_cast<request *>(handle);
	nixl_status_t status = NIXL_SUCCESS;

	if (of->on->over)
		status = find_link(agent, of->on);
	if (status != NIXL_SUCCESS)
		return status;
	return of->on->post(*of,
			    options && options->hasNotif ? &options->notifMsg : nullptr);
}

nixl_status_t engine::checkXfer(nixlBackendReqH *handle) const
{
	auto *of = static_cast<request *>(handle);

	return of->on->check(*of);
}

nixl_status_t engine::releaseReqH(nixlBackendReqH *handle) const
{
	auto *of = static_cast<request *>(handle);

	if (of && of->status == NIXL_IN_PROG)
		of->on->cancel(*of);
	delete of;
	return NIXL_SUCCESS;
}

/*
 * The writer's notification says that it wrote to memory of a device, not where: one
 * byte of each region flushes what arrived through its NIC.
 */
void engine::flush_devices()
{
	std::lock_guard<std::mutex> guard(lock);

	for (local_memory *one : memories)
		for (const local_memory::region &region : one->regions)
			if (one->type == VRAM_SEG &&
			    pier_mr_sync_for_device(region.mr, 0, 1))
				report_failure("bytes arrived but are not visible to the "
					       "device");
}

nixl_status_t engine::getNotifs(notif_list_t &list)
{
	std::vector<std::shared_ptr<visitor>> current;
	{
		std::lock_guard<std::mutex> guard(lock);

		current = visitors;
	}
	for (const auto &one : current) {
		std::unique_lock<std::mutex> guard(one->lock, std::defer_lock);

		one->polls++;
		if (!one->over && guard.try_lock() && !one->over)
			one->make_progress();
	}
	if (messages.take_all(list))
		flush_devices();
	return NIXL_SUCCESS;
}

nixl_status_t engine::genNotif(const std::string &agent, const std::string &message) const
{
	std::shared_ptr<connection> link;
	nixl_status_t status = find_link(agent, link);

	return status ? status : link->notify(message);
}

nixl_status_t engine::estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
				       const nixl_meta_dlist_t &, const std::string &,
				       nixlBackendReqH *const &handle,
				       std::chrono::microseconds &duration,
				       std::chrono::microseconds &margin,
				       nixl_cost_t &method, const nixl_opt_args_t *) const
{
	auto *of = static_cast<const request *>(handle);

	duration = std::chrono::microseconds(of->on->estimate_us(of->bytes));
	margin = duration / 2;
	method = nixl_cost_t::ANALYTICAL_BACKEND;
	return NIXL_SUCCESS;
}

} // namespace pier_nixl
