/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent.hpp"

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
	};
}
