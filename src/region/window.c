/* SPDX-License-Identifier: BSD-3-Clause */
#include "window.h"

struct ibv_mr *pier_window_under(const struct pier_mr *window)
{
	return window->mr ? window->mr : window->base->mr;
}

void pier_window_bound(struct pier_mr *window, uint32_t rkey, struct pier_list *windows)
{
	pthread_mutex_lock(&window->pd->windows_lock);
	/* The caller has to update the struct (ibv_bind_mw(3)). */
	window->window->mw->rkey = rkey;
	window->window->rkey = rkey;
	pier_list_append(windows, &window->window->link);
	pthread_mutex_unlock(&window->pd->windows_lock);
}

/* A window of type 2 may be deallocated while it is bound (rxe_mw_cleanup()). */
static int dealloc_window(struct pier_window *window)
{
	int error;

	if (!window->mw)
		return 0;
	error = window->pd->device->provider->dealloc_mw(window->mw);
	if (error)
		return error;
	window->mw = NULL;
	pier_list_remove(&window->link);
	return 0;
}

int pier_unbind_window(struct pier_mr *region)
{
	int error;

	pthread_mutex_lock(&region->pd->windows_lock);
	error = dealloc_window(region->window);
	pthread_mutex_unlock(&region->pd->windows_lock);
	return error;
}

int pier_unbind_windows(struct pier_pd *pd, struct pier_list *windows)
{
	int error = 0;

	pthread_mutex_lock(&pd->windows_lock);
	while (!error && !pier_list_empty(windows))
		error = dealloc_window(
			pier_container_of(windows->next, struct pier_window, link));
	pthread_mutex_unlock(&pd->windows_lock);
	return error;
}
