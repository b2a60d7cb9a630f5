/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_ABI_HPP
#define PIER_NIXL_ABI_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/*
 * The part of NIXL's plugin ABI that pier uses, for NIXL 1.0 to 1.5: names, layouts and
 * the order of virtual functions, as in src/api/cpp of ai-dynamo/nixl. The names of
 * classes and functions are NIXL's, so that tests can compare the tables of virtual
 * functions in NIXL's own plugins with these (tests/nixl/test_wheel.py), and compare_abi
 * the declarations with NIXL's headers.
 *
 * The library and NIXL must use the same C++ ABI: libstdc++ with the strings of
 * _GLIBCXX_USE_CXX11_ABI=1, as all wheels of NIXL 1.x do.
 */

#define NIXL_PLUGIN_API_VERSION 1

enum nixl_mem_t {
	DRAM_SEG,
	VRAM_SEG,
	BLK_SEG,
	OBJ_SEG,
	FILE_SEG
};

enum nixl_xfer_op_t {
	NIXL_READ,
	NIXL_WRITE
};

enum nixl_status_t {
	NIXL_IN_PROG = 1,
	NIXL_SUCCESS = 0,
	NIXL_ERR_NOT_POSTED = -1,
	NIXL_ERR_INVALID_PARAM = -2,
	NIXL_ERR_BACKEND = -3,
	NIXL_ERR_NOT_FOUND = -4,
	NIXL_ERR_MISMATCH = -5,
	NIXL_ERR_NOT_ALLOWED = -6,
	NIXL_ERR_REPOST_ACTIVE = -7,
	NIXL_ERR_UNKNOWN = -8,
	NIXL_ERR_NOT_SUPPORTED = -9,
	NIXL_ERR_REMOTE_DISCONNECT = -10,
	NIXL_ERR_CANCELED = -11,
	NIXL_ERR_NO_TELEMETRY = -12
};

enum class nixl_thread_sync_t {
	NIXL_THREAD_SYNC_NONE,
	NIXL_THREAD_SYNC_STRICT,
	NIXL_THREAD_SYNC_RW,
};

enum class nixl_cost_t {
	ANALYTICAL_BACKEND = 0,
};

using nixl_backend_t = std::string;
using nixl_blob_t = std::string;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using nixlMemViewH = void *;
using notif_list_t = std::vector<std::pair<std::string, std::string>>;

/* Never looked into. */
struct nixlAgentOptionalArgs;
struct nixlRemoteMetaDesc;
using nixl_opt_args_t = nixlAgentOptionalArgs;

/* A range of memory. */
class nixlBasicDesc
{
      public:
	uintptr_t addr;
	size_t len;
	uint64_t devId;
};

/* With the bytes that the user, or the owner's getPublicData(), gave. */
class nixlBlobDesc : public nixlBasicDesc
{
      public:
	nixl_blob_t metaInfo;
};

class nixlBackendMD
{
      protected:
	bool isPrivateMD;

      public:
	explicit nixlBackendMD(bool isPrivate) : isPrivateMD(isPrivate)
	{
	}
	virtual ~nixlBackendMD() = default;
};

/* With what registerMem(), loadRemoteMD() or loadLocalMD() returned for it. */
class nixlMetaDesc : public nixlBasicDesc
{
      public:
	nixlBackendMD *metadataP;
};

/*
 * The agent constructs all lists but those of tests. Its functions are in NIXL, so that
 * only the layout counts: a table of virtual functions, a type, and a vector.
 */
template <class T> class nixlDescList
{
      protected:
	nixl_mem_t type;
	std::vector<T> descs;

      public:
	explicit nixlDescList(const nixl_mem_t &of) : type(of)
	{
	}
	virtual ~nixlDescList() = default;
	nixl_mem_t getType() const
	{
		return type;
	}
	int descCount() const
	{
		return (int)descs.size();
	}
	const T &operator[](size_t index) const
	{
		return descs[index];
	}
	typename std::vector<T>::const_iterator begin() const
	{
		return descs.begin();
	}
	typename std::vector<T>::const_iterator end() const
	{
		return descs.end();
	}
	virtual void resize(const size_t &count)
	{
		descs.resize(count);
	}
	virtual void addDesc(const T &desc)
	{
		descs.push_back(desc);
	}
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;

struct nixlBackendOptionalArgs {
	nixl_blob_t notifMsg;
	bool hasNotif = false;
	nixl_blob_t customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

class nixlBackendInitParams
{
      public:
	std::string localAgent;
	nixl_backend_t type;
	nixl_b_params_t *customParams = nullptr;
	bool enableProgTh = false;
	uint64_t pthrDelay = 0; /* in microseconds */
	nixl_thread_sync_t syncMode = nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE;
	bool enableTelemetry_ = false;
};

class nixlBackendReqH
{
      public:
	nixlBackendReqH() = default;
	virtual ~nixlBackendReqH() = default;
};

/*
 * NIXL's struct differs between versions. pier reports no events, so that the vector of
 * them stays empty, and its layout does not depend on the element.
 */
struct nixlTelemetryEvent {
	uint64_t unused;
};

/*
 * The base class of every backend. The order of the data members and of the virtual
 * functions is the ABI: the agent reads the former, and calls the latter by number.
 */
class nixlBackendEngine
{
      private:
	nixl_backend_t backendType;
	nixl_b_params_t customParams;
	std::vector<nixlTelemetryEvent> telemetryEvents_;
	std::mutex telemetryEventsMutex_;

      protected:
	bool initErr = false;
	const std::string localAgent;
	const bool enableTelemetry_;

      public:
	explicit nixlBackendEngine(const nixlBackendInitParams *params)
	    : backendType(params->type), customParams(*params->customParams),
	      localAgent(params->localAgent), enableTelemetry_(params->enableTelemetry_)
	{
	}
	nixlBackendEngine(const nixlBackendEngine &) = delete;
	void operator=(const nixlBackendEngine &) = delete;

	virtual ~nixlBackendEngine() = default;
	virtual bool supportsRemote() const = 0;
	virtual bool supportsLocal() const = 0;
	virtual bool supportsNotif() const = 0;
	virtual nixl_mem_list_t getSupportedMems() const = 0;
	virtual nixl_status_t registerMem(const nixlBlobDesc &mem,
					  const nixl_mem_t &nixl_mem,
					  nixlBackendMD *&out) = 0;
	virtual nixl_status_t deregisterMem(nixlBackendMD *meta) = 0;
	virtual nixl_status_t connect(const std::string &remote_agent) = 0;
	virtual nixl_status_t disconnect(const std::string &remote_agent) = 0;
	virtual nixl_status_t unloadMD(nixlBackendMD *input) = 0;
	virtual nixl_status_t prepXfer(
		const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
		const nixl_meta_dlist_t &remote, const std::string &remote_agent,
		nixlBackendReqH *&handle,
		const nixl_opt_b_args_t *opt_args = nullptr) const = 0;
	virtual nixl_status_t postXfer(
		const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
		const nixl_meta_dlist_t &remote, const std::string &remote_agent,
		nixlBackendReqH *&handle,
		const nixl_opt_b_args_t *opt_args = nullptr) const = 0;
	virtual nixl_status_t checkXfer(nixlBackendReqH *handle) const = 0;
	virtual nixl_status_t releaseReqH(nixlBackendReqH *handle) const = 0;
	virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &,
					  nixlMemViewH &,
					  const nixl_opt_b_args_t * = nullptr) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
	virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &,
					  const nixl_opt_b_args_t * = nullptr) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
	virtual void releaseMemView(nixlMemViewH) const
	{
	}
	virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t getConnInfo(std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &,
					   const std::string &, nixlBackendMD *&)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t getNotifs(notif_list_t &)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t genNotif(const std::string &, const std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t queryMem(const nixl_reg_dlist_t &,
				       std::vector<nixl_query_resp_t> &) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
	virtual nixl_status_t estimateXferCost(
		const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
		const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *const &,
		std::chrono::microseconds &, std::chrono::microseconds &, nixl_cost_t &,
		const nixl_opt_args_t * = nullptr) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}

	/* Not virtual: the agent has its own copies, which read the members above. */
	bool getInitErr() const noexcept
	{
		return initErr;
	}
};

/* What nixl_plugin_init() returns. */
class nixlBackendPlugin
{
      public:
	int api_version;
	nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *init_params);
	void (*destroy_engine)(nixlBackendEngine *engine);
	const char *(*get_plugin_name)();
	const char *(*get_plugin_version)();
	nixl_b_params_t (*get_backend_options)();
	nixl_mem_list_t (*get_backend_mems)();
};

extern "C" {
__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init();
__attribute__((visibility("default"))) void nixl_plugin_fini();
}

#endif
