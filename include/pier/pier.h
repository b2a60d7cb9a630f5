/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_H
#define PIER_H

/*
 * Includes every public header but <pier/backend.h>, <pier/verbs.h> and <pier/inline.h>.
 *
 * Enums that the library returns may get values in later versions: give each switch a
 * default. docs/abi.md has all that may change.
 */

#include <pier/buffer.h>
#include <pier/cache.h>
#include <pier/channel.h>
#include <pier/counter.h>
#include <pier/cq.h>
#include <pier/device.h>
#include <pier/element.h>
#include <pier/endpoint.h>
#include <pier/error.h>
#include <pier/event.h>
#include <pier/group.h>
#include <pier/ipc.h>
#include <pier/rails.h>
#include <pier/receiver.h>
#include <pier/log.h>
#include <pier/mr.h>
#include <pier/object.h>
#include <pier/post.h>
#include <pier/recv_pool.h>
#include <pier/recovery.h>
#include <pier/remote.h>
#include <pier/remote_vec.h>
#include <pier/ring.h>
#include <pier/scope.h>
#include <pier/status.h>
#include <pier/stream.h>
#include <pier/sync.h>
#include <pier/topology.h>
#include <pier/transfer.h>
#include <pier/srq.h>
#include <pier/version.h>
#include <pier/waiting.h>

#endif
