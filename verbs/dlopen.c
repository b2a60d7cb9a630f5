/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/*
 * LD_PRELOAD replaces no function that a program looks up in a handle. NCCL and others
 * open libibverbs that way. They get a handle of this library; its dependency, the real
 * libibverbs, then has the functions that touch no object, such as ibv_wc_status_str().
 */

typedef void *opener(const char *file, int mode);

/*
 * The real dlopen(3) searches the RUNPATH of its caller, which it finds by its return
 * address. So it must be entered by a jump and not by a call.
 */
#if defined(__has_attribute) && __has_attribute(musttail)
#define TAIL_CALL __attribute__((musttail)) return
#define JUMPS
#else
#define TAIL_CALL return
#define JUMPS	  __attribute__((optimize("O2")))
#endif

static _Atomic(opener *) real_dlopen;

static opener *find_dlopen(void)
{
	opener *found = atomic_load_explicit(&real_dlopen, memory_order_relaxed);

	if (!found) {
		found = (opener *)dlsym(RTLD_NEXT, "dlopen");
		atomic_store_explicit(&real_dlopen, found, memory_order_relaxed);
	}
	return found;
}

static bool names_libibverbs(const char *file)
{
	static const char name[] = "libibverbs.so";
	const char *slash = file ? strrchr(file, '/') : NULL;

	return file && strncmp(slash ? slash + 1 : file, name, sizeof(name) - 1) == 0;
}

static const char *own_path(void)
{
	Dl_info found;

	return dladdr(&real_dlopen, &found) ? found.dli_fname : NULL;
}

JUMPS void *dlopen(const char *file, int mode)
{
	opener *next = find_dlopen();

	if (names_libibverbs(file))
		file = own_path();
	TAIL_CALL next(file, mode);
}
