/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_AGENT_VERSION_HPP
#define PIER_NIXL_AGENT_VERSION_HPP

namespace pier_nixl
{

/*
 * Check whether the NIXL that loads the plugin has the ABI of nixl_abi.hpp. NIXL 0.10
 * has other virtual functions but the same NIXL_PLUGIN_API_VERSION.
 *
 * caller  an address in NIXL's library, or in a program that plays NIXL
 *
 * Returns false after a line that gives the reason.
 */
bool is_supported_agent(void *caller);

} // namespace pier_nixl

#endif
