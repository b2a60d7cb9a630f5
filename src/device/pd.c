/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/caller.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/object.h"
#include "device.h"
#include "loop.h"
#include "open.h"
#include "pd.h"

static void describe_pd(const struct pier_object *object, char *ret_text, size_t size)
{
	const struct pier_pd *pd = (const struct pier_pd *)object;

	snprintf(ret_text, size, "protection domain on %s", pd->device->name);
}

/* A protection domain without its verbs object. NULL without memory. */
static struct pier_pd *new_pd(struct pier_device *device)
{
	struct pier_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->object.describe = describe_pd;
	pd->device = device;
	atomic_init(&pd->children, 0);
	pthread_mutex_init(&pd->lock, NULL);
	pier_list_init(&pd->users);
	for (int i = 0; i < PIER_FAR_KEYS; i++)
		pier_list_init(&pd->far_keys[i]);
	pthread_mutex_init(&pd->windows_lock, NULL);
	pthread_mutex_init(&pd->read_back_lock, NULL);
	return pd;
}

static void free_pd(struct pier_pd *pd)
{
	pthread_mutex_destroy(&pd->read_back_lock);
	pthread_mutex_destroy(&pd->windows_lock);
	pthread_mutex_destroy(&pd->lock);
	free(pd);
}

int pier_pd_alloc(struct pier_device *device, struct pier_pd **ret_pd)
{
	PIER_REFUSE_NULL(device, ret_pd);
	PIER_ENTRY();
	struct pier_pd *pd;
	int error = pier_check_process(&device->object);

	if (error)
		return error;
	pd = new_pd(device);
	if (!pd)
		return pier_fail(ENOMEM, "allocating a protection domain: out of memory");
	pier_clear_error();
	errno = 0;
	pd->pd = device->provider->alloc_pd(device->context);
	if (!pd->pd) {
		error = pier_last_errno();
		free_pd(pd);
		return pier_fail_because(error, "allocating a protection domain on %s",
					 device->name);
	}
	atomic_fetch_add(&device->pds, 1);
	pier_object_track(&pd->object, PIER_OBJECT_PD, &device->object);
	*ret_pd = pd;
	return 0;
}

/* A registration under way is a child of its event queue, not of the PD. */
static int refuse_to_dealloc(const struct pier_pd *pd)
{
	unsigned int pending = atomic_load(&pd->registrations);
	char children[256];

	pier_object_tally(&pd->object, children, sizeof(children));
	if (pending)
		return pier_fail(
			EBUSY,
			"deallocating a protection domain of %s: it still has %u "
			"registration%s under way%s%s",
			pd->device->name, pending, pending == 1 ? "" : "s",
			children[0] ? " and " : "", children);
	return pier_fail(EBUSY, "deallocating a protection domain of %s: it still has %s",
			 pd->device->name, children);
}

int pier_pd_dealloc(struct pier_pd *pd)
{
	int error;

	if (!pd)
		return 0;
	error = pier_check_process(&pd->object);
	if (error)
		return error;
	if (atomic_load(&pd->children))
		return refuse_to_dealloc(pd);
	pier_end_loops(pd);
	pier_clear_error();
	error = pd->borrowed ? 0 : pd->device->provider->dealloc_pd(pd->pd);
	if (error)
		return pier_fail_because(error, "deallocating a protection domain of %s",
					 pd->device->name);
	pier_object_untrack(&pd->object);
	pier_release_device(pd->device);
	free_pd(pd);
	return 0;
}

void pier_add_region_user(struct pier_pd *pd, struct pier_region_user *user)
{
	pthread_mutex_lock(&pd->lock);
	pier_list_append(&pd->users, &user->link);
	atomic_store(&pd->used, true);
	pthread_mutex_unlock(&pd->lock);
}

void pier_remove_region_user(struct pier_pd *pd, struct pier_region_user *user)
{
	pthread_mutex_lock(&pd->lock);
	pier_list_remove(&user->link);
	atomic_store(&pd->used, !pier_list_empty(&pd->users));
	pthread_mutex_unlock(&pd->lock);
}

const char *pier_region_in_use(struct pier_pd *pd, uint32_t lkey)
{
	const char *use = NULL;

	if (!atomic_load(&pd->used))
		return NULL;
	pthread_mutex_lock(&pd->lock);
	pier_list_for_each(const struct pier_region_user, user, &pd->users, link)
		use = use ? use : user->uses(user, lkey);
	pthread_mutex_unlock(&pd->lock);
	return use;
}

/* Devices number their regions in the upper bits: the lowest byte may be constant. */
static struct pier_list *far_keys_like(struct pier_pd *pd, uint32_t lkey)
{
	return &pd->far_keys[(lkey ^ lkey >> 8) % PIER_FAR_KEYS];
}

void pier_add_far_key(struct pier_pd *pd, struct pier_far_key *key, uint32_t lkey)
{
	key->lkey = lkey;
	key->added = true;
	pthread_mutex_lock(&pd->lock);
	pier_list_append(far_keys_like(pd, lkey), &key->link);
	atomic_fetch_add(&pd->far_count, 1);
	pthread_mutex_unlock(&pd->lock);
}

void pier_remove_far_key(struct pier_pd *pd, struct pier_far_key *key)
{
	if (!key->added)
		return;
	pthread_mutex_lock(&pd->lock);
	pier_list_remove(&key->link);
	atomic_fetch_sub(&pd->far_count, 1);
	pthread_mutex_unlock(&pd->lock);
	key->added = false;
}

bool pier_is_far_key(struct pier_pd *pd, uint32_t lkey)
{
	struct pier_list *head = far_keys_like(pd, lkey);
	bool found = false;

	if (!atomic_load(&pd->far_count))
		return false;
	pthread_mutex_lock(&pd->lock);
	pier_list_for_each(const struct pier_far_key, key, head, link)
		found = found || key->lkey == lkey;
	pthread_mutex_unlock(&pd->lock);
	return found;
}

int pier_check_receive(struct pier_pd *pd, const struct ibv_sge *sg_list,
		       uint32_t num_sge)
{
	if (!pd->device->copies_receives)
		return 0;
	for (uint32_t i = 0; i < num_sge; i++)
		if (sg_list[i].length > 0 && pier_is_far_key(pd, sg_list[i].lkey))
			return pier_fail(
				EOPNOTSUPP,
				"post a receive: the provider of %s copies "
				"short messages by the CPU, which does not find "
				"this memory at %#llx: receive in host memory at "
				"its own address, or let the peer write",
				pd->device->name, (unsigned long long)sg_list[i].addr);
	return 0;
}

struct pier_device *pier_pd_device(const struct pier_pd *pd)
{
	PIER_REFUSE_NULL_AS(NULL, pd);
	return pd->device;
}

struct ibv_pd *pier_pd_verbs(const struct pier_pd *pd)
{
	PIER_REFUSE_NULL_AS(NULL, pd);
	return pd->pd;
}

/* A device over a context that the program opened and will close. */
static int borrow_context(struct ibv_context *context, struct pier_device **ret_device)
{
	struct pier_device *device = pier_new_device("", context->device->name), *held;
	int error;

	if (!device)
		return pier_fail(ENOMEM, "importing a protection domain: out of memory");
	device->provider = &pier_verbs_provider;
	device->context = context;
	device->borrowed = true;
	pier_clear_error();
	error = pier_probe_device(device);
	if (error) {
		pier_free_device(device);
		return error;
	}
	held = pier_hold_device(context, device);
	/* Another thread was faster. */
	if (held != device)
		pier_free_device(device);
	else
		pier_object_track(&device->object, PIER_OBJECT_DEVICE, NULL);
	*ret_device = held;
	return 0;
}

static int find_or_borrow(struct ibv_context *context, struct pier_device **ret_device)
{
	struct pier_device *device = pier_hold_device(context, NULL);
	int error;

	if (!device)
		return borrow_context(context, ret_device);
	*ret_device = device;
	error = pier_check_process(&device->object);
	if (error)
		pier_release_device(device);
	return error;
}

int pier_pd_import(struct ibv_pd *verbs, struct pier_pd **ret_pd)
{
	PIER_REFUSE_NULL(verbs, ret_pd);
	PIER_ENTRY();
	struct pier_device *device = NULL;
	struct pier_pd *pd;
	int error = pier_watch_forks();

	if (error)
		return error;
	error = find_or_borrow(verbs->context, &device);
	if (error)
		return error;
	pd = new_pd(device);
	if (!pd) {
		pier_release_device(device);
		return pier_fail(ENOMEM, "importing a protection domain: out of memory");
	}
	pd->pd = verbs;
	pd->borrowed = true;
	pier_object_track(&pd->object, PIER_OBJECT_PD, &device->object);
	pier_info("imported a protection domain of %s", device->name);
	*ret_pd = pd;
	return 0;
}
