/* SPDX-License-Identifier: BSD-3-Clause */
#include <exception>

#include "agent_version.hpp"
#include "engine.hpp"
#include "report.hpp"
#include "settings.hpp"

namespace
{

nixlBackendEngine *create_engine(const nixlBackendInitParams *params)
{
	try {
		return new pier_nixl::engine(params);
	} catch (const std::exception &failure) {
		pier_nixl::report_line("the backend cannot start: %s", failure.what());
		return nullptr;
	}
}

void destroy_engine(nixlBackendEngine *engine)
{
	delete engine;
}

const char *plugin_name()
{
	return "PIER";
}

const char *plugin_version()
{
	return PIER_NIXL_VERSION;
}

nixl_mem_list_t backend_mems()
{
	return { DRAM_SEG, VRAM_SEG };
}

nixlBackendPlugin plugin = {
	NIXL_PLUGIN_API_VERSION,
	create_engine,
	destroy_engine,
	plugin_name,
	plugin_version,
	pier_nixl::default_parameters,
	backend_mems,
};

} // namespace

/* The caller is NIXL's library; NULL makes it refuse the backend. */
nixlBackendPlugin *nixl_plugin_init()
{
	if (!pier_nixl::is_supported_agent(__builtin_return_address(0)))
		return nullptr;
	return &plugin;
}

void nixl_plugin_fini()
{
}
