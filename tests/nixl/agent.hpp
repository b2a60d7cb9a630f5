/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_NIXL_AGENT_HPP
#define TESTS_NIXL_AGENT_HPP

#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include <pier/pier.h>

#include "nixl_abi.hpp"

extern "C" {
#include "../support/cmocka.h"
#include "../support/census.h"
}

/* A test fails if something takes longer than this. */
#define TEST_SECONDS 60

/* What main() was told: the device of the agents, and the kind of their memory. */
struct test_options {
	std::string device = PIER_SOFT_DEVICE;
	std::string backend = "host";
	std::string program;
};
extern test_options options;

/* Memory of the kind under test, which an agent registers. */
class test_memory
{
      public:
	explicit test_memory(size_t bytes);
	/* A part of another memory, which must last as long. */
	test_memory(const test_memory &whole, size_t offset, size_t bytes);
	test_memory(const test_memory &) = delete;
	void operator=(const test_memory &) = delete;
	~test_memory();

	void fill(uint8_t byte);
	void put(size_t offset, const std::string &bytes);
	std::string get(size_t offset, size_t bytes);
	std::string get()
	{
		return get(0, length);
	}

	uint64_t addr;
	const size_t length;
	nixl_mem_t type = DRAM_SEG;
	std::string text; /* metaInfo */

      private:
	const bool is_part = false;
	struct pier_buffer *buffer = nullptr;
	struct pier_dmabuf exported;
};

/* A range of local memory, and the range of a peer's that it is moved to or from. */
struct test_range {
	uint64_t local, remote;
	size_t length;
};

/* The part of NIXL's agent that calls a backend: the plugin through the declared ABI. */
class test_agent
{
      public:
	explicit test_agent(const std::string &named, nixl_b_params_t parameters = {});
	test_agent(const test_agent &) = delete;
	void operator=(const test_agent &) = delete;
	~test_agent();

	/* Returns false if the backend refuses. */
	bool register_memory(test_memory &memory);
	void deregister_memory(test_memory &memory);
	/* The bytes that agents exchange, and what NIXL does with them. */
	std::string metadata();
	nixl_status_t load(const std::string &bytes);
	/* The address of the memory of a peer that was loaded last. */
	uint64_t address_of(const std::string &peer) const;
	/* Remove a peer, in the order of NIXL: first its memory. */
	void forget(const std::string &peer);
	/* Both ways. */
	void meet(test_agent &other);

	nixlBackendReqH *prepare(nixl_xfer_op_t kind, const std::string &peer,
				 const std::vector<test_range> &ranges,
				 nixl_status_t expected = NIXL_SUCCESS);
	nixl_status_t post(nixl_xfer_op_t kind, const std::string &peer,
			   nixlBackendReqH *&handle,
			   const std::string *message = nullptr);
	nixl_status_t wait(nixlBackendReqH *handle, nixl_status_t status = NIXL_IN_PROG);
	void release(nixlBackendReqH *handle);
	/* Prepare, post, wait and release. */
	nixl_status_t move(nixl_xfer_op_t kind, const std::string &peer,
			   const std::vector<test_range> &ranges,
			   const std::string *message = nullptr);
	/* Wait for the next notification of any peer: its sender and its text. */
	std::pair<std::string, std::string> next_notice();

	const std::string name;
	nixlBackendEngine *engine;

      private:
	struct mine {
		test_memory *memory;
		nixlBackendMD *local, *self;
	};
	struct theirs {
		std::string agent;
		uint64_t addr;
		size_t length;
		nixl_mem_t type;
		nixlBackendMD *remote;
	};

	std::list<mine> memories;
	std::list<theirs> remotes;
	notif_list_t arrived;
	/* The lists of a request must last as long as it does. */
	struct lists {
		nixlBackendReqH *handle;
		nixl_meta_dlist_t local, remote;
	};
	std::list<lists> prepared;

	bool add_descriptors(lists &to, const std::string &peer, const test_range &range);
};

/* The plugin, loaded from PIER_TEST_NIXL_PLUGIN. NULL: it refused this program. */
nixlBackendPlugin *test_load_plugin();

/* Call `step` until it returns true; fail the test after TEST_SECONDS. */
void test_until(const char *what, const std::function<bool()> &step);

/* Bytes that depend on the seed. */
std::string test_bytes(size_t length, unsigned seed);

/* The tests of each file. */
std::vector<CMUnitTest> transfer_tests();
std::vector<CMUnitTest> notice_tests();
std::vector<CMUnitTest> failure_tests();
std::vector<CMUnitTest> crowd_tests();

/* The process that failure_tests() kill: an agent with memory that waits. */
int run_victim(int socket);

#endif
