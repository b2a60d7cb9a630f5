/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_EXPORT_H
#define PIER_EXPORT_H

/* Linkage for C++ and symbol visibility, for every public header. */

#ifdef __cplusplus
#define PIER_BEGIN_DECLS extern "C" {
#define PIER_END_DECLS	 }
#else
#define PIER_BEGIN_DECLS
#define PIER_END_DECLS
#endif

#if defined(__GNUC__)
#define PIER_API		   __attribute__((visibility("default")))
#define PIER_PRINTF(string, first) __attribute__((__format__(__printf__, string, first)))
#else
#define PIER_API
#define PIER_PRINTF(string, first)
#endif

#endif
