/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

#include <memory>
#include <sys/mman.h>
#include <unistd.h>

static const size_t mib = 1 << 20, guard = 4096;

static void writes_and_reads_move_exactly_the_bytes(void **)
{
	const size_t lengths[] = { 1, 8, 4095, 4096, 65537, mib, 5 * mib + 3 };
	test_memory source(6 * mib), target(6 * mib);
	test_agent one("one"), two("two");

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	for (size_t length : lengths)
		for (nixl_xfer_op_t kind : { NIXL_WRITE, NIXL_READ }) {
			test_memory &from = kind == NIXL_WRITE ? source : target;
			test_memory &to = kind == NIXL_WRITE ? target : source;
			std::string bytes = test_bytes(length, (unsigned)length + kind);

			to.fill(0xee);
			from.put(guard, bytes);
			assert_int_equal(one.move(kind, "two",
						  { { source.addr + guard,
						      target.addr + guard, length } }),
					 NIXL_SUCCESS);
			assert_true(to.get(guard, length) == bytes);
			assert_true(to.get(0, guard) == std::string(guard, '\xee'));
			assert_true(to.get(guard + length, guard) ==
				    std::string(guard, '\xee'));
		}
}

/* Every second block of the source, in the opposite order, without gaps. */
static void lists_of_10000_descriptors_are_moved(void **)
{
	const size_t count = 10000, block = 512;
	test_memory source(2 * count * block), target(count * block);
	std::string bytes = test_bytes(source.length, 1), expected;
	test_agent one("one"), two("two");
	std::vector<test_range> ranges;

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	for (size_t i = 0; i < count; i++) {
		ranges.push_back({ source.addr + 2 * i * block,
				   target.addr + (count - 1 - i) * block, block });
		expected += bytes.substr(2 * (count - 1 - i) * block, block);
	}
	source.put(0, bytes);
	assert_int_equal(one.move(NIXL_WRITE, "two", ranges), NIXL_SUCCESS);
	assert_true(target.get() == expected);
	source.fill(0);
	assert_int_equal(one.move(NIXL_READ, "two", ranges), NIXL_SUCCESS);
	for (size_t i = 0; i < count; i++) {
		assert_true(source.get(2 * i * block, block) ==
			    bytes.substr(2 * i * block, block));
		assert_true(source.get((2 * i + 1) * block, block) ==
			    std::string(block, 0));
	}
}

static void requests_are_posted_again(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	nixlBackendReqH *handle;

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	handle = one.prepare(NIXL_WRITE, "two", { { source.addr, target.addr, mib } });
	for (unsigned round = 0; round < 20; round++) {
		source.put(0, test_bytes(mib, round));
		assert_int_equal(one.wait(handle, one.post(NIXL_WRITE, "two", handle)),
				 NIXL_SUCCESS);
		assert_true(target.get() == test_bytes(mib, round));
	}
	one.release(handle);
}

static void an_agent_moves_bytes_within_itself(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one");
	std::string message = "to myself";

	one.register_memory(source);
	one.register_memory(target);
	source.put(0, test_bytes(mib, 3));
	assert_int_equal(one.move(NIXL_WRITE, "one",
				  { { source.addr, target.addr, mib } }, &message),
			 NIXL_SUCCESS);
	assert_true(target.get() == test_bytes(mib, 3));
	assert_true(one.next_notice() == std::make_pair(std::string("one"), message));
}

/* Each rail takes some of the pieces. */
static void bytes_go_over_several_rails(void **)
{
	std::string devices = options.device + "," + options.device + "," +
			      options.device;
	test_memory source(20 * mib), target(20 * mib);
	std::string message = "behind all rails";

	/* A plan belongs to one device. */
	if (options.device.find(':') != std::string::npos)
		devices = options.device;
	test_agent one("one", { { "device", devices } });
	test_agent two("two", { { "device", devices } });

	one.register_memory(source);
	two.register_memory(target);
	one.meet(two);
	for (nixl_xfer_op_t kind : { NIXL_WRITE, NIXL_READ }) {
		test_memory &from = kind == NIXL_WRITE ? source : target;
		test_memory &to = kind == NIXL_WRITE ? target : source;

		from.put(0, test_bytes(20 * mib, 5 + kind));
		assert_int_equal(one.move(kind, "two",
					  { { source.addr, target.addr, 20 * mib } },
					  &message),
				 NIXL_SUCCESS);
		assert_true(to.get() == test_bytes(20 * mib, 5 + kind));
		assert_true(two.next_notice().second == message);
	}
}

static void descriptors_outside_their_memory_are_refused(void **)
{
	test_memory source(mib), target(mib);
	test_agent one("one"), two("two");
	nixl_meta_dlist_t local(DRAM_SEG), remote(DRAM_SEG);
	nixlBackendReqH *handle = nullptr;
	nixlBackendMD *mine, *self;
	nixlBlobDesc blob;
	nixlMetaDesc desc;

	blob.addr = source.addr;
	blob.len = source.length;
	blob.devId = 0;
	blob.metaInfo = source.text;
	assert_int_equal(one.engine->registerMem(blob, source.type, mine), NIXL_SUCCESS);
	assert_int_equal(one.engine->loadLocalMD(mine, self), NIXL_SUCCESS);
	desc.addr = source.addr + 1;
	desc.len = mib;
	desc.devId = 0;
	desc.metadataP = mine;
	local.addDesc(desc);
	desc.metadataP = self;
	remote.addDesc(desc);
	assert_int_equal(one.engine->prepXfer(NIXL_WRITE, local, remote, "one", handle),
			 NIXL_ERR_INVALID_PARAM);
	assert_null(handle);
	assert_int_equal(one.engine->unloadMD(self), NIXL_SUCCESS);
	assert_int_equal(one.engine->deregisterMem(mine), NIXL_SUCCESS);
}

/* A wrong text names no memory; texts of other backends do not count. */
static void texts_that_are_no_fd_are_refused(void **)
{
	test_memory memory(mib);
	std::string correct = memory.text;
	test_agent one("one");

	for (const char *text : { "dmabuf:", "dmabuf:-1", "dmabuf:x", "dmabuf:3+",
				  "dmabuf:3x", "dmabuf:99999999999", "dmabuf:4000" }) {
		memory.text = text;
		assert_false(one.register_memory(memory));
	}
	if (correct.empty()) {
		memory.text = "rw:/a/file";
		assert_true(one.register_memory(memory));
	}
}

/* Memory of a fd is never cached, and host memory only if the kernel can watch it. */
static bool can_cache()
{
	struct pier_mr_cache_stats stats;
	struct pier_device *device;
	struct pier_mr_cache *cache;
	struct pier_pd *pd;

	if (options.backend != "host")
		return options.backend == "cuda" || options.backend == "hip";
	assert_int_equal(pier_device_open(options.device.c_str(), &device), 0);
	assert_int_equal(pier_pd_alloc(device, &pd), 0);
	assert_int_equal(pier_mr_cache_create(pd, nullptr, &cache), 0);
	pier_mr_cache_query_stats(cache, &stats, sizeof(stats));
	assert_int_equal(pier_mr_cache_destroy(cache), 0);
	assert_int_equal(pier_pd_dealloc(pd), 0);
	pier_device_close(device);
	return stats.watching;
}

/* The addresses and keys of what an agent registers after it has deregistered it. */
static std::string keys_of_another_registration(test_agent &agent, test_memory &memory)
{
	agent.deregister_memory(memory);
	assert_true(agent.register_memory(memory));
	return agent.metadata();
}

/* Only an agent with a cache keeps a registration, and parts of the memory use it. */
static void registrations_are_kept_in_a_cache(void **)
{
	test_memory source(mib), target(mib);
	test_memory source_part(source, guard, mib / 2), target_part(target, 1, mib / 2);
	test_agent plain("plain"), one("one", { { "cache", "on" } });
	test_agent two("two", { { "cache", "on" } });
	std::string keys;
	size_t regions;

	assert_true(plain.register_memory(target));
	keys = plain.metadata();
	assert_true(keys_of_another_registration(plain, target) != keys);
	one.register_memory(source);
	two.register_memory(target);
	keys = two.metadata();
	if (!can_cache()) {
		assert_true(keys_of_another_registration(two, target) != keys);
		return;
	}
	assert_true(keys_of_another_registration(two, target) == keys);
	one.deregister_memory(source);
	two.deregister_memory(target);
	regions = pier_object_count(PIER_OBJECT_MR);
	assert_true(one.register_memory(source_part));
	assert_true(two.register_memory(target_part));
	assert_int_equal(pier_object_count(PIER_OBJECT_MR), regions);
	one.meet(two);
	for (nixl_xfer_op_t kind : { NIXL_WRITE, NIXL_READ }) {
		test_memory &from = kind == NIXL_WRITE ? source : target;
		test_memory &to = kind == NIXL_WRITE ? target : source;
		size_t from_start = kind == NIXL_WRITE ? guard : 1;
		std::string bytes = test_bytes(mib / 2, kind);

		to.fill(0xee);
		from.put(from_start, bytes);
		assert_int_equal(
			one.move(kind, "two",
				 { { source_part.addr, target_part.addr, mib / 2 } }),
			NIXL_SUCCESS);
		assert_true(to.get(guard + 1 - from_start, mib / 2) == bytes);
		assert_true(to.get(0, guard + 1 - from_start) ==
			    std::string(guard + 1 - from_start, '\xee'));
	}
}

/* New memory at the same addresses is registered, and receives the bytes. */
static void memory_that_was_freed_is_registered_again(void **)
{
	auto target = std::make_unique<test_memory>(mib);
	test_memory source(mib);
	test_agent one("one"), two("two", { { "cache", "on" } });
	std::string keys;

	one.register_memory(source);
	two.register_memory(*target);
	keys = two.metadata();
	two.deregister_memory(*target);
	if (options.backend == "host") {
		assert_ptr_equal(mmap((void *)target->addr, mib, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
				 (void *)target->addr);
	} else {
		target = nullptr;
		target = std::make_unique<test_memory>(mib);
	}
	assert_true(two.register_memory(*target));
	assert_true(two.metadata() != keys);
	one.meet(two);
	source.put(0, test_bytes(mib, 9));
	assert_int_equal(
		one.move(NIXL_WRITE, "two", { { source.addr, target->addr, mib } }),
		NIXL_SUCCESS);
	assert_true(target->get() == source.get());
}

std::vector<CMUnitTest> transfer_tests()
{
	return {
		cmocka_unit_test(writes_and_reads_move_exactly_the_bytes),
		cmocka_unit_test(lists_of_10000_descriptors_are_moved),
		cmocka_unit_test(requests_are_posted_again),
		cmocka_unit_test(an_agent_moves_bytes_within_itself),
		cmocka_unit_test(bytes_go_over_several_rails),
		cmocka_unit_test(descriptors_outside_their_memory_are_refused),
		cmocka_unit_test(texts_that_are_no_fd_are_refused),
		cmocka_unit_test(registrations_are_kept_in_a_cache),
		cmocka_unit_test(memory_that_was_freed_is_registered_again),
	};
}
