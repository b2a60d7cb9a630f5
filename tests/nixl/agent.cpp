/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <sched.h>

#include "bytes.hpp"

test_options options;

nixlBackendPlugin *test_load_plugin()
{
	using init_function = nixlBackendPlugin *(*)();
	const char *path = getenv("PIER_TEST_NIXL_PLUGIN");
	void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;

	if (!path)
		fail_msg("PIER_TEST_NIXL_PLUGIN does not name the plugin");
	if (!handle)
		fail_msg("%s", dlerror());
	return reinterpret_cast<init_function>(dlsym(handle, "nixl_plugin_init"))();
}

void test_until(const char *what, const std::function<bool()> &step)
{
	auto end = std::chrono::steady_clock::now() + std::chrono::seconds(TEST_SECONDS);

	while (!step()) {
		if (std::chrono::steady_clock::now() > end)
			fail_msg("no end within %d s: %s", TEST_SECONDS, what);
		sched_yield();
	}
}

std::string test_bytes(size_t length, unsigned seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	std::string bytes(length, 0);

	for (char &byte : bytes) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		byte = (char)(state >> 56);
	}
	return bytes;
}

test_memory::test_memory(size_t bytes) : length(bytes)
{
	if (options.backend == "host") {
		void *memory = nullptr;

		assert_int_equal(posix_memalign(&memory, 4096, bytes), 0);
		addr = (uint64_t)(uintptr_t)memory;
		fill(0);
		return;
	}
	assert_int_equal(pier_buffer_alloc(options.backend.c_str(), bytes, &buffer), 0);
	addr = pier_buffer_address(buffer);
	type = options.backend == "memfd" ? DRAM_SEG : VRAM_SEG;
	exported.fd = -1;
	/* The backends of GPUs are asked for the owner of the pointer. */
	if (options.backend != "memfd" && options.backend != "udmabuf")
		return;
	assert_int_equal(
		pier_dmabuf_export(buffer, 0, bytes, PIER_MAPPING_AUTO, &exported), 0);
	/* At -O3, gcc 12 warns wrongly of "text" + std::string (its bug 105651). */
	text = "dmabuf:";
	text += std::to_string(exported.fd);
	if (exported.offset)
		text.append("+").append(std::to_string(exported.offset));
}

test_memory::test_memory(const test_memory &whole, size_t offset, size_t bytes)
    : addr(whole.addr + offset), length(bytes), type(whole.type), is_part(true)
{
}

test_memory::~test_memory()
{
	if (is_part)
		return;
	if (!buffer) {
		free((void *)addr);
		return;
	}
	if (!text.empty())
		pier_dmabuf_close(&exported);
	assert_int_equal(pier_buffer_free(buffer), 0);
}

void test_memory::fill(uint8_t byte)
{
	put(0, std::string(length, (char)byte));
}

void test_memory::put(size_t offset, const std::string &bytes)
{
	if (buffer)
		assert_int_equal(
			pier_buffer_copy_to(buffer, offset, bytes.data(), bytes.size()),
			0);
	else
		memcpy((char *)addr + offset, bytes.data(), bytes.size());
}

std::string test_memory::get(size_t offset, size_t bytes)
{
	std::string copy(bytes, 0);

	if (buffer)
		assert_int_equal(pier_buffer_copy_from(buffer, offset, &copy[0], bytes),
				 0);
	else
		memcpy(&copy[0], (const char *)addr + offset, bytes);
	return copy;
}

static nixlBackendPlugin *plugin()
{
	static nixlBackendPlugin *const loaded = test_load_plugin();

	assert_non_null(loaded);
	return loaded;
}

test_agent::test_agent(const std::string &named, nixl_b_params_t parameters) : name(named)
{
	nixlBackendInitParams init;

	parameters.emplace("device", options.device);
	init.localAgent = name;
	init.type = "PIER";
	init.customParams = &parameters;
	engine = plugin()->create_engine(&init);
	assert_non_null(engine);
}

test_agent::~test_agent()
{
	while (!prepared.empty())
		release(prepared.front().handle);
	for (const theirs &one : remotes)
		assert_int_equal(engine->unloadMD(one.remote), NIXL_SUCCESS);
	while (!memories.empty())
		deregister_memory(*memories.front().memory);
	plugin()->destroy_engine(engine);
}

bool test_agent::register_memory(test_memory &memory)
{
	nixlBlobDesc desc;
	mine made = { &memory, nullptr, nullptr };

	desc.addr = memory.addr;
	desc.len = memory.length;
	desc.devId = 0;
	desc.metaInfo = memory.text;
	if (engine->registerMem(desc, memory.type, made.local))
		return false;
	assert_int_equal(engine->loadLocalMD(made.local, made.self), NIXL_SUCCESS);
	memories.push_back(made);
	return true;
}

void test_agent::deregister_memory(test_memory &memory)
{
	for (auto one = memories.begin(); one != memories.end(); ++one)
		if (one->memory == &memory) {
			assert_int_equal(engine->unloadMD(one->self), NIXL_SUCCESS);
			assert_int_equal(engine->deregisterMem(one->local), NIXL_SUCCESS);
			memories.erase(one);
			return;
		}
	fail_msg("memory that is not registered");
}

std::string test_agent::metadata()
{
	pier_nixl::byte_writer writer;
	std::string text;

	assert_int_equal(engine->getConnInfo(text), NIXL_SUCCESS);
	writer.put_string(name);
	writer.put_string(text);
	writer.put_number(memories.size(), 4);
	for (const mine &one : memories) {
		assert_int_equal(engine->getPublicData(one.local, text), NIXL_SUCCESS);
		writer.put_number(one.memory->addr, 8);
		writer.put_number(one.memory->length, 8);
		writer.put_number(one.memory->type, 4);
		writer.put_string(text);
	}
	return writer.out;
}

nixl_status_t test_agent::load(const std::string &bytes)
{
	pier_nixl::byte_reader reader(bytes);
	std::string agent = reader.string(), text = reader.string();
	nixl_status_t status = engine->loadRemoteConnInfo(agent, text);
	size_t count = reader.number(4);
	nixlBlobDesc desc;
	theirs made;

	for (size_t i = 0; status == NIXL_SUCCESS && i < count; i++) {
		desc.addr = reader.number(8);
		desc.len = reader.number(8);
		desc.devId = 0;
		made = { agent, desc.addr, desc.len, (nixl_mem_t)reader.number(4),
			 nullptr };
		desc.metaInfo = reader.string();
		status = engine->loadRemoteMD(desc, made.type, agent, made.remote);
		if (status == NIXL_SUCCESS)
			remotes.push_front(made);
	}
	return status;
}

void test_agent::forget(const std::string &peer)
{
	remotes.remove_if([&](const theirs &one) {
		if (one.agent == peer)
			assert_int_equal(engine->unloadMD(one.remote), NIXL_SUCCESS);
		return one.agent == peer;
	});
	assert_int_equal(engine->disconnect(peer), NIXL_SUCCESS);
}

void test_agent::meet(test_agent &other)
{
	assert_int_equal(load(other.metadata()), NIXL_SUCCESS);
	assert_int_equal(other.load(metadata()), NIXL_SUCCESS);
}

uint64_t test_agent::address_of(const std::string &peer) const
{
	for (const theirs &one : remotes)
		if (one.agent == peer)
			return one.addr;
	return 0;
}

static nixlMetaDesc make_desc(uint64_t addr, size_t length, nixlBackendMD *of)
{
	nixlMetaDesc desc;

	desc.addr = addr;
	desc.len = length;
	desc.devId = 0;
	desc.metadataP = of;
	return desc;
}

bool test_agent::add_descriptors(lists &to, const std::string &peer,
				 const test_range &range)
{
	nixlBackendMD *local = nullptr, *remote = nullptr;

	for (const mine &one : memories) {
		if (one.memory->addr <= range.local &&
		    range.local + range.length <= one.memory->addr + one.memory->length)
			local = one.local;
		if (peer == name && one.memory->addr <= range.remote &&
		    range.remote + range.length <= one.memory->addr + one.memory->length)
			remote = one.self;
	}
	for (const theirs &one : remotes)
		if (!remote && one.agent == peer && one.addr <= range.remote &&
		    range.remote + range.length <= one.addr + one.length)
			remote = one.remote;
	if (!local || !remote)
		return false;
	to.local.addDesc(make_desc(range.local, range.length, local));
	to.remote.addDesc(make_desc(range.remote, range.length, remote));
	return true;
}

nixlBackendReqH *test_agent::prepare(nixl_xfer_op_t kind, const std::string &peer,
				     const std::vector<test_range> &ranges,
				     nixl_status_t expected)
{
	nixl_mem_t type = memories.empty() ? DRAM_SEG : memories.front().memory->type;

	prepared.push_back(
		{ nullptr, nixl_meta_dlist_t(type), nixl_meta_dlist_t(type) });
	lists &of = prepared.back();
	nixl_status_t status;

	for (const test_range &range : ranges)
		assert_true(add_descriptors(of, peer, range));
	status = engine->prepXfer(kind, of.local, of.remote, peer, of.handle);
	assert_int_equal(status, expected);
	if (status == NIXL_SUCCESS)
		return of.handle;
	prepared.pop_back();
	return nullptr;
}

nixl_status_t test_agent::post(nixl_xfer_op_t kind, const std::string &peer,
			       nixlBackendReqH *&handle, const std::string *message)
{
	nixl_opt_b_args_t arguments;

	arguments.hasNotif = message != nullptr;
	if (message)
		arguments.notifMsg = *message;
	for (lists &of : prepared)
		if (of.handle == handle)
			return engine->postXfer(kind, of.local, of.remote, peer, handle,
						&arguments);
	fail_msg("a request that was not prepared");
	return NIXL_ERR_UNKNOWN;
}

nixl_status_t test_agent::wait(nixlBackendReqH *handle, nixl_status_t status)
{
	test_until("a transfer", [&] {
		if (status == NIXL_IN_PROG)
			status = engine->checkXfer(handle);
		return status != NIXL_IN_PROG;
	});
	return status;
}

void test_agent::release(nixlBackendReqH *handle)
{
	assert_int_equal(engine->releaseReqH(handle), NIXL_SUCCESS);
	prepared.remove_if([&](const lists &of) { return of.handle == handle; });
}

nixl_status_t test_agent::move(nixl_xfer_op_t kind, const std::string &peer,
			       const std::vector<test_range> &ranges,
			       const std::string *message)
{
	nixlBackendReqH *handle = prepare(kind, peer, ranges);
	nixl_status_t status = wait(handle, post(kind, peer, handle, message));

	release(handle);
	return status;
}

std::pair<std::string, std::string> test_agent::next_notice()
{
	std::pair<std::string, std::string> first;

	test_until("a notification", [&] {
		if (arrived.empty())
			assert_int_equal(engine->getNotifs(arrived), NIXL_SUCCESS);
		return !arrived.empty();
	});
	first = arrived.front();
	arrived.erase(arrived.begin());
	return first;
}
