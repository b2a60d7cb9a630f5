/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "fake.h"

struct fake_driver fake_driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool fake_has_device(int device)
{
	return device >= 0 && (uint32_t)device < fake_driver.control.devices;
}

struct fake_cuda_device *fake_device(int device)
{
	return &fake_driver.control.device[device];
}

CUresult fake_use_device(int device)
{
	struct fake_cuda_device *used = fake_device(device);

	used->calls++;
	if (fake_driver.control.capturing && !fake_is_relaxed()) {
		fake_driver.control.breaks++;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	if (used->lost_in == 1)
		return used->lost_result;
	if (used->lost_in > 1)
		used->lost_in--;
	return CUDA_SUCCESS;
}

/*
 * The call of that name, a literal. Its address is remembered: a search through all names
 * would cost more than anything that tests/bench/export.c counts. With the lock held.
 */
static struct fake_cuda_call *find_call(const char *name)
{
	static struct {
		const char *name;
		struct fake_cuda_call *call;
	} found[256];
	size_t at = ((uintptr_t)name >> 2) % (sizeof(found) / sizeof(found[0]));

	if (found[at].name != name) {
		found[at].name = name;
		found[at].call = fake_cuda_call(&fake_driver.control, name);
	}
	return found[at].call;
}

/* Counts the call, and returns the failure that the test has set for it. */
static CUresult count_call(const char *name)
{
	struct fake_cuda_call *call = find_call(name);

	call->calls++;
	if (call->fail_in == 0)
		return CUDA_SUCCESS;
	if (call->fail_in > 1) {
		call->fail_in--;
		return CUDA_SUCCESS;
	}
	if (call->fail_more > 0)
		call->fail_more--;
	else
		call->fail_in = 0;
	return call->fail_result;
}

static CUresult check_need(const struct fake_scope *scope, enum fake_need need)
{
	if (need >= FAKE_NEEDS_INIT && !fake_driver.initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (need < FAKE_NEEDS_CURRENT)
		return CUDA_SUCCESS;
	if (!scope->current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!scope->current->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return need < FAKE_NEEDS_DEVICE ? CUDA_SUCCESS : fake_use_device(scope->device);
}

/*
 * In a child of a process that initialized the driver, it never works again. Its state
 * may have been copied in the middle of a change, so the lock is not taken either.
 */
struct fake_scope fake_enter(const char *name, enum fake_need need)
{
	struct fake_scope scope = { .device = -1 };
	int owner = __atomic_load_n(&fake_driver.pid, __ATOMIC_RELAXED);

	if (need != FAKE_NEEDS_NOTHING && owner != 0 && owner != getpid()) {
		scope.result = CUDA_ERROR_NOT_INITIALIZED;
		return scope;
	}
	if (owner != 0 && owner != getpid())
		return scope;
	pthread_mutex_lock(&lock);
	scope.locked = true;
	scope.current = fake_current();
	if (scope.current)
		scope.device = scope.current->device;
	scope.result = count_call(name);
	if (scope.result == CUDA_SUCCESS)
		scope.result = check_need(&scope, need);
	return scope;
}

void fake_leave(struct fake_scope *scope)
{
	if (scope->locked)
		pthread_mutex_unlock(&lock);
}

/* For the functions of the control block, which are not counted as calls. */
struct fake_scope fake_enter_unseen(void)
{
	pthread_mutex_lock(&lock);
	return (struct fake_scope){ .locked = true, .device = -1 };
}

static bool is_foreign(void)
{
	return fake_driver.pid != 0 && fake_driver.pid != getpid();
}

CUresult fake_cuInit(unsigned int flags)
{
	/* cuInit() also fails after fork(). */
	FAKE_ENTER("cuInit", FAKE_NEEDS_NOTHING);
	if (is_foreign())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_driver.control.devices == 0)
		return CUDA_ERROR_NO_DEVICE;
	if (!fake_open_arena())
		return CUDA_ERROR_OUT_OF_MEMORY;
	__atomic_store_n(&fake_driver.pid, getpid(), __ATOMIC_RELAXED);
	fake_driver.initialized = true;
	return CUDA_SUCCESS;
}

CUresult fake_cuDriverGetVersion(int *ret_version)
{
	FAKE_ENTER("cuDriverGetVersion", FAKE_NEEDS_NOTHING);
	if (!ret_version)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_version = fake_driver.control.version;
	return CUDA_SUCCESS;
}

static const char *const error_names[CUDA_ERROR_UNKNOWN + 1] = {
#define NAME(name, words) [name] = #name,
#include "errors.h"
#undef NAME
};

static const char *const error_words[CUDA_ERROR_UNKNOWN + 1] = {
#define NAME(name, words) [name] = words,
#include "errors.h"
#undef NAME
};

static CUresult find_words(const char *const *words, CUresult error, const char **ret)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = error >= 0 && error <= CUDA_ERROR_UNKNOWN ? words[error] : NULL;
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fake_cuGetErrorName(CUresult error, const char **ret)
{
	FAKE_ENTER("cuGetErrorName", FAKE_NEEDS_NOTHING);
	return find_words(error_names, error, ret);
}

CUresult fake_cuGetErrorString(CUresult error, const char **ret)
{
	FAKE_ENTER("cuGetErrorString", FAKE_NEEDS_NOTHING);
	return find_words(error_words, error, ret);
}
