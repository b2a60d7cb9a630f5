/* SPDX-License-Identifier: BSD-3-Clause */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <exception>
#include <string>

#include "engine.hpp"
#include "report.hpp"
#include "settings.hpp"

namespace
{

/* The versions whose wheels are tested. */
const int oldest[2] = { 1, 0 }, newest[2] = { 1, 5 };

/*
 * NIXL's library has copies of the inline functions of its base class. These two came
 * and went with NIXL 1.0, in the middle of the table.
 */
const char new_function[] = "_ZNK17nixlBackendEngine14releaseMemViewEPv";
const char old_function[] = "_ZNK17nixlBackendEngine17releaseGpuXferReqEPv";

/*
 * A wheel has its libraries in site-packages/.NAME.mesonpy.libs, beside the folder
 * NAME-VERSION.dist-info.
 */
bool find_package(const std::string &library, int ret_version[2])
{
	std::string folder = library.substr(0, library.rfind('/'));
	size_t slash = folder.rfind('/'), dot = folder.find(".mesonpy.libs");
	bool found = false;

	if (slash == std::string::npos || dot == std::string::npos)
		return false;
	std::string name = folder.substr(slash + 2, dot - slash - 2) + "-";
	DIR *listing = opendir(folder.substr(0, slash).c_str());

	while (struct dirent *entry = listing ? readdir(listing) : nullptr)
		found |= !strncmp(entry->d_name, name.c_str(), name.size()) &&
			 strstr(entry->d_name, ".dist-info") &&
			 sscanf(entry->d_name + name.size(), "%d.%d", &ret_version[0],
				&ret_version[1]) == 2;
	if (listing)
		closedir(listing);
	return found;
}

bool has_functions(const char *library)
{
	void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
	bool is_new;

	if (!handle)
		return false;
	is_new = dlsym(handle, new_function) && !dlsym(handle, old_function);
	dlclose(handle);
	return is_new;
}

/*
 * Check whether the NIXL that loads the plugin has the ABI of nixl_abi.hpp. NIXL 0.10
 * has other virtual functions but the same NIXL_PLUGIN_API_VERSION.
 *
 * caller  an address in NIXL's library, or in a program that plays NIXL
 *
 * Returns false after a line that gives the reason.
 */
bool is_supported_agent(void *caller)
{
	const char *any = secure_getenv("PIER_NIXL_ANY_VERSION");
	int version[2];
	Dl_info info;

	if (any && !strcmp(any, "1"))
		return true;
	if (!dladdr(caller, &info) || !info.dli_fname || !has_functions(info.dli_fname)) {
		pier_nixl::report_line(
			"this NIXL has another plugin ABI than versions %d.%d to "
			"%d.%d: install one of these (pip install 'nixl>=%d.%d')",
			oldest[0], oldest[1], newest[0], newest[1], oldest[0], oldest[1]);
		return false;
	}
	if (find_package(info.dli_fname, version) &&
	    (version[0] != oldest[0] || version[1] < oldest[1] ||
	     version[1] > newest[1])) {
		pier_nixl::report_line(
			"NIXL %d.%d was not tested with this plugin, which supports "
			"%d.%d to %d.%d: install one of these, or set "
			"PIER_NIXL_ANY_VERSION=1",
			version[0], version[1], oldest[0], oldest[1], newest[0],
			newest[1]);
		return false;
	}
	return true;
}

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
	if (!is_supported_agent(__builtin_return_address(0)))
		return nullptr;
	return &plugin;
}

void nixl_plugin_fini()
{
}
