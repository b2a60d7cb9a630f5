/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent_version.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <string>

#include "report.hpp"

namespace pier_nixl
{

/* The versions whose wheels are tested. */
static const int oldest[2] = { 1, 0 }, newest[2] = { 1, 5 };

/*
 * NIXL's library has copies of the inline functions of its base class. These two came
 * and went with NIXL 1.0, in the middle of the table.
 */
static const char new_function[] = "_ZNK17nixlBackendEngine14releaseMemViewEPv";
static const char old_function[] = "_ZNK17nixlBackendEngine17releaseGpuXferReqEPv";

/* Split "nixl_cu12-1.4.1.dist-info" beside the library's folder into a version. */
static bool parse_package(const char *name, int ret_version[2])
{
	const char *dash = strchr(name, '-');

	return !strncmp(name, "nixl", 4) && dash && strstr(dash, ".dist-info") &&
	       sscanf(dash + 1, "%d.%d", &ret_version[0], &ret_version[1]) == 2;
}

/* A wheel has its libraries in site-packages/.NAME.mesonpy.libs. */
static bool find_package(const std::string &library, int ret_version[2])
{
	std::string folder = library.substr(0, library.rfind('/'));
	size_t slash = folder.rfind('/'), dot = folder.find(".mesonpy.libs");
	std::string name;
	bool found = false;
	DIR *listing;

	if (slash == std::string::npos || dot == std::string::npos)
		return false;
	name = folder.substr(slash + 2, dot - slash - 2) + "-";
	listing = opendir(folder.substr(0, slash).c_str());
	while (struct dirent *entry = listing ? readdir(listing) : nullptr)
		found |= !strncmp(entry->d_name, name.c_str(), name.size()) &&
			 parse_package(entry->d_name, ret_version);
	if (listing)
		closedir(listing);
	return found;
}

static bool is_between(const int version[2])
{
	return version[0] == oldest[0] && version[1] >= oldest[1] &&
	       version[1] <= newest[1];
}

static bool has_functions(const char *library)
{
	void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
	bool is_new;

	if (!handle)
		return false;
	is_new = dlsym(handle, new_function) && !dlsym(handle, old_function);
	dlclose(handle);
	return is_new;
}

bool is_supported_agent(void *caller)
{
	const char *any = secure_getenv("PIER_NIXL_ANY_VERSION");
	int version[2];
	Dl_info info;

	if (any && !strcmp(any, "1"))
		return true;
	if (!dladdr(caller, &info) || !info.dli_fname || !has_functions(info.dli_fname)) {
		report_line("this NIXL has another plugin ABI than versions %d.%d to "
			    "%d.%d: install one of these (pip install 'nixl>=%d.%d')",
			    oldest[0], oldest[1], newest[0], newest[1], oldest[0],
			    oldest[1]);
		return false;
	}
	if (find_package(info.dli_fname, version) && !is_between(version)) {
		report_line("NIXL %d.%d was not tested with this plugin, which supports "
			    "%d.%d to %d.%d: install one of these, or set "
			    "PIER_NIXL_ANY_VERSION=1",
			    version[0], version[1], oldest[0], oldest[1], newest[0],
			    newest[1]);
		return false;
	}
	return true;
}

} // namespace pier_nixl
