/* SPDX-License-Identifier: BSD-3-Clause */
#include "engine.hpp"

#include <cerrno>
#include <cinttypes>
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
				return greet(std::move(socket), hello);
			});
	return error;
}

/*
 * The driver sends what was accepted. All channels end before their devices, and no
 * thread is left that uses them.
 */
engine::~engine()
{
	auto end = clock_now() + connection::finish_time;

	for (const auto &one : links)
		one->close_later(end);
	for (const auto &one : links)
		one->finish(nullptr, end);
	entrance.stop_thread();
	progress.stop_thread();
	for (const auto &one : visitors)
		one->close_now();
	for (const auto &group : memories)
		for (const auto &one : group.second.members)
			one->deregister_all();
	if (lost.rails || lost.notices)
		report_line("agent \"%s\" has ended: %" PRIu64
			    " rails were lost, %" PRIu64
			    " notifications were not delivered",
			    localAgent.c_str(), lost.rails.load(), lost.notices.load());
}

/* Forget the ends that are over, and keep a new one. */
template <class T>
static void keep_end(std::vector<std::shared_ptr<T>> &ends,
		     const std::shared_ptr<T> &made)
{
	std::erase_if(ends, [](const auto &one) { return one->over.load(); });
	ends.push_back(made);
}

/* A caller that becomes a visitor. */
class engine::greeting : public meeting
{
      public:
	greeting(engine &by, owned_fd &&from, const std::string &called)
		: host(by), where(name_peer(from.fd)), socket(std::move(from)),
		  agent(called)
	{
	}
	int begin(const agent_hello &hello)
	{
		return maker.begin(host.devices, hello.description,
				   std::min(host.chosen.rails, hello.rails),
				   host.chosen.connect_timeout, false, socket.fd);
	}
	bool step() override
	{
		int result = maker.step();

		if (result == 1)
			result = receive();
		if (result < 0)
			report_failure(described("cannot connect").c_str());
		return result == 0;
	}
	void add_fds(std::vector<struct pollfd> &polled) const override
	{
		polled.insert(polled.end(), maker.fds, maker.fds + 2);
	}
	time_point due() const override
	{
		return maker.wake;
	}
	void leave() override
	{
		report_line("%s: another caller needs its place",
			    described("gave up").c_str());
	}
	std::string described(const char *step) const
	{
		return std::string(step) + " agent \"" + agent +
		       "\", which called from " + where;
	}

      private:
	engine &host;
	const std::string where;
	owned_fd socket;
	const std::string agent;
	channel_maker maker;

	/* Returns 1 or a negative errno. */
	int receive()
	{
		auto made = std::make_shared<visitor>(host.messages, std::move(socket),
						      agent);
		int error = made->welcome(std::move(maker.ends), host.devices);

		if (error)
			return error;
		/* This prints its own line. */
		if (host.progress.add_end(made))
			return 1;
		std::lock_guard<std::mutex> guard(host.lock);

		keep_end(host.visitors, made);
		return 1;
	}
};

std::unique_ptr<meeting> engine::greet(owned_fd &&socket, const agent_hello &hello)
{
	auto made = std::make_unique<greeting>(*this, std::move(socket), hello.agent);

	if (!made->begin(hello))
		return made;
	report_failure(made->described("cannot connect").c_str());
	return nullptr;
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
	auto made = std::make_shared<local_memory>(mem, type);
	int error;

	if (type != DRAM_SEG && type != VRAM_SEG)
		return NIXL_ERR_NOT_SUPPORTED;
	error = made->register_all(devices, chosen.policy, mem.metaInfo);
	if (error)
		return status_of(error);
	std::lock_guard<std::mutex> guard(lock);

	auto [group, is_new] = memories.try_emplace(made->flush_group);

	if (is_new)
		group->second.number = (uint8_t)(memories.size() - 1);
	group->second.members.insert(made);
	made->flush_number = group->second.number;
	out = new local_share(made, true);
	return NIXL_SUCCESS;
}

/*
 * The NIC does not touch the memory afterwards: requests in progress are waited for. Only
 * peers can still access memory whose registration a cache keeps. NIXL does not ask for
 * the status, and never calls again, so memory that cannot be deregistered stays
 * registered until the agent ends.
 */
nixl_status_t engine::deregisterMem(nixlBackendMD *meta)
{
	std::unique_ptr<local_share> share(static_cast<local_share *>(meta));
	const std::shared_ptr<local_memory> memory = share->memory;
	auto end = clock_now() + connection::finish_time;
	std::vector<std::shared_ptr<connection>> current;
	int error;

	memory->is_gone = true;
	{
		std::lock_guard<std::mutex> guard(lock);

		current = links;
	}
	for (const auto &one : current)
		one->finish(memory.get(), end);
	std::lock_guard<std::mutex> guard(lock);

	error = memory->deregister_all();
	if (error)
		report_failure("memory stays registered until the agent ends");
	if (!memory->regions.empty())
		return status_of(error);
	memories[memory->flush_group].members.erase(memory);
	return status_of(error);
}

nixl_status_t engine::getPublicData(const nixlBackendMD *meta, std::string &bytes) const
{
	int error = static_cast<const local_share *>(meta)->memory->write(own.unix_name,
									  bytes);

	if (error)
		report_failure("memory cannot be described");
	return status_of(error);
}

nixl_status_t engine::loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &type,
				   const std::string &agent, nixlBackendMD *&output)
{
	auto made = std::make_shared<remote_memory>(input.addr, input.len, type);

	if (!made->read(input.metaInfo)) {
		report_line("the metadata of agent \"%s\" holds no memory of pier",
			    agent.c_str());
		return NIXL_ERR_MISMATCH;
	}
	output = new remote_share(made, false);
	return NIXL_SUCCESS;
}

nixl_status_t engine::loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output)
{
	const auto &memory = static_cast<local_share *>(input)->memory;
	nixlBlobDesc desc;
	nixl_status_t status;

	desc.addr = memory->addr;
	desc.len = memory->length;
	desc.devId = 0;
	status = getPublicData(input, desc.metaInfo);
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
	known->rests_until = time_point();
	return NIXL_SUCCESS;
}

/* The agent connects to itself when the backend is created; local transfers are rare. */
nixl_status_t engine::connect(const std::string &agent)
{
	std::shared_ptr<connection> link;

	return agent == localAgent ? NIXL_SUCCESS : find_link(agent, nullptr, link);
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
		known->link->close_later(clock_now() + connection::finish_time);
	return NIXL_SUCCESS;
}

/* A call of an agent, whose connection keeps what is posted meanwhile. */
class engine::call : public meeting
{
      public:
	call(const engine &by, const std::shared_ptr<peer> &of,
	     const std::shared_ptr<connection> &made, const std::string &called)
		: host(by), callee(of), link(made), agent(called),
		  rails(std::min(host.chosen.rails, of->address.rails))
	{
		agent_hello hello = { of->address.token, host.localAgent, rails,
				      host.devices.description };

		dial.begin(of->address, hello.write(),
			   (int)host.chosen.connect_timeout * 1000);
	}
	bool step() override
	{
		int result;

		/* The peer was removed. */
		if (link->over)
			return false;
		result = go_on();
		if (result < 0)
			fail(result);
		return result == 0;
	}
	void add_fds(std::vector<struct pollfd> &polled) const override
	{
		if (has_answered)
			polled.insert(polled.end(), maker.fds, maker.fds + 2);
		else
			dial.add_fds(polled);
	}
	time_point due() const override
	{
		return has_answered ? maker.wake : dial.wake;
	}

      private:
	const engine &host;
	const std::shared_ptr<peer> callee;
	const std::shared_ptr<connection> link;
	const std::string agent;
	const uint32_t rails;
	dialing dial;
	bool has_answered = false;
	channel_maker maker;

	int go_on()
	{
		int result = 1;

		if (!has_answered) {
			result = dial.step();
			if (result != 1)
				return result;
			has_answered = true;
			result = maker.begin(host.devices, callee->address.description,
					     rails, host.chosen.connect_timeout, true,
					     dial.socket.fd);
			if (result)
				return result;
		}
		result = maker.step();
		return result == 1 ? link->begin(maker.ends, std::move(dial.socket),
						 callee->address, host.devices,
						 host.progress)
				   : result;
	}
	/* The peer is not called again for some time before anybody can call. */
	void fail(int error)
	{
		if (error == -ETIMEDOUT)
			callee->rests_until =
				clock_now() +
				std::chrono::seconds(host.chosen.connect_timeout);
		if (has_answered)
			report_failure(("cannot connect to agent \"" + agent + "\" at " +
					dial.where)
					       .c_str());
		else
			report_line("cannot reach agent \"%s\" at %s: %s",
				    agent.c_str(), dial.where.c_str(), strerror(-error));
		link->fail(status_of(error));
	}
};

/* Called with the lock of the peer held, which has no connection, or a broken one. */
int engine::make_link(const std::string &agent, const std::shared_ptr<peer> &of) const
{
	if (clock_now() < of->rests_until.load())
		return -ETIMEDOUT;
	of->link = std::make_shared<connection>(chosen, lost, agent);
	{
		std::lock_guard<std::mutex> guard(lock);

		keep_end(links, of->link);
	}
	entrance.add(std::make_unique<call>(*this, of, of->link, agent));
	return 0;
}

/* Return the connection to an agent. One that is broken is replaced. */
nixl_status_t engine::find_link(const std::string &agent, const request *of,
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

	if (of && !of->process.empty() && known->address.unix_name != of->process) {
		report_line(
			"agent \"%s\" has started again: the transfer was prepared for "
			"its former process, so prepare it again",
			agent.c_str());
		return NIXL_ERR_NOT_FOUND;
	}
	/* A rail's index in the address selects a region of the memory. */
	if (of && !of->remotes.empty() &&
	    of->peer_devices != known->address.devices.size()) {
		report_line("agent \"%s\" has %zu devices, but its memory is that of %zu",
			    agent.c_str(), known->address.devices.size(),
			    of->peer_devices);
		return NIXL_ERR_INVALID_PARAM;
	}
	if (!known->link || known->link->over) {
		int error = make_link(agent, known);

		if (error)
			return status_of(error);
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
		status = find_link(agent, made.get(), made->on);
	if (status == NIXL_SUCCESS)
		handle = made.release();
	return status;
}

/* As the head of a notification has it. */
static bool is_too_long(const std::string &message)
{
	if (message.size() <= PIER_NIXL_NOTICE_MAX)
		return false;
	report_line("a notification of %zu bytes is longer than %d", message.size(),
		    PIER_NIXL_NOTICE_MAX);
	return true;
}

nixl_status_t engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
			       const nixl_meta_dlist_t &, const std::string &agent,
			       nixlBackendReqH *&handle,
			       const nixl_opt_b_args_t *options) const
{
	auto *of = static_cast<request *>(handle);
	nixl_status_t status = NIXL_SUCCESS;

	if (options && options->hasNotif && is_too_long(options->notifMsg))
		status = NIXL_ERR_INVALID_PARAM;
	else if (!of->on->accepts_requests())
		status = find_link(agent, of, of->on);
	if (status != NIXL_SUCCESS)
		return of->status = status;
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

	if (of && of->status == NIXL_IN_PROG) {
		std::shared_ptr<connection> on = of->on;

		on->release(of);
	} else {
		delete of;
	}
	return NIXL_SUCCESS;
}

/*
 * A peer's notification names the groups of memory, and the devices, that it used.
 * Returns false if the bytes are not visible to the device.
 */
bool engine::flush_devices(const flush_set &written)
{
	bool is_visible = true;

	if (!written.groups)
		return true;
	std::lock_guard<std::mutex> guard(lock);

	for (const auto &[name, group] : memories)
		if (!name.empty() && !group.members.empty() &&
		    written.groups & flush_set::bit(group.number) &&
		    (*group.members.begin())->flush(written.devices))
			is_visible = false;
	return is_visible;
}

/*
 * One flush is for all notifications. If it fails, each is delivered whose own bytes are
 * visible; the others would say that bytes are there which the device does not see.
 */
void engine::deliver(std::vector<arrival> &&arrived, notif_list_t &list)
{
	flush_set written;

	for (const arrival &one : arrived) {
		written.groups |= one.written.groups;
		written.devices |= one.written.devices;
	}
	bool is_visible = flush_devices(written);

	for (arrival &one : arrived) {
		if (is_visible || flush_devices(one.written)) {
			list.emplace_back(std::move(one.agent), std::move(one.message));
			continue;
		}
		lost.notices++;
		report_failure(("agent \"" + one.agent +
				"\": a notification is not delivered, because its bytes are "
				"not visible to the device")
				       .c_str());
	}
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
	deliver(messages.take_all(), list);
	return NIXL_SUCCESS;
}

nixl_status_t engine::genNotif(const std::string &agent, const std::string &message) const
{
	std::shared_ptr<connection> link;
	nixl_status_t status = is_too_long(message) ? NIXL_ERR_INVALID_PARAM
						    : find_link(agent, nullptr, link);

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
