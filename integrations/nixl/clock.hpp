/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_NIXL_CLOCK_HPP
#define PIER_NIXL_CLOCK_HPP

#include <chrono>

namespace pier_nixl
{

/*
 * The clock of the plug-in, which asks for the time nowhere else. The library's
 * (src/core/clock.h) is not in its public headers, and the plug-in uses only those.
 */
using time_point = std::chrono::steady_clock::time_point;

inline time_point clock_now()
{
	return std::chrono::steady_clock::now();
}

/* The milliseconds until then, rounded up; 0 when it is past. */
inline int left_ms(time_point end)
{
	auto left =
		std::chrono::ceil<std::chrono::milliseconds>(end - clock_now()).count();

	return left > 0 ? (int)left : 0;
}

} // namespace pier_nixl

#endif
