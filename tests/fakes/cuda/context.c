/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdlib.h>

#include "fake.h"

#define STACK_SIZE 32

static _Thread_local CUcontext stack[STACK_SIZE];
static _Thread_local size_t depth;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void count_abandoned(void *unused)
{
	struct fake_scope scope = fake_enter_unseen();

	(void)unused;
	fake_driver.control.abandoned += depth;
	fake_driver.control.current -= depth;
	depth = 0;
	fake_leave(&scope);
}

static void make_key(void)
{
	pthread_key_create(&key, count_abandoned);
}

CUcontext fake_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static CUresult push(CUcontext context)
{
	if (depth == STACK_SIZE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_once(&once, make_key);
	pthread_setspecific(key, stack);
	stack[depth++] = context;
	fake_driver.control.current++;
	return CUDA_SUCCESS;
}

static void pop(void)
{
	depth--;
	fake_driver.control.current--;
}

bool fake_is_context(CUcontext context)
{
	for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++)
		if (context == &fake_driver.primary[i])
			return true;
	for (CUcontext known = fake_driver.contexts; known; known = known->next)
		if (context == known)
			return true;
	return false;
}

static CUresult check_context(CUcontext context)
{
	if (!context || !fake_is_context(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
	CUcontext primary;
	CUresult result;

	FAKE_ENTER("cuDevicePrimaryCtxRetain", FAKE_NEEDS_INIT);
	if (!ret_context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	primary = &fake_driver.primary[device];
	/* An existing context is returned without using the device. */
	result = primary->alive ? CUDA_SUCCESS : fake_use_device(device);
	if (result != CUDA_SUCCESS)
		return result;
	if (!primary->alive)
		primary->id = ++fake_driver.last_context;
	primary->device = device;
	primary->primary = primary->alive = true;
	fake_device(device)->primary_users++;
	fake_driver.control.live[FAKE_CUDA_PRIMARY]++;
	*ret_context = primary;
	return CUDA_SUCCESS;
}

static void end_primary(CUcontext primary)
{
	fake_free_context_memory(primary);
	fake_drop_streams(primary);
	primary->alive = false;
	primary->flags = 0;
}

/* "It is safe for other modules to call it even after resetting the device". */
static CUresult release_primary(CUdevice device)
{
	CUcontext primary;

	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	primary = &fake_driver.primary[device];
	if (fake_device(device)->primary_users == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	fake_driver.control.live[FAKE_CUDA_PRIMARY]--;
	if (--fake_device(device)->primary_users == 0 && primary->alive)
		end_primary(primary);
	return CUDA_SUCCESS;
}

/*
 * The driver's half of cudaDeviceReset(): destroys the context for everyone, and "does
 * not release it": those who retained it still have their references (documentation of
 * cuDevicePrimaryCtxReset()). The next context has the same address here.
 */
static CUresult reset_primary(CUdevice device)
{
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (fake_driver.primary[device].alive)
		end_primary(&fake_driver.primary[device]);
	return CUDA_SUCCESS;
}

CUresult fake_cuDevicePrimaryCtxReset(CUdevice device)
{
	FAKE_ENTER("cuDevicePrimaryCtxReset", FAKE_NEEDS_INIT);
	return reset_primary(device);
}

CUresult fake_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	FAKE_ENTER("cuDevicePrimaryCtxReset", FAKE_NEEDS_INIT);
	return reset_primary(device);
}

CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device)
{
	FAKE_ENTER("cuDevicePrimaryCtxRelease", FAKE_NEEDS_INIT);
	return release_primary(device);
}

CUresult fake_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	FAKE_ENTER("cuDevicePrimaryCtxRelease", FAKE_NEEDS_INIT);
	return release_primary(device);
}

CUresult fake_cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *ret_flags,
					 int *ret_active)
{
	FAKE_ENTER("cuDevicePrimaryCtxGetState", FAKE_NEEDS_INIT);
	if (!ret_flags || !ret_active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*ret_flags = fake_driver.primary[device].flags;
	*ret_active = fake_driver.primary[device].alive;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *ret_context, unsigned int flags, CUdevice device)
{
	CUcontext context;
	CUresult result;

	if (!ret_context || flags & ~(unsigned int)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_has_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	result = fake_use_device(device);
	if (result != CUDA_SUCCESS)
		return result;
	context = calloc(1, sizeof(*context));
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*context = (struct CUctx_st){
		.next = fake_driver.contexts,
		.device = device,
		.alive = true,
		.flags = flags,
		.id = ++fake_driver.last_context,
	};
	result = push(context);
	if (result != CUDA_SUCCESS) {
		free(context);
		return result;
	}
	fake_driver.contexts = context;
	fake_driver.control.live[FAKE_CUDA_CONTEXT]++;
	fake_driver.control.pushes++;
	*ret_context = context;
	return CUDA_SUCCESS;
}

CUresult fake_cuCtxCreate_v2(CUcontext *ret_context, unsigned int flags, CUdevice device)
{
	FAKE_ENTER("cuCtxCreate", FAKE_NEEDS_INIT);
	return create(ret_context, flags, device);
}

CUresult fake_cuCtxCreate_v4(CUcontext *ret_context, CUctxCreateParams *parameters,
			     unsigned int flags, CUdevice device)
{
	FAKE_ENTER("cuCtxCreate", FAKE_NEEDS_INIT);
	if (parameters)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(ret_context, flags, device);
}

/* The context stays on the stacks of other threads, where it is invalid. */
CUresult fake_cuCtxDestroy_v2(CUcontext context)
{
	CUresult result;

	FAKE_ENTER("cuCtxDestroy", FAKE_NEEDS_INIT);
	result = check_context(context);
	if (result != CUDA_SUCCESS)
		return result;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	fake_free_context_memory(context);
	context->alive = false;
	if (fake_current() == context)
		pop();
	fake_driver.control.live[FAKE_CUDA_CONTEXT]--;
	return CUDA_SUCCESS;
}

CUresult fake_cuCtxPushCurrent_v2(CUcontext context)
{
	CUresult result;

	FAKE_ENTER("cuCtxPushCurrent", FAKE_NEEDS_INIT);
	result = check_context(context);
	if (result == CUDA_SUCCESS)
		result = push(context);
	if (result == CUDA_SUCCESS)
		fake_driver.control.pushes++;
	return result;
}

CUresult fake_cuCtxPopCurrent_v2(CUcontext *ret_context)
{
	FAKE_ENTER("cuCtxPopCurrent", FAKE_NEEDS_INIT);
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (ret_context)
		*ret_context = fake_current();
	pop();
	return CUDA_SUCCESS;
}

CUresult fake_cuCtxGetCurrent(CUcontext *ret_context)
{
	FAKE_ENTER("cuCtxGetCurrent", FAKE_NEEDS_INIT);
	if (!ret_context)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_context = fake_current();
	return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL pops it. */
CUresult fake_cuCtxSetCurrent(CUcontext context)
{
	CUresult result;

	FAKE_ENTER("cuCtxSetCurrent", FAKE_NEEDS_INIT);
	result = context ? check_context(context) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return result;
	if (depth)
		pop();
	return context ? push(context) : CUDA_SUCCESS;
}

CUresult fake_cuCtxGetDevice(CUdevice *ret_device)
{
	FAKE_ENTER("cuCtxGetDevice", FAKE_NEEDS_CURRENT);
	if (!ret_device)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_device = scope.device;
	return CUDA_SUCCESS;
}

CUresult fake_cuCtxGetDevice_v2(CUdevice *ret_device, CUcontext context)
{
	CUresult result;

	FAKE_ENTER("cuCtxGetDevice", FAKE_NEEDS_INIT);
	context = context ? context : scope.current;
	result = check_context(context);
	if (result == CUDA_SUCCESS && !ret_device)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*ret_device = context->device;
	return result;
}

CUresult fake_cuCtxSynchronize(void)
{
	FAKE_ENTER("cuCtxSynchronize", FAKE_NEEDS_DEVICE);
	return CUDA_SUCCESS;
}

CUresult fake_cuCtxSynchronize_v2(CUcontext context)
{
	CUresult result;

	FAKE_ENTER("cuCtxSynchronize", FAKE_NEEDS_INIT);
	context = context ? context : scope.current;
	result = check_context(context);
	return result == CUDA_SUCCESS ? fake_use_device(context->device) : result;
}

CUresult fake_cuCtxGetFlags(unsigned int *ret_flags)
{
	FAKE_ENTER("cuCtxGetFlags", FAKE_NEEDS_CURRENT);
	if (!ret_flags)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_flags = scope.current->flags;
	if (fake_driver.control.maps_host)
		*ret_flags |= CU_CTX_MAP_HOST;
	return CUDA_SUCCESS;
}

CUresult fake_cuCtxGetId(CUcontext context, unsigned long long *ret_id)
{
	CUresult result;

	FAKE_ENTER("cuCtxGetId", FAKE_NEEDS_INIT);
	context = context ? context : scope.current;
	result = check_context(context);
	if (result == CUDA_SUCCESS && !ret_id)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*ret_id = context->id;
	return result;
}

CUresult fake_cuCtxSetFlags(unsigned int flags)
{
	FAKE_ENTER("cuCtxSetFlags", FAKE_NEEDS_DEVICE);
	if (flags & ~(unsigned int)CU_CTX_FLAGS_MASK ||
	    (fake_driver.control.maps_host && flags & CU_CTX_MAP_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_driver.control.launching) {
		fake_driver.control.deadlocks++;
		return CUDA_ERROR_NOT_READY;
	}
	scope.current->flags = flags;
	return CUDA_SUCCESS;
}
